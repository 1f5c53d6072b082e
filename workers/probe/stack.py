"""The user's stack around the model: accelerate, with FSDP2 or DDP, as the configuration says.

The probe runs what users run: ``Accelerator.accumulate`` with a ``GradientAccumulationPlugin``,
and accelerate's own FSDP2 wrapping. Two things differ from a training script. The model is built
on the meta device and filled after it is sharded, so that a model fits that is larger than one
device. And the plugin is put into accelerate's state by hand, because accelerate passes over FSDP
on a CPU.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    ParallelismConfig,
)
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from transformers import PreTrainedModel

from workers.probe import tensor_parallel
from workers.probe.batches import attention_name, batch_of, labelled, with_images
from workers.probe.checkpointing import checkpoint_layers
from workers.probe.ddp import DdpAlone
from workers.probe.device import TensorPlace
from workers.probe.group import is_fake_group
from workers.probe.model import (
    WeightFiller,
    add_adapter,
    build_on_meta,
    check_experts,
    decoder_layers,
    freeze,
    move_buffers,
    output_head,
    set_loss,
)
from workers.probe.optimizers import make_optimizer
from workers.probe.quantized import add_empty_scales, shape_only
from workers.probe.spec import Spec

# Mesh axes whose ranks see different data.
DATA_AXES = ("dp", "dp_shard", "dp_replicate")
# Told the name of each phase as it begins: forward, backward, optimizer.
EnterPhase = Callable[[str], None]
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_WEIGHTS = {"bf16": torch.bfloat16, "bf16_mixed": torch.float32, "fp32": torch.float32}


@dataclass(slots=True, kw_only=True)
class Stack:
    """Everything that one optimizer step needs."""

    spec: Spec
    accelerator: Accelerator
    model: nn.Module
    optimizer: Any  # an `AcceleratedOptimizer`, which steps only where gradients are synchronised
    mesh: DeviceMesh | None
    optimizer_steps: int = 0  # times that the inner optimizer really stepped, by its own hook

    def set_accumulation(self, count: int) -> None:
        self.accelerator.gradient_accumulation_steps = count
        self.accelerator.step = 0

    def batch(self, tokens: torch.Tensor) -> dict[str, Any]:
        spec = self.spec
        if spec.image_tokens:
            inner: Any = getattr(self.model, "module", self.model)
            return {**with_images(tokens, inner.config, spec.image_tokens), "use_cache": False}
        if spec.task != "causal_lm":
            return labelled(tokens, spec.task, spec.model)
        width = torch.float32 if spec.precision == "fp32" else torch.bfloat16
        return {**batch_of(tokens, spec.packing, width), "use_cache": False}

    def defer_all_reduce(self) -> None:
        """Where that is asked for, reduce the next micro-batch's gradients over replicas only if it
        is the step's last. To be called inside of ``accumulate``, which counts micro-batches."""
        if self.spec.settings.defer_all_reduce:
            model: Any = self.model
            model.set_requires_all_reduce(self.accelerator.sync_gradients)

    @contextlib.contextmanager
    def compute(self) -> Iterator[None]:
        """The number format of forward: autocast where nothing else casts."""
        tensor_parallel_alone = self.spec.settings.tp_size > 1 and not self.spec.is_sharded
        casts = self.spec.precision == "bf16_mixed" and tensor_parallel_alone
        context = self.accelerator.autocast() if casts else contextlib.nullcontext()
        with context:
            yield

    def finish_gradients(self) -> None:
        """Sum what tensor parallelism left to sum, once per optimizer step."""
        if self.spec.settings.tp_size > 1:
            tensor_parallel.reduce_partial_gradients(self.model.parameters())

    def decoder_layers(self) -> list[nn.Module]:
        inner: Any = getattr(self.model, "module", self.model)  # inside of DDP, or its stand-in
        return decoder_layers(inner)

    def output_head(self) -> nn.Module:
        return output_head(getattr(self.model, "module", self.model))

    def state_tensors(self) -> list[torch.Tensor]:
        states = self.optimizer.state.values()
        return [t for state in states for t in state.values() if torch.is_tensor(t)]

    def axis_names(self) -> Mapping[str, str]:
        """Name of the mesh axis of each process group, by the group's name.

        The group of all ranks is ``dp`` unless an axis of the mesh spans it.
        """
        names: dict[str, str] = {}
        if dist.group.WORLD is not None:
            names[dist.group.WORLD.group_name] = "dp"
        if self.mesh is not None:
            axes = self.mesh.mesh_dim_names or ()
            # accelerate shards over an axis joined from ``dp_shard`` and its context-parallel
            # axis, which is not used here: the two names mean the same ranks
            if "dp_shard" in axes:
                names[self.mesh["dp_shard_cp"].get_group().group_name] = "dp_shard"
            names |= {self.mesh.get_group(axis).group_name: axis for axis in axes}
        return names


def optimizer_step(
    stack: Stack,
    batches: Sequence[torch.Tensor],
    enter: EnterPhase,
    before_optimizer: Callable[[], None] | None = None,
) -> torch.Tensor:
    """Train on ``batches`` and step the optimizer once, as a script with accelerate does.

    Returns:
        The mean loss of this rank's micro-batches, a scalar on the device, detached.
    """
    total = torch.zeros((), device=batches[0].device)
    for tokens in batches:
        with stack.accelerator.accumulate(stack.model):
            stack.defer_all_reduce()
            enter("forward")
            batch = stack.batch(tokens)
            with stack.compute():
                loss = stack.model(**batch).loss
            total += loss.detach()
            enter("backward")
            stack.accelerator.backward(loss)
            del loss, batch
            if stack.accelerator.sync_gradients:
                stack.finish_gradients()
                if before_optimizer is not None:
                    before_optimizer()
            enter("optimizer")
            stack.optimizer.step()
            stack.optimizer.zero_grad()
    return total / len(batches)


def build_stack(spec: Spec, place: TensorPlace) -> Stack:
    """Build, shard, fill and wrap the model and its optimizer. Raises ValueError,
    NotImplementedError, ImportError: the stack refuses the configuration."""
    # accelerate keeps its state for the process: it is another probe's
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(
        cpu=place.torch_device.type == "cpu",
        mixed_precision="bf16" if spec.precision == "bf16_mixed" else "no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=spec.accumulation_counts[-1],
            sync_each_batch=spec.settings.sync_each_batch,
            sync_with_dataloader=False,
        ),
        kwargs_handlers=[DistributedDataParallelKwargs()],
    )
    mesh = _mesh(spec, accelerator, place)
    weights, mixed = _WEIGHTS[spec.precision], spec.precision == "bf16_mixed"
    if spec.adapter is not None and mixed:
        weights = torch.bfloat16  # what is frozen needs no more
    attention = attention_name(spec.packing, place.torch_device)
    model = build_on_meta(spec.model, weights, attention, spec.task)
    # autocast passes over a grouped product of experts, FSDP2 casts what it is made of
    casts = spec.is_sharded and mixed
    check_experts(model, torch.bfloat16 if casts else weights)
    checkpoint_layers(model, spec.settings.activation_checkpointing)
    if spec.settings.tp_size > 1:
        assert mesh is not None
        tensor_parallel.parallelize(
            model,
            mesh["tp"],
            recompute_allgather=spec.settings.tp_recompute_allgather,
            style=spec.tensor_parallel,
            widens=spec.loss != "own_dtype",
        )
    if spec.settings.tp_size == 1 or spec.tensor_parallel == tensor_parallel.GATHERED:
        set_loss(model, spec.loss, fused_by=spec.fused_by)
    freeze(model, spec.frozen)
    if spec.adapter is not None:
        checkpointed = spec.settings.activation_checkpointing != "none"
        model = add_adapter(model, spec.adapter, trains_fp32=mixed, checkpointed=checkpointed)
        if place.is_fake:
            shape_only(model)
    shard_rank = mesh["dp_shard"].get_local_rank() if mesh is not None and spec.is_sharded else 0
    filler = WeightFiller(
        model,
        seed=spec.seed,
        device=place.torch_device,
        shard_rank=shard_rank,
        shard_size=spec.shard_size,
    )
    move_buffers(model, place.torch_device)
    if spec.is_sharded:
        layers = decoder_layers(model)
        if not layers:
            raise ValueError(f"{type(model).__name__} names no decoder layer to shard")
        plugin = accelerator.state.fsdp_plugin
        plugin.transformer_cls_names_to_wrap = [type(layers[0]).__name__]
        accelerator._models.append(model)
        fsdp2_prepare_model(accelerator, model)
    with place.memory():
        # parameters get undefined memory; buffers, which are real, stay
        device = torch.device("cpu") if spec.settings.cpu_offload else place.torch_device
        buffers = {id(b): b for b in model.buffers()}
        model._apply(
            lambda t: t if id(t) in buffers else torch.empty_like(t, device=device), recurse=True
        )
        if not spec.is_sharded and spec.settings.tp_size == 1:
            model.tie_weights()  # new memory for plain tensors unties them
        if place.is_fake:
            add_empty_scales(model)
        else:
            filler.fill(model, sharded=spec.is_sharded)
        optimizer = make_optimizer(
            spec.optimizer, model, foreach=place.foreach, updates=not place.is_fake
        )
        wrapped: nn.Module = model
        if not spec.is_sharded and spec.settings.tp_size == 1:
            wrapped = _replicated(spec, accelerator, model, place)
        stack = Stack(
            spec=spec,
            accelerator=accelerator,
            model=wrapped,
            optimizer=accelerator.prepare_optimizer(optimizer, device_placement=False),
            mesh=mesh,
        )

    def count(*_: object) -> None:
        stack.optimizer_steps += 1

    optimizer.register_step_post_hook(count)
    return stack


def check_mesh(spec: Spec) -> None:
    """Refuses sizes of axes that have no mesh. Raises ValueError: ddp beside tensor parallelism, or
    sharding over one rank of each node."""
    if spec.data_parallel_size > 1 and not spec.is_sharded:
        # no axis would be left for the replicas
        raise ValueError(
            f"ddp with tp_size {spec.settings.tp_size} and {spec.data_parallel_size} data-parallel"
            " ranks: DistributedDataParallel takes no DTensor parameters"
        )
    if spec.is_sharded and spec.shard_size == 1:  # accelerate makes no axis for that
        raise ValueError(
            f"{spec.settings.sharding} with tp_size {spec.settings.tp_size} and"
            f" {spec.gpus_per_node} ranks in a node: no ranks are left to shard over"
        )


def _mesh(spec: Spec, accelerator: Accelerator, place: TensorPlace) -> DeviceMesh | None:
    """The mesh, where sharding or tensor parallelism needs one; put into accelerate's state.

    Replicas of nodes are its outermost axis, shards within them the next, tensor parallelism the
    innermost.
    """
    if not spec.is_sharded and spec.settings.tp_size == 1:
        return None
    check_mesh(spec)
    config = ParallelismConfig(
        dp_replicate_size=spec.replicate_size,
        dp_shard_size=spec.shard_size,
        tp_size=spec.settings.tp_size,
    )
    mesh: DeviceMesh | None = config.build_device_mesh(place.torch_device.type)
    if spec.is_sharded:
        # On CUDA ``Accelerator(fsdp_plugin=...)`` does the same. On a CPU accelerate ignores the
        # plugin; and setting only one of the two states lets ``sync_each_batch`` silently do
        # nothing, which is why collectives are counted.
        _set_distributed_type(accelerator, DistributedType.FSDP)
        # accelerate's own default also casts the output, the loss with it, to bf16: too coarse to
        # compare, and nothing else depends on it
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if spec.precision == "bf16_mixed" else None,
            reduce_dtype=_DTYPES[spec.reduce_dtype],
        )
        offload = OffloadPolicy()
        if spec.settings.cpu_offload:  # pages can be pinned for a CUDA device only
            offload = CPUOffloadPolicy(pin_memory=spec.device == "cuda")
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=spec.settings.sharding != "shard_grad_op",
            auto_wrap_policy="transformer_based_wrap",
            mixed_precision_policy=policy,
            cpu_offload=offload,
            cpu_ram_efficient_loading=False,
        )
        accelerator.state.parallelism_config = config
        accelerator.state.device_mesh = mesh
    return mesh


def _replicated(
    spec: Spec, accelerator: Accelerator, model: PreTrainedModel, place: TensorPlace
) -> nn.Module:
    """The model with autocast, and in DDP on several ranks, or in what stands for it."""
    wrapped: nn.Module
    if spec.data_parallel_size > 1 and not is_fake_group():
        wrapped = accelerator.prepare_model(model, device_placement=False)
        _set_reduce_dtype(spec, wrapped)
        return wrapped
    # DDP's C++ reducer wants real peers: accelerate is told that there are none. By the variables
    # of a launcher it would take one rank for several, which ``accelerate launch`` sets for none.
    before = accelerator.state.distributed_type
    _set_distributed_type(accelerator, DistributedType.NO)
    try:
        wrapped = accelerator.prepare_model(model, device_placement=False)
    finally:
        _set_distributed_type(accelerator, before)
    if place.is_fake or spec.data_parallel_size == 1:
        return wrapped
    return DdpAlone(wrapped, _cast_of_gradients(spec))


def _set_distributed_type(accelerator: Accelerator, kind: DistributedType) -> None:
    PartialState._shared_state["distributed_type"] = kind
    accelerator.state.distributed_type = kind


def _cast_of_gradients(spec: Spec) -> torch.dtype | None:
    """The dtype that DDP's gradients are cast to for their reduction, or ``None``."""
    reduce_dtype = _DTYPES[spec.reduce_dtype]
    return None if reduce_dtype == _WEIGHTS[spec.precision] else reduce_dtype


def _set_reduce_dtype(spec: Spec, model: nn.Module) -> None:
    """Reduce DDP's gradients in ``reduce_dtype`` where it is not their own."""
    reduce_dtype = _cast_of_gradients(spec)
    if reduce_dtype is None or not isinstance(model, nn.parallel.DistributedDataParallel):
        return
    works: list[dist.Work] = []

    def forget() -> None:
        # ProcessGroupNCCL keeps what was sent until it is waited for, or else until its watchdog,
        # which looks ten times a second, has seen the end and another collective begins. DDP waits
        # for the future alone: how long casts lived would be left to chance. This waits on the
        # stream, like DDP, which does so next, before anything else is allocated there.
        for work in works:
            work.wait()
        works.clear()

    def reduce(
        group: dist.ProcessGroup | None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        cast = bucket.buffer().to(reduce_dtype).div_(dist.get_world_size(group))
        work = dist.all_reduce(cast, group=group, async_op=True)
        assert work is not None
        if not works:  # at the end of this backward
            Variable._execution_engine.queue_callback(forget)
        works.append(work)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(
            lambda done: bucket.buffer().copy_(done.value()[0])
        )
        return future

    model.register_comm_hook(None, reduce)
