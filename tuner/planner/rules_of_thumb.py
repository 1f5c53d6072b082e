"""The order in which settings of a model that is not named are tried: simple rules, no figures.

They only say which settings come first. What is answered of such a model is from probes alone.
"""

from math import log, log2

from tuner.quantity import Provenance, Quantity
from tuner.settings import FSDP, Checkpointing, Settings, Sharding
from tuner.study import Question

UNSURE = 2.0
"""Standard deviation of the logarithm of a need: a factor of seven."""
SHARE = 0.25
"""Of a device's memory that one sequence is taken to need, for want of anything better."""


def need_by_rule(question: Question, settings: Settings) -> tuple[float, float]:
    """Logarithm of the bytes that are taken to be needed, and its error."""
    share = SHARE * settings.micro_batch_size**0.5
    share *= 0.5 if settings.activation_checkpointing is Checkpointing.FULL else 1.0
    share *= 0.5 if settings.sharding in FSDP else 1.0
    share /= settings.tp_size**0.5
    return log(share * question.cluster.gpu.memory_bytes), UNSURE


def step_by_rule(settings: Settings) -> Quantity:
    """An optimizer step's length beside those of other settings; it has no unit."""
    count = settings.gradient_accumulation_steps
    length = 1 + 0.1 * log2(count)
    length *= 1.3 if settings.activation_checkpointing is Checkpointing.FULL else 1.0
    length *= 1.1 if settings.sharding in (Sharding.FULL_SHARD, Sharding.HYBRID_SHARD) else 1.0
    length *= 1.05 if settings.sync_each_batch and count > 1 else 1.0
    length *= 1 + 0.1 * log2(settings.tp_size * settings.pp_size)
    length *= 2.0 if settings.cpu_offload else 1.0
    return Quantity(value=length, low=length / 2, high=length * 2, provenance=Provenance.PREDICTED)
