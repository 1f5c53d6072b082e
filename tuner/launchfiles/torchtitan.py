"""torchtitan's TOML, where the settings have an equivalent.

Sections and fields are those of ``torchtitan/config/job_config.py`` in torchtitan 0.2.2, and 0.2.0
has them too; 0.3 and later read no TOML. What they cause was read in its ``train.py`` (gradients
are reduced after every micro-batch) and ``models/llama3/infra/parallelize.py``.
"""

import json
from collections.abc import Mapping
from typing import Any

from tuner.core.cluster import Device
from tuner.core.configuration import Settings, Sharding
from tuner.core.script import is_sharded
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles import contract as refusals
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    has_data_parallel_ranks,
    sync_acts,
    torchrun,
)
from tuner.launchfiles.fsdp import reshards, weights
from tuner.launchfiles.header import comments, header, provenance
from tuner.model import ModelConfig

FILE_NAME = "torchtitan.toml"

_DTYPES = {ReduceDtype.BF16: "bfloat16", ReduceDtype.FP32: "float32"}

# Name and flavor of torchtitan's models by type, layers, hidden and inner channels and vocabulary:
# ``models/llama3/__init__.py`` and ``models/qwen3/__init__.py`` of 0.2.2. Llama's vocabulary is of
# its tokenizer's, which torchtitan takes at the start.
_FLAVORS: Mapping[tuple[str, int, int, int, int], tuple[str, str]] = {
    ("llama", 32, 4096, 14336, 128256): ("llama3", "8B"),
    ("llama", 80, 8192, 28672, 128256): ("llama3", "70B"),
    ("llama", 126, 16384, 53248, 128256): ("llama3", "405B"),
    ("qwen3", 28, 1024, 3072, 151936): ("qwen3", "0.6B"),
    ("qwen3", 28, 2048, 6144, 151936): ("qwen3", "1.7B"),
    ("qwen3", 36, 2560, 9728, 151936): ("qwen3", "4B"),
    ("qwen3", 36, 4096, 12288, 151936): ("qwen3", "8B"),
    ("qwen3", 40, 5120, 17408, 151936): ("qwen3", "14B"),
    ("qwen3", 64, 5120, 25600, 151936): ("qwen3", "32B"),
}


def configuration(question: Question, settings: Settings) -> dict[str, dict[str, Any]]:
    """The file's content: sections of torchtitan's ``JobConfig``."""
    work, cluster, sharded = question.workload, question.cluster, is_sharded(question, settings)
    name, flavor = _flavor(work.model) or ("MODEL", "FLAVOR")
    fp32 = work.precision is Precision.FP32
    ranks = settings.data_parallel_size(cluster.world_size)
    hybrid = settings.sharding is Sharding.HYBRID_SHARD
    replicas = ranks if not sharded else cluster.nodes if hybrid else 1
    return {
        "model": {"name": name, "flavor": flavor},
        "training": {
            "local_batch_size": settings.micro_batch_size,
            "global_batch_size": work.global_batch_size,
            "seq_len": work.sequence_length,
            "dtype": _DTYPES[weights(question)],
            "mixed_precision_param": "float32" if fp32 else "bfloat16",
            "mixed_precision_reduce": "float32",
            "enable_cpu_offload": settings.cpu_offload,
        },
        "parallelism": {
            "data_parallel_replicate_degree": replicas,
            "data_parallel_shard_degree": ranks // replicas,
            "fsdp_reshard_after_forward": "always" if reshards(settings) else "never",
            "tensor_parallel_degree": settings.tp_size,
            "pipeline_parallel_degree": 1,
            "context_parallel_degree": 1,
        },
        "activation_checkpoint": {"mode": str(settings.activation_checkpointing)},
        "optimizer": {"name": "AdamW", "implementation": "foreach"},
        "compile": {"enable": False},
    }


def _flavor(model: ModelConfig) -> tuple[str, str] | None:
    shape = (model.model_type, model.layers, model.hidden_size, model.intermediate_size)
    return _FLAVORS.get((*shape, model.vocab_size))


def _why_not(question: Question, settings: Settings) -> str | None:
    optimizer, device = question.workload.optimizer, question.cluster.gpu.device
    return refusals.first(
        refusals.own_script("torchtitan trains by code of its own", question),
        refusals.pipelines("torchtitan", settings, "torch"),
        refusals.fsdp2("torchtitan", question, settings, "torch"),
        f"torchtitan has Adam and AdamW only, and the study has {optimizer}; ask again with"
        " --optimizer adamw"
        if optimizer is not Optimizer.ADAMW
        else None,
        "torchtitan trains on GPUs; ask again with --cluster of GPUs"
        if device is not Device.CUDA
        else None,
        _other_step(question, settings),
        _other_dtype(question, settings),
    )


def _other_step(question: Question, settings: Settings) -> str | None:
    if not settings.sync_each_batch and sync_acts(question, settings):
        return (
            "torchtitan reduces gradients after every micro-batch; ask again with"
            " --knob sync_each_batch=true"
        )
    if settings.tp_recompute_allgather and settings.tp_size > 1:
        return (
            "torchtitan keeps gathered activations for backward; ask again with"
            " --knob tp_recompute_allgather=false"
        )
    alone = not has_data_parallel_ranks(question, settings)
    if alone and settings.tp_size > 1 and question.workload.precision is Precision.BF16_MIXED:
        return (
            "torchtitan mixes precision by FSDP, and with tensor parallelism alone there is none;"
            " ask again with --precision bf16"
        )
    return None


def _other_dtype(question: Question, settings: Settings) -> str | None:
    if not has_data_parallel_ranks(question, settings):
        return None
    sharded = is_sharded(question, settings)
    reduced = ReduceDtype.FP32 if sharded else weights(question)
    if question.workload.reduce_dtype is reduced:
        return None
    how = "sharded gradients" if sharded else f"gradients of {weights(question)}"
    return f"torchtitan reduces {how} in {reduced} only; ask again with --reduce-dtype {reduced}"


def _render(question: Question, settings: Settings, about: About) -> str:
    steps = settings.gradient_accumulation_steps
    command = torchrun(question, "-m", "torchtitan.train", "--job.config_file", FILE_NAME)
    use = [
        *comments(
            f"For torchtitan 0.2, which accumulates {steps} micro-batch{'es' if steps > 1 else ''}"
            " of each process to the global batch. Data, learning rate and the rest are yours, here"
            " or as options. Start it on each node:"
        ),
        f"#     {' '.join(command)}",
    ]
    notes = []
    if _flavor(question.workload.model) is None:
        notes.append(
            "torchtitan 0.2.2 has no flavor of this shape: put one of yours in the place of"
            " MODEL and FLAVOR, without which it does not start."
        )
    if settings.cpu_offload:
        notes.append("The optimizer steps on the CPU.")
    top = header(provenance(question, settings, about), use, comments(*notes))
    # of plain values JSON's spelling is TOML's too
    sections = (
        f"\n[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
        for name, fields in configuration(question, settings).items()
    )
    return f"{top}\n{''.join(sections)}"


FORMAT = Format(
    name="torchtitan",
    file_name=FILE_NAME,
    stack=Stack.TORCHTITAN,
    media_type="application/toml",
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: tuple(
        torchrun(question, "-m", "torchtitan.train", "--job.config_file", path)
    ),
)
