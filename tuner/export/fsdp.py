"""What FSDP2 and DDP must be told, whoever tells them: shared by all formats that reach them."""

from collections.abc import Mapping

from tuner.cluster import Device
from tuner.export.ranks import has_data_parallel_ranks
from tuner.model import ModelConfig
from tuner.settings import FSDP, Checkpointing, Settings, Sharding
from tuner.study import Question
from tuner.workload import Precision, ReduceDtype

LAYER_CLASSES: Mapping[str, str] = {
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen2_moe": "Qwen2MoeDecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "qwen3_moe": "Qwen3MoeDecoderLayer",
    "gemma": "GemmaDecoderLayer",
    "gemma2": "Gemma2DecoderLayer",
    "gemma3_text": "Gemma3DecoderLayer",
    "phi": "PhiDecoderLayer",
    "phi3": "Phi3DecoderLayer",
    "gpt2": "GPT2Block",
    "gpt_neox": "GPTNeoXLayer",
    "olmo2": "Olmo2DecoderLayer",
    "smollm3": "SmolLM3DecoderLayer",
}
"""Class of the decoder's blocks by ``model_type``, which FSDP shards one by one: transformers'
``_no_split_modules``."""

DTYPES: Mapping[ReduceDtype, str] = {
    ReduceDtype.BF16: "torch.bfloat16",
    ReduceDtype.FP32: "torch.float32",
}
"""Number formats as Python names them."""

REDUCE_HOOK = """\


def reduce_gradients(group, bucket):
    total = bucket.buffer().to({dtype}).div_(dist.get_world_size(group))
    future = dist.all_reduce(total, group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))
"""
"""A communication hook for DDP. torch's ``bf16_compress_hook`` does the same, but it is refused on
a CPU."""


def is_sharded(question: Question, settings: Settings) -> bool:
    """Whether FSDP2 wraps the model: as in the probe, not where no ranks see different data."""
    return settings.sharding in FSDP and has_data_parallel_ranks(question, settings)


def weights(question: Question) -> ReduceDtype:
    """Number format of weights, and so of gradients."""
    full = question.workload.precision is Precision.BF16
    return ReduceDtype.BF16 if full else ReduceDtype.FP32


def ddp_reduce_dtype(question: Question, settings: Settings) -> ReduceDtype | None:
    """The number format in which DDP must reduce, if it is another than the gradients' own."""
    reduce = question.workload.reduce_dtype
    if is_sharded(question, settings) or not has_data_parallel_ranks(question, settings):
        return None
    return None if reduce is weights(question) else reduce


def policy(question: Question, settings: Settings) -> str:
    """Arguments of FSDP's ``MixedPrecisionPolicy``, as code; empty without FSDP, or where its
    defaults are the probe's.
    """
    if not is_sharded(question, settings):
        return ""
    reduce = question.workload.reduce_dtype
    assert reduce is not None
    if question.workload.precision is Precision.BF16_MIXED:
        return f"param_dtype=torch.bfloat16, reduce_dtype={DTYPES[reduce]}"
    return "" if reduce is weights(question) else f"reduce_dtype={DTYPES[reduce]}"


def draws_random_numbers(model: ModelConfig) -> bool:
    """Whether a layer's forward is not the same twice, as with dropout."""
    return any(
        value > 0 for name, value in model.fields.items() if "drop" in name or "jitter" in name
    )


def checkpoints_in_script(question: Question, settings: Settings) -> bool:
    """Whether the script, and not FSDP's plugin, must turn activation checkpointing on.

    accelerate's plugin can for FSDP only. There it causes the same collectives, the same peak
    memory and, to the last bit, the same losses as ``gradient_checkpointing_enable``, which the
    probe uses: compared over 2 ranks with a Llama. But accelerate wraps layers with
    ``preserve_rng_state=False`` (``fsdp2_apply_ac``), which gives wrong gradients where a layer
    draws random numbers.
    """
    if settings.activation_checkpointing is Checkpointing.NONE:
        return False
    return not is_sharded(question, settings) or draws_random_numbers(question.workload.model)


def is_passed_over(question: Question, settings: Settings) -> bool:
    """Whether accelerate would not shard at all: it ignores FSDP on a CPU."""
    return question.cluster.gpu.device is Device.CPU and is_sharded(question, settings)


def reshards(settings: Settings) -> bool:
    """Whether parameters are given back after forward, to be gathered again in backward."""
    return settings.sharding is not Sharding.SHARD_GRAD_OP
