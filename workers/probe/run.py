"""A whole probe on one rank: build, track, time."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from workers.probe import mesh as meshes
from workers.probe.alone import Alone, StepClock
from workers.probe.data import micro_batches
from workers.probe.device import Device
from workers.probe.giving_up import LOOK_STEPS, least_s
from workers.probe.gradient_norm import total_gradient_norm
from workers.probe.group import one_copy_gathers, wait_for_watchdog
from workers.probe.recompute import recomputing
from workers.probe.record import NonFiniteLossError, Record
from workers.probe.spec import Spec
from workers.probe.stack import Stack, build_stack
from workers.probe.step import optimizer_step
from workers.probe.summary import summarize
from workers.probe.tracker import INSTRUMENT, Call, Phase, plain_tensors

REDUCTIONS = ("reduce_scatter", "all_reduce")
"""Collectives that gradients are reduced with."""


@dataclass(slots=True, kw_only=True)
class Rank:
    """One rank's run of a probe. ``run`` fills ``record``."""

    spec: Spec
    rank: int
    device: Device
    phase: Phase
    record: Record
    _step: int = 0
    _gradient_bytes: int = 0
    _alone: Alone | None = None
    _gave_up: bool = False
    _retries_of_copies: int = 0

    def run(self) -> None:
        """Build the stack, run all steps, and fill the record.

        Raises whatever the stack raises; the caller records it.
        """
        with self.device.tracker:
            self._enter("build")
            stack = build_stack(self.spec, self.device)
            for tensor in (*stack.model.parameters(), *stack.model.buffers()):
                self.device.tracker.add(tensor)
            if self.spec.is_emulated:
                self._alone = Alone(device=self.device, axes=meshes.axis_names(stack.mesh))
            self._track(stack)
        if self._alone is None:
            self._time(stack)
            self._note_retries()
        else:
            with one_copy_gathers():
                self._time(stack)
                self._note_retries()
                self.record.emulation = self._alone.values()
        self.phase.name = self.record.phase = "finish"
        self.record.optimizer_steps = stack.optimizer_steps
        self.record.expected_optimizer_steps = self._step
        self.record.outcome = "stopped_early" if self._gave_up else "ok"

    def _enter(self, name: str) -> None:
        if name == "optimizer" and self._has_first_reduced():
            # DDP replaces its buckets before the next forward: the old ones, as large as all
            # gradients, would live for as long as it takes the watchdog to look
            wait_for_watchdog()
        self.phase.name = name
        self.phase.micro_batch += name == "forward"
        self.device.enter_phase()

    def _has_first_reduced(self) -> bool:
        """Whether the micro-batch that is over is the first whose gradients were reduced."""
        each = self.spec.settings.sync_each_batch
        first = 1 if each else self.spec.accumulation_counts[-1]
        return self._step == 0 and self.phase.micro_batch == first

    def _track(self, stack: Stack) -> None:
        """Warm up at the last count, with memory and collectives tracked."""
        count = self.spec.accumulation_counts[-1]
        stack.set_accumulation(count)
        self.device.start_steps()
        losses = []
        with recomputing(stack.decoder_layers(), self.phase) as recomputed:
            for _ in range(self.spec.tracked_steps):
                self.device.tracker.calls.clear()
                self.device.tracker.attention.clear()
                losses.append(self._one_step(stack, count, norms=True))
                calls = list(self.device.tracker.calls)
                self.device.end_step()
        self.record.recomputed_layers = recomputed.calls // self.spec.tracked_steps
        self._note_losses(losses)
        self.record.attention = dict(self.device.tracker.attention)
        self.record.tracked_accumulation = count
        self.record.reducing_micro_batches = self._reducing(calls, stack)
        self.record.memory = self._memory(stack)
        if self._alone is None:
            self.record.collectives = summarize(calls, meshes.axis_names(stack.mesh))
            return
        self._alone.calls[count] = calls
        self.record.collectives = self._alone.rows(count)
        for other in self.spec.accumulation_counts[:-1]:
            stack.set_accumulation(other)
            self.device.tracker.calls.clear()
            self._one_step(stack, other, norms=False)
            self._alone.calls[other] = list(self.device.tracker.calls)

    def _time(self, stack: Stack) -> None:
        """Take the time of steps at every count, without instruments.

        Where a limit is given, all counts are looked at after a few steps, and the rest of their
        steps is taken only if they keep within it.
        """
        counts = self.spec.accumulation_counts
        losses: list[torch.Tensor] = []
        left: dict[int, int] = {}
        for count in reversed(counts):
            steps = self._warm_up(stack, count, losses)
            now = steps if self.spec.give_up_above_s is None else min(LOOK_STEPS, steps)
            self._take(stack, count, now, losses)
            left[count] = steps - now
        if any(left.values()):
            self._gave_up = self._is_too_slow()
        if not self._gave_up:
            for count in counts:
                self._take(stack, count, left[count], losses)
        # at once: a power cap lets go within milliseconds of the last kernel, heat stays longer
        if clocks := self.device.clocks():
            self.record.hardware["clocks"] = clocks
        self._note_losses(losses)

    def _warm_up(self, stack: Stack, count: int, losses: list[torch.Tensor]) -> int:
        """Warm up for steps of a count; how many of them are to be timed.

        The tracked steps are a part of the last count's.
        """
        tracked = self.spec.tracked_steps if count == self.spec.accumulation_counts[-1] else 0
        warm = max(1, self.spec.warmup_steps - tracked)
        stack.set_accumulation(count)
        seconds = [self._timed_step(stack, count, losses) for _ in range(warm)]
        if self._alone is not None:
            self._alone.seconds[count].clear()
        return self._affordable(seconds[-1])

    def _take(self, stack: Stack, count: int, steps: int, losses: list[torch.Tensor]) -> None:
        """Take the time of some steps."""
        stack.set_accumulation(count)
        times = self.record.step_times_s.setdefault(str(count), [])
        times.extend(self._timed_step(stack, count, losses) for _ in range(steps))

    def _is_too_slow(self) -> bool:
        """Whether a step is longer than the limit, by what was timed: the same on every rank.

        Of a rank alone only computing counts: what it would wait for is not known here. The copies
        that are timed for that are only timed where it matters.
        """
        limit_s = self.spec.give_up_above_s
        assert limit_s is not None
        accumulation = self.spec.settings.gradient_accumulation_steps
        times = {
            int(count): self._of_slowest_rank(mine)
            for count, mine in self.record.step_times_s.items()
        }
        if self._alone is not None and least_s(times, accumulation) > limit_s:
            before = self.device.allocation_retries()
            times = self._alone.computing_s()
            self._retries_of_copies = self.device.allocation_retries() - before
        return least_s(times, accumulation) > limit_s

    def _of_slowest_rank(self, seconds: list[float]) -> list[float]:
        """Of each of these on all ranks the longest."""
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self.device.torch_device)
        if self.spec.world_size > 1:
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return [float(value) for value in slowest.tolist()]

    def _note_retries(self) -> None:
        """Near misses of the timed steps too; not of the copies that are timed beside them."""
        assert self.record.memory is not None
        retries = self.device.allocation_retries() - self._retries_of_copies
        self.record.memory["allocation_retries"] = retries

    def _timed_step(self, stack: Stack, count: int, losses: list[torch.Tensor]) -> float:
        batches = self._batches(count)
        self.phase.name = "time"
        self.device.synchronize()
        if self._alone is not None:
            return self._computing_s(stack, count, batches)
        started = time.perf_counter()
        losses.append(optimizer_step(stack, batches, _unseen))
        self.device.synchronize()
        self._step += 1
        return time.perf_counter() - started

    def _computing_s(self, stack: Stack, count: int, batches: list[torch.Tensor]) -> float:
        """Seconds of a step in which nothing is sent; phases are marked, and not waited for."""
        assert self._alone is not None
        clock = StepClock(self.device)
        optimizer_step(stack, batches, clock.enter)
        seconds = clock.stop()
        self._step += 1
        self._alone.seconds.setdefault(count, []).append(seconds)
        return sum(seconds.values())

    def _affordable(self, step_s: float) -> int:
        """Measured steps that the time budget allows: the same number on every rank."""
        (slowest_s,) = self._of_slowest_rank([step_s])
        budget_s = self.spec.time_budget_s / len(self.spec.accumulation_counts)
        affordable = int(budget_s / max(slowest_s, 1e-9))
        return max(self.spec.minimum_steps, min(self.spec.measured_steps, affordable))

    def _one_step(self, stack: Stack, count: int, *, norms: bool) -> torch.Tensor:
        self.phase.micro_batch = 0
        loss = optimizer_step(
            stack,
            self._batches(count),
            self._enter,
            before_optimizer=lambda: self._look_at_gradients(stack) if norms else None,
        )
        self._step += 1
        for tensor in stack.state_tensors():  # a compiled optimizer makes them unseen
            self.device.tracker.add(tensor)
        return loss

    def _batches(self, count: int) -> list[torch.Tensor]:
        data_rank = meshes.data_parallel_rank(self.spec, self.rank)
        batches = micro_batches(self.spec, step=self._step, count=count, data_rank=data_rank)
        return [batch.to(self.device.torch_device) for batch in batches]

    def _look_at_gradients(self, stack: Stack) -> None:
        """Note the total gradient norm and the bytes of gradients; nothing of it is counted.

        Without peers there is no norm: what they would have sent is not there.
        """
        self._enter(INSTRUMENT)
        if self._alone is None:
            norm = float(total_gradient_norm(stack.model.parameters()))
            self.record.gradient_norms.append(norm)
        gradients = [p.grad for p in stack.model.parameters() if p.grad is not None]
        self._gradient_bytes = self._held_bytes(gradients)

    def _note_losses(self, losses: list[torch.Tensor]) -> None:
        """Average over the data-parallel ranks, and refuse what is not finite.

        Ranks of one tensor-parallel group have the same loss, so this is the mean over all ranks:
        a group of the data-parallel ones alone would have a communicator that training has not.
        Without peers a loss says nothing: parameters and gradients are this rank's alone.
        """
        if self._alone is not None:
            return
        self.phase.name = INSTRUMENT
        means = torch.stack(losses).double()
        if self.spec.data_parallel_size > 1:
            dist.all_reduce(means)
            means /= self.spec.world_size
        self.record.losses.extend(means.tolist())
        if not all(map(math.isfinite, self.record.losses + self.record.gradient_norms)):
            raise NonFiniteLossError(f"losses {self.record.losses[:4]}")

    def _reducing(self, calls: Iterable[Call], stack: Stack) -> int:
        """Micro-batches whose backward reduced gradients over the data-parallel ranks."""
        axes = meshes.axis_names(stack.mesh)
        reductions = [c for c in calls if c.op in REDUCTIONS and c.phase == "backward"]
        return len({c.micro_batch for c in reductions if axes.get(c.group) in meshes.DATA_AXES})

    def _memory(self, stack: Stack) -> dict[str, object]:
        peaks = self.device.peaks
        parameters = self._held_bytes([*stack.model.parameters(), *stack.model.buffers()])
        optimizer = self._held_bytes(stack.state_tensors())
        held = {
            "parameters": parameters,
            "optimizer": optimizer,
            "gradients": self._gradient_bytes,
        }
        rest = max(0, peaks.allocated - sum(held.values()))
        return {
            "peak_allocated_bytes": peaks.allocated,
            "low_peak_bytes": peaks.lowest_step or peaks.allocated,
            "peak_reserved_bytes": peaks.reserved,
            "device_bytes": self.device.process_bytes(),
            "overhead_bytes": self.device.overhead_bytes(),
            "allocation_retries": self.device.allocation_retries(),
            "by_phase": dict(peaks.by_phase),
            "by_category": {**held, "activations_and_temporaries": rest},
        }

    def _held_bytes(self, tensors: Iterable[torch.Tensor]) -> int:
        return local_bytes(tensors, self.device.type)


def _unseen(name: str) -> None:
    """Phases pass unseen while time is taken."""


def local_bytes(tensors: Iterable[torch.Tensor], device_type: str) -> int:
    """Bytes of this rank's distinct storages on its device; what is offloaded is not there."""
    sizes = {}
    for tensor in tensors:
        for plain in plain_tensors(tensor):  # to detach torchao's copies a part of it
            storage = plain.untyped_storage()
            if storage.device.type == device_type:
                sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
