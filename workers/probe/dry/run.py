"""One dry run: build the stack once, warm up, then one tracked step per count and size."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from workers.probe.checkpointing import host_bytes
from workers.probe.dry.fake import FakeMode
from workers.probe.dry.ledger import LOSS, Category, Ledger, Progress, Segment
from workers.probe.dry.substitutes import substituted, with_numbers
from workers.probe.dry.trace import (
    AFTER,
    BEFORE,
    DdpBuckets,
    Tracked,
    TrackedSteps,
    trace_of,
    turning_points,
    unsharded_gradients,
)
from workers.probe.dry.work import Work, work_of
from workers.probe.model import build_on_meta, decoder_layers, micro_batches, vocabulary
from workers.probe.optimizers import in_host_memory
from workers.probe.quantized import scales
from workers.probe.spec import Request, Spec
from workers.probe.stack import Stack, build_stack, optimizer_step
from workers.probe.tracker import INSTRUMENT, Phase

# The part of the model that each phase begins in.
FIRST_PART = {"forward": BEFORE, LOSS: AFTER, "backward": AFTER, "optimizer": AFTER}


class FakeDevice:
    """A place for fake tensors, counted as the allocator of a device of ``kind`` would.

    What differs between kinds and is followed here: on CUDA optimizers work on all parameters at
    once (``foreach``) and keep their step counts on the host; attention is computed operator by
    operator where the device has no fused kernel for it; on a CPU gloo copies what it scatters.
    What is not: a fused kernel of attention is CPU's on CUDA too. It keeps for backward what flash
    attention, cuDNN's kernel and the efficient one keep (q, k, v, a mask, the output, and one
    float32 per head and token), and what their backward takes beside it is not counted, cuDNN's
    above all, which is not known; autocast of forward without FSDP follows CPU's list of operators;
    cuBLAS's workspace is not counted.
    """

    is_fake = True

    def __init__(
        self, phase: Phase, kind: str, progress: Progress, *, sees_images: bool = False
    ) -> None:
        # CPU's for both kinds: autograd of a build of torch without CUDA aborts the process on
        # fake CUDA tensors
        self.torch_device = torch.device("cpu")
        self.foreach: bool | None = True if kind == "cuda" else None
        self.tracker = Ledger(phase, progress, over_gloo=kind == "cpu")
        self._mode = FakeMode(keeps_indices=sees_images)

    def memory(self) -> AbstractContextManager[object]:
        mode: AbstractContextManager[object] = self._mode
        return mode


class DryRun:
    def __init__(self, request: Request, progress: Progress) -> None:
        self.request = request
        self.phase = Phase()
        sees_images, kind = request.spec.image_tokens > 0, request.spec.device
        self.device = FakeDevice(self.phase, kind, progress, sees_images=sees_images)
        self._progress = progress
        self._stack: Stack
        self._buckets: DdpBuckets

    def run(self) -> dict[str, Any] | None:
        """Build the stack, run its steps, and return the trace as JSON's values.

        None is made of the shallower copy of a model that its copies do not show; that of the
        deeper one is the whole model's. Raises whatever the stack raises.
        """
        started = time.perf_counter()
        self._enter("build")
        task = self.request.spec.task
        if self.request.copies and not show_whole(*self.request.copies, task=task):
            _, deeper, whole = self.request.copies
            if self.request.spec.model != deeper:
                return None
            self.request = replace(self.request, spec=replace(self.request.spec, model=whole))
        request, ledger, spec = self.request, self.device.tracker, self.request.spec
        sizes, counts = request.micro_batch_sizes, request.accumulation_counts
        stack = self._stack = build_stack(request.at(sizes[0], counts[0]), self.device)
        substitutes = substituted(
            spec.device,
            spec.attention_backends,
            packs=len((spec.packing or {}).get("documents", ())) > 1,
        )
        numbers = with_numbers(stack.model) if spec.image_tokens else nullcontext()
        with numbers, substitutes as fallbacks, self.device.memory(), ledger:
            model: Any = stack.model
            held = [*model.parameters(), *model.buffers(), *scales(model)]
            self._own(held, Category.PARAMETERS)
            # what the ledger cannot see: the vocabulary, groups, and the model's parts
            rows = vocabulary(spec.model)
            ledger.vocabulary = frozenset({rows, -(-rows // spec.settings.tp_size)})
            axes = stack.axis_names()
            ledger.data_groups = frozenset(g for g, axis in axes.items() if axis.startswith("dp"))
            follow(stack.decoder_layers(), self.phase, self._enter_part)
            stack.output_head().register_forward_pre_hook(self._start_loss, prepend=True)
            self._buckets = DdpBuckets(stack, ledger)
            # untracked: after it the optimizer's state is there
            self._step(request.at(sizes[0], counts[0]))
            if request.counts_work:
                ledger.work = Work(spec.sequence_length)
            steps, done = [], []
            for count in counts:
                at_sizes = []
                for size in sizes:
                    at_sizes.append(self._step(request.at(size, count)))
                    if ledger.work is not None and count == counts[0]:
                        done.append(ledger.work.found)
                steps.append(TrackedSteps(count, at_sizes))
        trace = trace_of(request, stack, self._buckets, steps)
        trace["notes"] += fallbacks.notes()
        if done:
            trace |= work_of(done, stack.model)
        trace["seconds"] = time.perf_counter() - started
        return trace

    def _step(self, spec: Spec) -> Tracked:
        """One optimizer step: its turning points by segment, and its collectives."""
        ledger, stack = self.device.tracker, self._stack
        count = spec.accumulation_counts[0]
        stack.set_accumulation(count)
        self._enter(INSTRUMENT)
        batches = micro_batches(spec, step=0, count=count, data_rank=0)
        for batch in batches:
            ledger.add(batch)
        self.phase.micro_batch = 0
        ledger.start_log()
        if ledger.work is not None:
            ledger.work.start(batches[0].numel())
        on_host = host_bytes(stack.decoder_layers())
        optimizer_step(stack, batches, self._enter)
        if ledger.work is not None:
            ledger.work.to_host((host_bytes(stack.decoder_layers()) - on_host) / count)
        state = stack.state_tensors()
        if self.request.spec.device == "cuda":
            name, states = self.request.spec.optimizer, stack.optimizer.state.values()
            outside = {id(t): t for t in in_host_memory(name, states)}
            ledger.drop(outside.values())
            state = [t for t in state if id(t) not in outside]
        self._own(state, Category.OPTIMIZER_STATE)
        return turning_points(ledger.log), list(ledger.calls)

    def _enter(self, name: str) -> None:
        if name == "optimizer":  # all of backward's gradients are there, and none is freed yet
            self._buckets.end_backward()
            ledger, model = self.device.tracker, self._stack.model
            own = Category.GRADIENTS_UNSHARDED
            if self.request.spec.is_sharded:
                ledger.assign(unsharded_gradients(model), own)
                own = Category.GRADIENTS_SHARDED
            ledger.assign([p.grad for p in model.parameters() if p.grad is not None], own)
        if name == "backward":
            self._buckets.start_backward()
        self.phase.name = name
        self._progress.enter(name)
        self.phase.micro_batch += name == "forward"
        if name in FIRST_PART:
            self._enter_part(FIRST_PART[name])

    def _start_loss(self, *_: Any) -> None:
        if self.phase.name == "forward":  # not where backward runs forward again
            self._enter(LOSS)

    def _enter_part(self, part: str) -> None:
        segment = Segment(self.phase.micro_batch - 1, self.phase.name, part)
        self.device.tracker.mark(segment)

    def _own(self, tensors: list[torch.Tensor], category: Category) -> None:
        for tensor in tensors:
            self.device.tracker.add(tensor)
        self.device.tracker.assign(tensors, category)


def show_whole(
    low: dict[str, Any], high: dict[str, Any], whole: dict[str, Any], *, task: str = "causal_lm"
) -> bool:
    """Tells whether a model's parts grow on a straight line through two depths to the whole.

    Parts are modules, told apart by class and by the shapes of their parameters, and the kinds of
    layers that the configuration's own class lists: so this needs no knowledge of the type.
    """
    models = [build_on_meta(config, torch.bfloat16, task=task) for config in (low, high, whole)]
    first, second, last = (len(decoder_layers(model)) for model in models)
    here, there, then = (
        Counter[object](
            (type(module), *(p.shape for p in module.parameters(recurse=False)))
            for module in model.modules()
        )
        + Counter(getattr(model.config.get_text_config(), "layer_types", None) or ())
        for model in models
    )
    # a copy that is as deep as the whole (its layers are in a field of another name) shows nothing
    return first < second < last and all(
        (then[part] - here[part]) * (second - first) == (there[part] - here[part]) * (last - first)
        for part in here | there | then
    )


def follow(layers: list[nn.Module], phase: Phase, enter: Callable[[str], None]) -> None:
    """Tells, by hooks that leave the graph as it is, when another part of the model computes.

    Forward goes through before, ``layer 0`` and so on, after; backward the other way. A
    layer's backward begins when the gradient of its output is there.
    """

    def on_gradient(tree: Any, name: str) -> None:
        # of the first tensor that gets one
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda _: enter(name))
                return

    # each passes over the forward that backward runs again
    def starts(*_: Any, name: str) -> None:
        if phase.name == "forward":
            enter(name)

    def ends(_: nn.Module, __: Any, output: Any, *, name: str, last: bool) -> None:
        if phase.name == "forward":
            if last:
                enter(AFTER)
            on_gradient(output, name)

    def embedded(_: nn.Module, args: Any, kwargs: Any) -> None:
        if phase.name == "forward":
            on_gradient((args, kwargs.get("hidden_states")), BEFORE)

    for index, layer in enumerate(layers):
        name, last = f"layer {index}", layer is layers[-1]
        layer.register_forward_pre_hook(partial(starts, name=name), prepend=True, with_kwargs=True)
        layer.register_forward_hook(partial(ends, name=name, last=last))
    layers[0].register_forward_pre_hook(embedded, prepend=True, with_kwargs=True)
