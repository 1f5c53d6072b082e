"""One dry run: build the stack once, warm up, then one tracked step per count and size."""

import time
from typing import Any

import torch

from workers.probe import mesh as meshes
from workers.probe.data import micro_batches
from workers.probe.dry.ddp import Casts
from workers.probe.dry.device import FakeDevice
from workers.probe.dry.kernels import kernels_of
from workers.probe.dry.ledger import Category, Segment
from workers.probe.dry.masks import unpacked_sequences
from workers.probe.dry.parts import AFTER, BEFORE, follow, follow_loss
from workers.probe.dry.progress import Progress
from workers.probe.dry.ranges import without_ranges
from workers.probe.dry.request import Request
from workers.probe.dry.trace import Step, trace_of
from workers.probe.dry.turning_points import turning_points
from workers.probe.dry.units import unsharded_gradients
from workers.probe.spec import Spec
from workers.probe.stack import Stack, build_stack
from workers.probe.step import optimizer_step
from workers.probe.tracker import INSTRUMENT, Phase

FIRST_PART = {"forward": BEFORE, "loss": AFTER, "backward": AFTER, "optimizer": AFTER}
"""The part of the model that each phase begins in."""


class DryRun:
    """A dry run of one request, in a process group that is fake already.

    Args:
        request: what to run.
        progress: told each phase and operator.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self.request = request
        self.phase = Phase()
        self.device = FakeDevice(self.phase, request.spec.device, progress)
        self._progress = progress
        self._sharded = request.spec.is_sharded
        self._stack: Stack
        self._casts: Casts

    def run(self) -> dict[str, Any]:
        """Build the stack, run its steps, and return the trace as JSON's values.

        The first step is untracked: after it the optimizer's state is there.

        Raises whatever the stack raises.
        """
        started = time.perf_counter()
        request, ledger = self.request, self.device.tracker
        sizes, counts = request.micro_batch_sizes, request.accumulation_counts
        self._enter("build")
        self._stack = build_stack(request.at(sizes[0], counts[0]), self.device)
        kernels = kernels_of(request.spec.device, request.spec.attention_backends)
        with unpacked_sequences(), without_ranges(), kernels, self.device.memory(), ledger:
            model = self._stack.model
            self._own([*model.parameters(), *model.buffers()], Category.PARAMETERS)
            self._name_things()
            self._casts = Casts(self._stack, ledger)
            self._step(request.at(sizes[0], counts[0]))
            steps = [
                Step(count, [self._step(request.at(size, count)) for size in sizes])
                for count in counts
            ]
        trace = trace_of(request, self._stack, steps)
        trace["seconds"] = time.perf_counter() - started
        return trace

    def _name_things(self) -> None:
        """Tell the ledger what it cannot see: the vocabulary, groups, and the model's parts."""
        spec, ledger, model = self.request.spec, self.device.tracker, self._stack.model
        vocabulary = int(spec.model["vocab_size"])
        ledger.vocabulary = frozenset({vocabulary, -(-vocabulary // spec.settings.tp_size)})
        axes = meshes.axis_names(self._stack.mesh)
        ledger.data_groups = frozenset(g for g, axis in axes.items() if axis.startswith("dp"))
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        follow(self._stack.decoder_layers(), self.phase, self._enter_part)
        follow_loss(head, self.phase, self._enter)

    def _step(self, spec: Spec) -> Any:
        """One optimizer step: its turning points by segment, and its collectives."""
        ledger, stack = self.device.tracker, self._stack
        count = spec.accumulation_counts[0]
        stack.set_accumulation(count)
        batches = self._batches(spec)
        self.phase.micro_batch = 0
        ledger.start_log()
        optimizer_step(stack, batches, self._enter)
        self._own_state()
        return turning_points(ledger.log), list(ledger.calls)

    def _batches(self, spec: Spec) -> list[torch.Tensor]:
        self._enter(INSTRUMENT)
        batches = micro_batches(spec, step=0, count=spec.accumulation_counts[0], data_rank=0)
        for batch in batches:
            self.device.tracker.add(batch)
        return batches

    def _enter(self, name: str) -> None:
        if name == "optimizer":  # all of backward's gradients are there, and none is freed yet
            self._casts.end()
            self._assign_gradients()
        if name == "backward":
            self._casts.start()
        self.phase.name = name
        self._progress.enter(name)
        self.phase.micro_batch += name == "forward"
        if name in FIRST_PART:
            self._enter_part(FIRST_PART[name])

    def _enter_part(self, part: str) -> None:
        segment = Segment(self.phase.micro_batch - 1, self.phase.name, part)
        self.device.tracker.mark(segment)

    def _assign_gradients(self) -> None:
        ledger, model = self.device.tracker, self._stack.model
        held = Category.GRADIENTS_UNSHARDED
        if self._sharded:
            held = Category.GRADIENTS_SHARDED
            ledger.assign(unsharded_gradients(model), Category.GRADIENTS_UNSHARDED)
        ledger.assign([p.grad for p in model.parameters() if p.grad is not None], held)

    def _own(self, tensors: list[torch.Tensor], category: Category) -> None:
        for tensor in tensors:
            self.device.tracker.add(tensor)
        self.device.tracker.assign(tensors, category)

    def _own_state(self) -> None:
        """On CUDA torch's optimizers keep their step counts, scalars, in host memory."""
        state = self._stack.state_tensors()
        if self.request.spec.device == "cuda":
            self.device.tracker.drop(t for t in state if t.dim() == 0)
            state = [t for t in state if t.dim() > 0]
        self._own(state, Category.OPTIMIZER_STATE)
