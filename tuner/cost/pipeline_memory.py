"""Memory of nanotron's step: 1F1B pipelines, ZeRO 0 or 1, gradients accumulated in fp32.

Formulas: Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054) for what ZeRO shards, Narayanan
et al. 2021 (https://arxiv.org/abs/2104.04473) for micro-batches in flight, and nanotron's
``optim/gradient_accumulator.py`` for the fp32 buffers. Constants: ``catalog/costs.toml``.
"""

from dataclasses import dataclass

from tuner.cost.constants import Costs
from tuner.cost.stages import counts, stage_parameters, stages
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one rank of a stage. All but ``late_bytes`` are live at the peak of backward."""

    parameters_bytes: float
    """bf16 weights."""
    gradients_bytes: float
    """The fp32 buffer, bf16 gradients and buffers of their reduction."""
    optimizer_bytes: float
    """fp32 weights and moments."""
    activations_bytes: float
    """What forward keeps of the micro-batches in flight."""
    logits_bytes: float
    """Logits and the loss's copies of them."""
    late_bytes: float
    """Freed late, because another stream used it: reserved, not allocated."""

    @property
    def allocated_bytes(self) -> float:
        """Peak of what tensors take."""
        static = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return static + self.activations_bytes + self.logits_bytes

    @property
    def reserved_bytes(self) -> float:
        """Peak of what the allocator takes from the device."""
        return self.allocated_bytes + self.late_bytes


def stage_memory(
    workload: Workload, settings: Settings, world_size: int, costs: Costs, index: int = 0
) -> StageMemory:
    """Bytes of stage ``index``; the first usually needs most, having most in flight."""
    m, model, tp = costs.memory, workload.model, settings.tp_size
    stage = stages(model, settings.pp_size)[index]
    parameters = stage_parameters(model, stage) / tp
    dp = settings.data_parallel_size(world_size)
    shards = dp if settings.sharding is Sharding.ZERO1 else 1
    in_flight = min(settings.gradient_accumulation_steps, settings.pp_size - index)
    tokens = settings.micro_batch_size * workload.sequence_length
    channels = tokens * model.hidden_size
    layers = _kept_bytes(workload, settings) * stage.layers * in_flight
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


def _kept_bytes(workload: Workload, settings: Settings) -> float:
    """Bytes of one layer and micro-batch."""
    tokens, tp = settings.micro_batch_size * workload.sequence_length, settings.tp_size
    hidden = workload.model.hidden_size
    if settings.activation_checkpointing is Checkpointing.FULL:
        return 2.0 * tokens * hidden / tp
    kept = 2.0 * tokens * counts(workload.model).kept / tp
    if settings.tp_recompute_allgather or tp == 1:
        return kept
    return kept + 2 * 2.0 * tokens * hidden * (1 - 1 / tp)  # inputs of two linears stay gathered


def refused(workload: Workload, settings: Settings) -> str:
    """Why nanotron cannot run these settings, or nothing."""
    if settings.gradient_accumulation_steps < settings.pp_size - 1:
        return "1F1B needs at least pp_size - 1 micro-batches"
    if not all(stage.blocks for stage in stages(workload.model, settings.pp_size)):
        return "a pipeline stage is left without any part of the model"
    return ""
