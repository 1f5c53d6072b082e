"""How a model is cut into pipeline stages, and the counts that costs are made of."""

from dataclasses import dataclass
from functools import lru_cache

from tuner.core.cluster import Cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.workload import Workload
from tuner.cost.constants import Costs
from tuner.cost.memory.shards import axis_sizes
from tuner.cost.memory.tensors import counts
from tuner.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage: its layers and its end pieces."""

    layers: int  # decoder layers
    embedding: bool  # the token embedding
    head: bool  # the output head
    blocks: int  # parts of any kind, also those without parameters; a stage without any cannot run


@lru_cache(maxsize=1024)
def stages(model: ModelConfig, pp_size: int) -> tuple[Stage, ...]:
    """Stages as nanotron cuts them (``nanotron/models/base.py``, ``build_model``).

    Parts in order go to a stage until it has more than its share of the cost; layers and head
    cost their parameters, the embedding, the last norm, the cast and the loss nothing.
    """
    found = counts(model)
    parts = [("embedding", 0.0)] + [("layers", found.active)] * model.layers
    parts += [("norm", 0.0), ("head", float(found.embedding)), ("cast", 0.0), ("loss", 0.0)]
    total = sum(cost for _, cost in parts)
    held: list[list[str]] = [[] for _ in range(pp_size)]
    stage, done = 0, 0.0
    for name, cost in parts:
        held[stage].append(name)
        done += cost
        if done > total * (stage + 1) / pp_size * (1 + 1e-12) and stage < pp_size - 1:
            stage += 1
    return tuple(
        Stage(
            layers=names.count("layers"),
            embedding="embedding" in names,
            head="head" in names,
            blocks=len(names),
        )
        for names in held
    )


def stage_parameters(model: ModelConfig, stage: Stage) -> float:
    """Parameters of a stage, before tensor parallelism; a tied head counts beside no embedding."""
    found = counts(model)
    head = stage.head and not (model.tied_embeddings and stage.embedding)
    return stage.layers * found.layer + (stage.embedding + head) * found.embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one rank of a stage. All but ``late_bytes`` are live at the peak of backward."""

    parameters_bytes: float  # bf16 weights
    gradients_bytes: float  # the fp32 buffer, bf16 gradients and buffers of their reduction
    optimizer_bytes: float  # fp32 weights and moments
    activations_bytes: float  # what forward keeps of the micro-batches in flight
    logits_bytes: float  # logits and the loss's copies of them
    late_bytes: float  # freed late, because another stream used it: reserved, not allocated

    @property
    def allocated_bytes(self) -> float:
        static = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return static + self.activations_bytes + self.logits_bytes

    @property
    def reserved_bytes(self) -> float:
        return self.allocated_bytes + self.late_bytes


def stage_memory(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs, index: int = 0
) -> StageMemory:
    """Bytes of stage ``index``; the first usually needs most, having most in flight."""
    m, model, sizes = costs.memory, workload.model, axis_sizes(settings, cluster)
    tp = sizes.tp
    stage = stages(model, settings.pp_size)[index]
    parameters = stage_parameters(model, stage) / tp
    shards = sizes.dp if settings.sharding is Sharding.ZERO1 else 1
    in_flight = min(settings.gradient_accumulation_steps, settings.pp_size - index)
    tokens = settings.micro_batch_size * workload.sequence_length
    channels = tokens * model.hidden_size
    kept = 2.0 * tokens * model.hidden_size / tp  # bytes of one layer and micro-batch
    if settings.activation_checkpointing is not Checkpointing.FULL:
        kept = 2.0 * tokens * counts(model).kept / tp
        if not settings.tp_recompute_allgather and tp > 1:
            # inputs of two linears stay gathered
            kept = kept + 2 * 2.0 * tokens * model.hidden_size * (1 - 1 / tp)
    layers = kept * stage.layers * in_flight
    carried = m.in_flight_bytes + m.in_flight_sharded_bytes / tp
    more = m.tp_factor if tp > 1 else 0.0
    late = 0.0
    if tp > 1 and settings.pp_size > 1:
        megabytes = 2e-6 * channels / tp
        share = 1 / (1 + (m.fragment_from_mb / megabytes) ** 4)
        late = m.fragment_factor * share * layers
    elif tp > 1:
        batches = min(settings.gradient_accumulation_steps, 8) / 8
        late = m.gathered_bytes * batches * channels
    return StageMemory(
        parameters_bytes=m.weight_bytes * parameters,
        gradients_bytes=(m.accumulated_bytes + m.passing_bytes) * parameters,
        optimizer_bytes=m.master_bytes * parameters / shards,
        activations_bytes=layers * (m.activation_factor + more) + carried * in_flight * channels,
        logits_bytes=stage.head * m.logit_bytes * tokens * model.vocab_size / tp,
        late_bytes=late,
    )


def refused(workload: Workload, settings: Settings) -> str:
    """Why nanotron cannot run these settings, or nothing."""
    if settings.gradient_accumulation_steps < settings.pp_size - 1:
        return "1F1B needs at least pp_size - 1 micro-batches"
    if not all(stage.blocks for stage in stages(workload.model, settings.pp_size)):
        return "a pipeline stage is left without any part of the model"
    return ""
