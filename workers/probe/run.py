"""A whole probe on one rank: join, build, track, time, record. A rehearsed one is not timed.

A rank 0 that runs alone notes computing by phase, and every step's collectives. Nothing is sent, so
a timed step is computing, and the collectives that it would have waited for are priced by whoever
started the probe. A gather and a scatter still copy on this device, in the place of what they would
have received; where the step waits for that, it is timed by itself, to be taken off.
"""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from workers.probe.checkpointing import host_bytes
from workers.probe.collectives import Call, Overlap, overlaps, summarize
from workers.probe.device import CudaDevice, Device, node_clocks
from workers.probe.errors import NonFiniteLossError
from workers.probe.giving_up import LOOK_STEPS, computing, least_s
from workers.probe.group import (
    Meeting,
    gather_into,
    group_of_name,
    heed_peer_access,
    join,
    join_fake_group,
    keep_own_parts,
    meet,
    of_first_on_node,
    one_copy_gathers,
    reduce_scatter_into,
    wait_for_watchdog,
)
from workers.probe.model import micro_batches
from workers.probe.quantized import scales
from workers.probe.record import Record, recording
from workers.probe.spec import Spec, read_spec
from workers.probe.stack import DATA_AXES, Stack, build_stack, optimizer_step
from workers.probe.tracker import (
    INSTRUMENT,
    Phase,
    frozen_sums,
    plain_tensors,
    recomputing,
    total_gradient_norm,
    watching,
)

# Copies of one size that are timed; the first warms up, and the median of the others counts.
TIMES = 5
# Bytes of copies in pieces, at least: the launch of smaller ones would be what is timed.
LEAST_BYTES = 2**20


class StepClock:
    """Seconds of each phase of one step, by marks on the device that nothing waits for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: list[tuple[str, Any]] = []

    def enter(self, phase: str) -> None:
        """A phase begins, and the one before ends."""
        self._marks.append((phase, self._device.mark()))

    def stop(self) -> dict[str, float]:
        """End the last phase; seconds of each, over all micro-batches."""
        self.enter("")
        seconds: defaultdict[str, float] = defaultdict(float)
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            seconds[phase] += self._device.seconds_between(begin, end)
        return dict(seconds)


@dataclass(slots=True, kw_only=True)
class Alone:
    """Findings of a rank without peers."""

    device: Device  # its device
    axes: Mapping[str, str]  # name of the mesh axis of each process group
    seconds: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    """Seconds of each phase in each timed step, by accumulation count."""
    calls: dict[int, list[Call]] = field(default_factory=dict)
    """The collectives of one step of each accumulation count."""
    _left_out: str = ""
    _known: dict[tuple[str, str, int, torch.dtype], float] = field(default_factory=dict)

    def computing_s(self) -> dict[int, list[float]]:
        """Seconds that each timed step computes, by accumulation count."""
        copies = self._copies_s()
        return {
            count: [sum(computing(step, copies[count]).values()) for step in steps]
            for count, steps in self.seconds.items()
        }

    def rows(self, count: int) -> list[dict[str, object]]:
        """The collectives of a step by kind, with what hides them."""
        calls = self.calls[count]
        return summarize(calls, self.axes, overlaps(calls, self.axes))

    def values(self) -> dict[str, Any]:
        return {
            "phase_times_s": {str(count): steps for count, steps in self.seconds.items()},
            "copies_s": {str(count): copies for count, copies in self._copies_s().items()},
            "collectives": {str(count): self.rows(count) for count in self.calls},
            "copies_left_out": self._left_out,
        }

    def _copies_s(self) -> dict[int, dict[str, float]]:
        """Seconds that a step of each count waits for copies, by phase."""
        found: dict[int, dict[str, float]] = {}
        for count, calls in self.calls.items():
            seconds: dict[str, float] = defaultdict(float)
            for call, overlap in zip(calls, overlaps(calls, self.axes), strict=True):
                if call.op not in ("all_gather", "reduce_scatter"):
                    continue
                # hidden copies run on a stream of their own; a CPU has one line only
                if overlap is not Overlap.EXPOSED and self.device.type != "cpu":
                    continue
                kind = call.op, call.group, call.bytes, call.dtype
                if kind not in self._known:
                    self._known[kind] = self._copy_s(call)
                seconds[call.phase] += self._known[kind]
            found[count] = dict(seconds)
        return found

    def _copy_s(self, call: Call) -> float:
        """Seconds of a call's copies: in pieces where there is no memory for more."""
        # The steps' tensors are there, and whatever their allocations left in pieces; a probe whose
        # steps had memory enough must not fail for want of it here. Without room for the smallest
        # piece nothing is taken off: the time of computing is too long then, and says so.
        ranks, pieces = group_of_name(call.group).size(), 1
        while True:
            each = -(-call.bytes // ranks // pieces)
            try:
                return pieces * self._piece_s(call, each)
            except (RuntimeError, MemoryError) as error:
                if self.device.out_of_memory(error) is None:
                    raise
                if each * ranks <= LEAST_BYTES:
                    self._left_out = f"no memory was left to time {call.op} of {call.bytes} bytes"
                    return 0.0
            pieces *= 2

    def _piece_s(self, call: Call, each: int) -> float:
        """Seconds of a gather or scatter of ``each`` bytes of every rank."""
        # a function of its own, so that tensors of a piece that failed are gone before the next
        group = group_of_name(call.group)
        each = -(-each // call.dtype.itemsize)
        # in the step's dtype: elements, and not bytes, are what a kernel copies
        whole, part = (
            torch.empty(size, dtype=call.dtype, device=self.device.torch_device)
            for size in (each * group.size(), each)
        )

        def copy() -> None:
            if call.op == "all_gather":
                gather_into(whole, part, group=group)
            else:
                reduce_scatter_into(part, whole, group=group)

        return median([self.device.seconds_of(copy) for _ in range(TIMES)][1:])


# Collectives that gradients are reduced with.
REDUCTIONS = ("reduce_scatter", "all_reduce")


def run_probe(spec_path: Path, meeting: Meeting) -> tuple[Record, Device | None]:
    """Run this process's rank of the probe; the process group it has joined is left as it is.

    Returns:
        The record, and the device; ``None`` if it could not be opened.
    """
    with recording() as own:
        spec = read_spec(spec_path)
        device = own.open_device(
            spec.device, limit_bytes=spec.memory_limit_bytes, alone=spec.is_alone
        )
        torch.manual_seed(spec.seed)  # dropout's; by itself torch draws other ones in each process
        if spec.is_alone:
            join_fake_group(spec.world_size)
            keep_own_parts()
        else:
            own.record.hardware |= heed_peer_access(device.torch_device)
            join(spec.world_size, own.rank, device.backend, meeting, device.torch_device)
        Rank(spec=spec, rank=own.rank, device=device, phase=own.phase, record=own.record).run()
        meet(device.torch_device)  # no rank leaves while another still talks to it
    return own.record, own.device


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
            model = stack.model
            for tensor in (*model.parameters(), *model.buffers(), *scales(model)):
                self.device.tracker.add(tensor)
            if self.spec.is_alone:
                self._alone = Alone(device=self.device, axes=stack.axis_names())
            frozen = frozen_sums(stack.model)
            self._track(stack)
        if self.spec.fidelity != "rehearsed":
            with one_copy_gathers() if self._alone is not None else contextlib.nullcontext():
                self._time(stack)
                # near misses of the timed steps too; not of the copies that are timed beside them
                assert self.record.memory is not None
                retries = self.device.allocation_retries() - self._retries_of_copies
                self.record.memory["allocation_retries"] = retries
                if self._alone is not None:
                    self.record.emulation = self._alone.values()
        self.phase.name = self.record.phase = "finish"
        if frozen:
            after = frozen_sums(stack.model)
            self.record.moved_frozen = sum(a != b for a, b in zip(frozen, after, strict=True))
        self.record.optimizer_steps = stack.optimizer_steps
        self.record.expected_optimizer_steps = self._step
        self.record.outcome = "stopped_early" if self._gave_up else "ok"

    def _enter(self, name: str) -> None:
        if name == "optimizer" and self._step == 0:
            each = self.spec.settings.sync_each_batch
            first_reduced = 1 if each else self.spec.accumulation_counts[-1]
            if self.phase.micro_batch == first_reduced:
                # DDP replaces its buckets before the next forward: the old ones, as large as all
                # gradients, would live for as long as it takes the watchdog to look
                wait_for_watchdog()
        self.phase.name = name
        self.phase.micro_batch += name == "forward"
        self.device.enter_phase()

    def _track(self, stack: Stack) -> None:
        tracker, record = self.device.tracker, self.record
        count = self.spec.accumulation_counts[-1]
        stack.set_accumulation(count)
        self.device.start_steps()
        losses = []
        products = tracker.recomputed_products
        layers, head = stack.decoder_layers(), stack.output_head()
        with recomputing(layers, self.phase) as recomputed, watching(head) as logits:
            for _ in range(self.spec.tracked_steps):
                tracker.calls.clear()
                tracker.attention.clear()
                losses.append(self._tracked_step(stack, count, looks=True))
                calls = list(tracker.calls)
                self.device.end_step()
        record.recomputed_layers = recomputed.calls // self.spec.tracked_steps
        record.whole_logits = any(logits)
        record.loss_kernel = self.spec.fused_by
        products = tracker.recomputed_products - products
        record.recomputed_products = products // self.spec.tracked_steps
        record.host_bytes = host_bytes(layers) // (self.spec.tracked_steps * count)
        self._note_losses(losses)
        record.attention = dict(tracker.attention)
        record.tracked_accumulation = count
        # micro-batches whose backward reduced gradients over the data-parallel ranks
        axes = stack.axis_names()
        reductions = [c for c in calls if c.op in REDUCTIONS and c.phase == "backward"]
        record.reducing_micro_batches = len(
            {c.micro_batch for c in reductions if axes.get(c.group) in DATA_AXES}
        )
        record.memory = self._memory(stack)
        if self._alone is None:
            record.collectives = summarize(calls, axes)
            return
        self._alone.calls[count] = calls
        record.collectives = self._alone.rows(count)
        for other in self.spec.accumulation_counts[:-1]:
            stack.set_accumulation(other)
            tracker.calls.clear()
            self._tracked_step(stack, other, looks=False)
            self._alone.calls[other] = list(tracker.calls)

    def _tracked_step(self, stack: Stack, count: int, *, looks: bool) -> torch.Tensor:
        def look_at_gradients() -> None:
            if not looks:
                return
            self._enter(INSTRUMENT)  # nothing of it is counted
            if self._alone is None:  # without peers there is nothing of what they would have sent
                norm = float(total_gradient_norm(stack.model.parameters()))
                self.record.gradient_norms.append(norm)
            gradients = [p.grad for p in stack.model.parameters() if p.grad is not None]
            self._gradient_bytes = local_bytes(gradients, self.device.type)

        self.phase.micro_batch = 0
        batches = self._batches(count)
        loss = optimizer_step(stack, batches, self._enter, before_optimizer=look_at_gradients)
        self._step += 1
        for tensor in stack.state_tensors():  # a compiled optimizer makes them unseen
            self.device.tracker.add(tensor)
        return loss

    def _memory(self, stack: Stack) -> dict[str, object]:
        peaks, kind = self.device.peaks, self.device.type
        model = stack.model
        own = [*model.parameters(), *model.buffers(), *scales(model)]
        held = {
            "parameters": local_bytes(own, kind),
            "optimizer": local_bytes(stack.state_tensors(), kind),
            "gradients": self._gradient_bytes,
        }
        rest = max(0, peaks.allocated - sum(held.values()))
        return {
            "allocated_bytes": peaks.allocated,
            "allocated_low_bytes": peaks.lowest_step or peaks.allocated,
            "reserved_bytes": peaks.reserved,
            "device_bytes": self.device.process_bytes(),
            "overhead_bytes": self.device.overhead_bytes(),
            "allocation_retries": self.device.allocation_retries(),
            "by_phase": dict(peaks.by_phase),
            "by_category": {**held, "activations_and_temporaries": rest},
        }

    def _time(self, stack: Stack) -> None:
        """Take the time of steps at every count, without instruments.

        Where a limit is given, all counts are looked at after a few steps, and the rest of their
        steps is taken only if they keep within it.
        """
        counts = self.spec.accumulation_counts
        losses: list[torch.Tensor] = []
        left: dict[int, int] = {}
        for count in reversed(counts):
            # the tracked steps are a part of the last count's warm-up
            tracked = self.spec.tracked_steps if count == counts[-1] else 0
            stack.set_accumulation(count)
            for _ in range(max(1, self.spec.warmup_steps - tracked)):
                seconds = self._timed_step(stack, count, losses)
            if self._alone is not None:
                self._alone.seconds[count].clear()
            # as many as the time budget allows, the same number on every rank
            (slowest_s,) = self._of_slowest_rank([seconds])
            affordable = int(self.spec.time_budget_s / len(counts) / max(slowest_s, 1e-9))
            steps = max(self.spec.minimum_steps, min(self.spec.measured_steps, affordable))
            now = steps if self.spec.give_up_above_s is None else min(LOOK_STEPS, steps)
            self._take(stack, count, now, losses)
            left[count] = steps - now
        if any(left.values()):
            self._gave_up = self._is_too_slow()
        if not self._gave_up:
            for count in counts:
                self._take(stack, count, left[count], losses)
        # At once: a power cap lets go within milliseconds of the last kernel, heat stays longer.
        # One rank asks for its node: many at once would wait for each other in the driver.
        if isinstance(self.device, CudaDevice):
            clocks = of_first_on_node("clocks", self.rank, node_clocks)
            if own := clocks.get(self.device.uuid):
                self.record.hardware["clocks"] = own
        self._note_losses(losses)

    def _take(self, stack: Stack, count: int, steps: int, losses: list[torch.Tensor]) -> None:
        stack.set_accumulation(count)
        times = self.record.step_times_s.setdefault(str(count), [])
        times.extend(self._timed_step(stack, count, losses) for _ in range(steps))

    def _timed_step(self, stack: Stack, count: int, losses: list[torch.Tensor]) -> float:
        batches = self._batches(count)
        self.phase.name = "time"
        self.device.synchronize()
        if self._alone is not None:  # nothing is sent: its phases are marked, and not waited for
            clock = StepClock(self.device)
            optimizer_step(stack, batches, clock.enter)
            by_phase = clock.stop()
            self._step += 1
            self._alone.seconds.setdefault(count, []).append(by_phase)
            return sum(by_phase.values())
        started = time.perf_counter()
        losses.append(optimizer_step(stack, batches, lambda phase: None))
        self.device.synchronize()
        self._step += 1
        return time.perf_counter() - started

    def _is_too_slow(self) -> bool:
        """True, on every rank alike, if a step is longer than the limit, by what was timed."""
        limit_s = self.spec.give_up_above_s
        assert limit_s is not None
        accumulation = self.spec.settings.gradient_accumulation_steps
        times = {
            int(count): self._of_slowest_rank(mine)
            for count, mine in self.record.step_times_s.items()
        }
        # of a rank alone only computing counts: what it would wait for is not known here; and the
        # copies are only timed where it matters
        if self._alone is not None and least_s(times, accumulation) > limit_s:
            before = self.device.allocation_retries()
            times = self._alone.computing_s()
            self._retries_of_copies = self.device.allocation_retries() - before
        return least_s(times, accumulation) > limit_s

    def _of_slowest_rank(self, seconds: list[float]) -> list[float]:
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self.device.torch_device)
        if self.spec.world_size > 1:
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return [float(value) for value in slowest.tolist()]

    def _note_losses(self, losses: list[torch.Tensor]) -> None:
        if self._alone is not None:
            return  # without peers it says nothing: parameters and gradients are this rank's alone
        self.phase.name = INSTRUMENT
        means = torch.stack(losses).double()
        if self.spec.data_parallel_size > 1:
            # Ranks of one tensor-parallel group have the same loss, so this is the mean over all: a
            # group of the data-parallel ones alone would have a communicator that training has not.
            dist.all_reduce(means)
            means /= self.spec.world_size
        self.record.losses.extend(means.tolist())
        if not all(map(math.isfinite, self.record.losses + self.record.gradient_norms)):
            raise NonFiniteLossError(f"losses {self.record.losses[:4]}")

    def _batches(self, count: int) -> list[torch.Tensor]:
        data_rank = self.spec.data_parallel_rank(self.rank)
        batches = micro_batches(self.spec, step=self._step, count=count, data_rank=data_rank)
        return [batch.to(self.device.torch_device) for batch in batches]


def local_bytes(tensors: Iterable[torch.Tensor], device_type: str) -> int:
    sizes = {}
    for tensor in tensors:
        for plain in plain_tensors(tensor):  # to detach torchao's copies a part of it
            storage = plain.untyped_storage()
            if storage.device.type == device_type:
                sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
