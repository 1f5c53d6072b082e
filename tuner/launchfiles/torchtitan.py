"""torchtitan's TOML, where the settings have an equivalent.

Sections and fields are those of ``torchtitan/config/job_config.py`` in torchtitan 0.2.2, the last
with TOML, and 0.2.0 has them too. What they cause was read in its ``train.py`` (gradients are
reduced after every micro-batch) and ``models/llama3/infra/parallelize.py``. Later versions are
configured in Python: comments of the file say the same so, by ``torchtitan/config/configs.py``,
``manager.py`` and ``distributed/activation_checkpoint.py`` of main in August 2026 (b5bcd76c6).
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from tuner.core.cluster import Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.script import is_sharded, torchrun
from tuner.core.study import Question
from tuner.core.workload import Loss, Optimizer, Precision, ReduceDtype
from tuner.cost.memory.step import LOSS_PARTS
from tuner.launchfiles import contract as refusals
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    code,
    comments,
    has_data_parallel_ranks,
    header,
    printable,
    provenance,
    reduced_in,
    sync_acts,
)
from tuner.launchfiles.fields import Fields, Found, Reader
from tuner.launchfiles.fsdp import reshards, weights
from tuner.model import ModelConfig, published_model

FILE_NAME = "torchtitan.toml"

_DTYPES = {ReduceDtype.BF16: "bfloat16", ReduceDtype.FP32: "float32"}

# Name and flavor of torchtitan's models (``models/llama3/__init__.py`` and
# ``models/qwen3/__init__.py`` of 0.2.2), by the catalogue's name of one of the same shape. Llama's
# vocabulary is of its tokenizer's, which torchtitan takes at the start.
_FLAVORS: Mapping[str, tuple[str, str]] = {
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    **{f"qwen3-{size.lower()}": ("qwen3", size)
       for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
}  # fmt: skip
# Of those, what newer versions have a function of in ``models/*/config_registry.py``.
_REGISTERED = frozenset({
    "llama3_8b", "llama3_70b", "llama3_405b", "qwen3_0_6b", "qwen3_1_7b", "qwen3_14b", "qwen3_32b",
})  # fmt: skip
# What those of them say that their models do not run without, by section and field (August 2026).
_FULL: Mapping[str, Mapping[str, Any]] = {"activation_checkpoint": {"mode": "full"}}
_FULL_OF_8: Mapping[str, Mapping[str, Any]] = {
    **_FULL, "parallelism": {"tensor_parallel_degree": 8},
}  # fmt: skip
BASES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "llama3_70b": _FULL_OF_8, "llama3_405b": _FULL_OF_8, "qwen3_14b": _FULL, "qwen3_32b": _FULL,
}  # fmt: skip
# What newer versions say in Python of activation checkpointing.
POLICIES = {Checkpointing.NONE: "None", Checkpointing.FULL: "FullAC.Config()"}


def configuration(question: Question, settings: Settings) -> dict[str, dict[str, Any]]:
    """The file's content: sections of torchtitan's ``JobConfig``."""
    work, cluster, sharded = question.workload, question.cluster, is_sharded(question, settings)
    name, flavor = _flavor(work.model) or ("MODEL", "FLAVOR")
    fp32 = work.precision is Precision.FP32
    ranks = settings.data_parallel_size(cluster.world_size)
    hybrid = settings.sharding is Sharding.HYBRID_SHARD
    kernels = "fused" if work.optimizer is Optimizer.ADAMW_FUSED else "foreach"
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
            "context_parallel_degree": settings.cp_size,
        },
        "activation_checkpoint": _checkpointing(settings),
        "optimizer": {"name": "AdamW", "implementation": kernels},
        "compile": {"enable": False},
    }


def _python(question: Question, settings: Settings) -> str:
    """A function that newer versions are configured by; empty for what was not read there."""
    policy = POLICIES.get(settings.activation_checkpointing)
    if policy is None:
        return ""
    work, sections = question.workload, configuration(question, settings)
    tokens, training = work.sequence_length, sections["training"]
    values = {
        "training": {
            "num_tokens_per_microbatch_per_dp_rank": settings.micro_batch_size * tokens,
            "num_tokens_per_train_step": work.global_batch_size * tokens,
            "max_context_length": tokens,
            **{k: training[k] for k in ("dtype", "mixed_precision_param", "enable_cpu_offload")},
            "disable_cuda_graphs": True,
        },
        "parallelism": sections["parallelism"],
        "compile": sections["compile"],
    }
    name, flavor = _flavor(work.model) or ("MODEL", "FLAVOR")
    base = f"{name}_{flavor}".lower().replace(".", "_")
    base = base if base in _REGISTERED else "BASE"
    lines = [
        "from torchtitan.distributed.activation_checkpoint import FullAC",
        *([f"from torchtitan.models.{name}.config_registry import {base}"] * (base != "BASE")),
        "",
        "",
        "def tuned():",
        f"    config = {base}()",
        *(
            f"    config.{section}.{field} = {value!r}"
            for section, fields in values.items()
            for field, value in fields.items()
        ),
        f"    config.activation_checkpoint = {policy}",
        # registered configurations compute it part by part (``ChunkedLossWrapper``)
        '    config.loss = getattr(config.loss, "loss_fn", config.loss)  # of whole logits',
        "    return config",
    ]
    return "\n".join(lines)


def _checkpointing(settings: Settings) -> dict[str, str]:
    if settings.activation_checkpointing is not Checkpointing.EVERY_2:
        return {"mode": str(settings.activation_checkpointing)}
    return {"mode": "selective", "selective_ac_option": "2"}


def _flavor(model: ModelConfig) -> tuple[str, str] | None:
    def shape(one: ModelConfig) -> tuple[object, ...]:
        sizes = one.layers, one.hidden_size, one.intermediate_size, one.vocab_size
        return (one.model_type, *sizes)

    like = (name for name in _FLAVORS if shape(published_model(name)) == shape(model))
    return _FLAVORS.get(next(like, ""))


def _why_not(question: Question, settings: Settings) -> str | None:
    work, how = question.workload, settings.activation_checkpointing
    parallel, sharded = has_data_parallel_ranks(question, settings), is_sharded(question, settings)
    reduced = ReduceDtype.FP32 if sharded else weights(question)
    gradients = "sharded gradients" if sharded else f"gradients of {weights(question)}"
    return refusals.first(
        refusals.own_script("torchtitan trains by code of its own", question),
        not work.model.is_causal_lm
        and "torchtitan trains causal language models; take the format accelerate, or trainer",
        refusals.lacking(
            "torchtitan",
            question,
            settings,
            *("pipelines", "fused_loss", "adapters", "packing"),
            framework="torch",
        ),
        refusals.fsdp2("torchtitan", question, settings, "torch"),
        work.optimizer not in (Optimizer.ADAMW, Optimizer.ADAMW_FUSED)
        and f"torchtitan has Adam and AdamW only, and the study has {work.optimizer}; ask again"
        " with --optimizer adamw",
        question.cluster.gpu.device is not Device.CUDA
        and "torchtitan trains on GPUs; ask again with --cluster of GPUs",
        # cross_entropy_loss in components/loss.py (0.2.0 to 0.2.2) is of pred.float()
        work.loss is Loss.OWN_DTYPE
        and "torchtitan's loss is of an fp32 copy of the logits; ask again with --loss fp32",
        not settings.sync_each_batch
        and sync_acts(question, settings)
        and "torchtitan reduces gradients after every micro-batch; ask again with"
        " --knob sync_each_batch=true",
        settings.defer_all_reduce
        and "torchtitan 0.2 reduces over replicas after every micro-batch; ask again with --knob"
        " defer_all_reduce=false",
        settings.splits_layers
        and not work.splits_sequence
        and "torchtitan's tensor parallelism is sequence parallel; ask again with"
        " --tensor-parallel sequence_parallel",
        settings.splits_layers
        and settings.tp_recompute_allgather
        and "torchtitan keeps gathered activations for backward; ask again with"
        " --knob tp_recompute_allgather=false",
        how is Checkpointing.SELECTIVE
        and "torchtitan's selective checkpointing of operators keeps every second matrix product"
        " only; ask again with --knob activation_checkpointing=none,every_2,full",
        how is Checkpointing.OFFLOAD
        and "torchtitan 0.2 keeps the inputs of checkpointed layers on the device; ask again with"
        " --knob activation_checkpointing=none,every_2,full",
        how is Checkpointing.EVERY_2
        and work.model.layers % 2 == 1
        and "of an odd number of layers torchtitan checkpoints one less than was predicted; ask"
        " again with --knob activation_checkpointing=none,full",
        settings.splits_layers
        and not parallel
        and work.precision is Precision.BF16_MIXED
        and "torchtitan mixes precision by FSDP, and with tensor parallelism alone there is none;"
        " ask again with --precision bf16",
        parallel
        and reduced_in(question, settings) is not reduced
        and f"torchtitan reduces {gradients} in {reduced} only; ask again with --reduce-dtype"
        f" {reduced}",
    )


def _render(question: Question, settings: Settings, about: About) -> str:
    steps = settings.gradient_accumulation_steps
    command = torchrun(question.cluster, "-m", "torchtitan.train", "--job.config_file", about.path)
    use = [
        *comments(
            f"For torchtitan 0.2.0 to 0.2.2, which accumulates {steps}"
            f" micro-batch{'es' if steps > 1 else ''} of each process to the global batch. Data,"
            " learning rate and the rest are yours, here or as options. Start it on each node:"
        ),
        f"#     {printable(shlex.join(command))}",
    ]
    newer = []
    if python := _python(question, settings):
        newer = [
            *comments(
                "Later versions read no TOML. There a module of yours says the same, with BASE a"
                " configuration of your own where none is named; it was read in the code of August"
                " 2026, and not run. Start it by -m torchtitan.train --module MODULE --config"
                " tuned."
            ),
            *code(python),
        ]
    notes = []
    if _flavor(question.workload.model) is None:
        notes.append(
            "torchtitan 0.2.2 has no flavor of this shape: put one of yours in the place of"
            " MODEL and FLAVOR, without which it does not start."
        )
    if settings.cpu_offload:
        notes.append("The optimizer steps on the CPU.")
    top = header(provenance(question, settings, about), use, comments(*notes), newer)
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
    packages=("torchtitan", "torch"),
    media_type="application/toml",
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: torchrun(
        question.cluster, "-m", "torchtitan.train", "--job.config_file", path
    ),
)


NAME = "torchtitan"
_FREE: Mapping[str, tuple[Any, ...]] = {
    "sharding": ("ddp", "shard_grad_op", "full_shard"), "tp_size": (), "micro_batch_size": (),
    "gradient_accumulation_steps": (), "activation_checkpointing": ("none", "full"),
}  # fmt: skip
_LATER = "num_tokens_per_microbatch_per_dp_rank"  # the batch, in versions that are Python


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file: TOML of 0.2, or what a function of later versions says.

    Raises:
        UsageError: a field is wrong.
    """
    fields = Fields(values)
    training, parallel = fields.part("training"), fields.part("parallelism")
    for name in ("pipeline_parallel_degree", "expert_parallel_degree"):
        if (size := parallel.whole(name, 1) or 1) > 1:
            effect = "this parallelism of torchtitan's is not predicted"
            fields.pass_over(name, effect, size, rules_out=True)
    if fields.part("compile").flag("enable"):
        effect = "compiled models are not predicted: mostly faster, with less memory"
        fields.pass_over("compile.enable", effect, True)
    later = _LATER in training
    length = training.whole("max_context_length" if later else "seq_len", 2048) or 2048
    micro, batch = training.whole("local_batch_size", 8) or 8, None
    if later:
        micro = max(1, (training.whole(_LATER) or length) // length)
    whole = "num_tokens_per_train_step" if later else "global_batch_size"
    given = None if training.values.get(whole) == -1 else training.whole(whole)
    if given is not None:
        batch = given // length if later else given
    kind, copies, shards = _read_sharding(parallel)
    knobs: dict[str, Any] = {
        "sharding": str(kind),
        "tp_size": parallel.whole("tensor_parallel_degree", 1),
        "pp_size": 1,
        "cp_size": parallel.whole("context_parallel_degree", 1),
        "micro_batch_size": micro,
        "sync_each_batch": True,
        "activation_checkpointing": str(_read_checkpointing(fields)),
        "cpu_offload": training.flag("enable_cpu_offload"),
    }
    if batch is None:
        knobs["gradient_accumulation_steps"] = 1
    if (parts := _read_loss(fields, is_new=later)) > 1:
        knobs["fused_loss"] = True
        if parts != LOSS_PARTS:
            fields.pass_over("loss.num_chunks", f"is counted as {LOSS_PARTS} parts", parts)
    _note_base(fields, micro, length)
    wide = str(training.values.get("dtype", "float32")) == "float32"
    half = str(training.values.get("mixed_precision_param", "bfloat16")) == "bfloat16"
    precision = "bf16" if not wide else "bf16_mixed" if half else "fp32"
    own = kind is Sharding.DDP and not wide  # DDP reduces gradients as they are
    optimizer = fields.part("optimizer")
    fused = str(optimizer.values.get("implementation", "fused")) == "fused"
    in_groups = kind is Sharding.HYBRID_SHARD
    may: dict[str, tuple[Any, ...]] = {
        "framework": ("torch", "accelerate", "trainer"),
        "precision": (precision,),
        # of one rank nothing is reduced
        "reduce_dtype": ("bf16", "fp32") if own else ("fp32", "bf16"),
        "sequence_length": (length,),
        "optimizer": (str(Optimizer.ADAMW_FUSED if fused else Optimizer.ADAMW),),
        "loss": ("fp32", "hf"),  # which is the same where transformers makes fp32 of logits
    }
    if batch is not None:
        may["global_batch_size"] = (batch,)
    model = fields.part("model")
    named = (str(model.values.get("name")), str(model.values.get("flavor")))
    if known := [name for name, flavor in _FLAVORS.items() if flavor == named]:
        may["model"] = (*known,)
    return Found(
        format_name=NAME,
        knobs=knobs,
        may=may,
        free=_FREE,
        strict=False,
        groups=(copies, shards * knobs["tp_size"] * knobs["cp_size"])
        if in_groups and shards != -1
        else None,
        uncounted=tuple(fields.uncounted),
    )


def _read_sharding(parallel: Fields) -> tuple[Sharding, int, int]:
    """How it shards, and its two sizes: copies, and shards of each, -1 for all that is left."""
    copies = parallel.whole("data_parallel_replicate_degree", 1) or 1
    shards = -1
    if parallel.values.get("data_parallel_shard_degree") != -1:
        shards = parallel.whole("data_parallel_shard_degree", -1) or -1
    keeps = str(parallel.values.get("fsdp_reshard_after_forward", "default")) == "never"
    kind = Sharding.SHARD_GRAD_OP if keeps else Sharding.FULL_SHARD
    if copies > 1:
        kind = Sharding.DDP if shards == 1 else Sharding.HYBRID_SHARD
    return kind, copies, shards


def _note_base(fields: Fields, micro: int, length: int) -> None:
    """Says what is not read of a registered configuration that a file begins with."""
    training, base = fields.part("training"), fields.values.get("base")
    said = {"local_batch_size": (_LATER, micro), "seq_len": ("max_context_length", length)}
    for name, (later, counted) in said.items():
        if base and name not in training and later not in training:
            fields.pass_over(f"training.{name}", f"is {base}'s own, and counted as {counted}")


def _read_loss(fields: Fields, *, is_new: bool) -> int:
    """The parts in which a loss is computed; 1 for one of whole logits."""
    loss, base = fields.part("loss"), fields.values.get("base")
    if "other" in loss:
        fields.pass_over(
            "loss", "is counted as cross-entropy of whole logits", loss.values["other"]
        )
    is_unsaid = bool(base) and not loss.values
    # Registered configurations have begun with a loss of parts since April 2026; what this one says
    # of checkpointing is as old as June's, and of the batch as August's.
    is_new = is_new or "policy" in fields.part("activation_checkpoint")
    if is_unsaid and not is_new:
        effect = "is its own: computed part by part in newer versions, and counted as whole logits"
        fields.pass_over("loss", effect, f"{base}()")
    chunked = loss.flag("chunked", is_unsaid and is_new)
    return loss.whole("num_chunks", LOSS_PARTS if chunked else 1) or 1


def _read_checkpointing(fields: Fields) -> Checkpointing:
    part = fields.part("activation_checkpoint")
    mode = str(part.values.get("mode", "selective")).lower()
    option = str(part.values.get("selective_ac_option", "2"))
    if mode in ("none", "full"):
        return Checkpointing(mode)
    if mode == "selective" and option in ("0", "1"):  # each layer (``_apply_layer_sac`` of 0.2.2)
        return Checkpointing.FULL
    if mode == "selective" and option == "2":
        return Checkpointing.EVERY_2
    counted, does, by = Checkpointing.SELECTIVE, "keeps what the compiler chooses", ""
    if mode == "selective":
        does, by = "keeps every second matrix product", ", which keeps all: less memory"
        if option.isdecimal():
            counted, by = Checkpointing.EVERY_2, ": more memory"
            does = f"checkpoints one layer in {option[:9]}"
        mode = f"{mode} {option}" if "mode" in part else f"{mode} {option}, by default"
    effect = f"{does}, and is counted as activation_checkpointing={counted}{by}"
    fields.pass_over("activation_checkpoint", effect, mode)
    return counted


def tuned(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say the settings, in a file that has ``values``."""
    found: dict[str, Any] = configuration(question, settings)
    training = values.get("training") or {}
    if _LATER in training:
        tokens = question.workload.sequence_length
        found["training"] = {
            _LATER: settings.micro_batch_size * tokens,
            "num_tokens_per_train_step": question.workload.global_batch_size * tokens,
            "enable_cpu_offload": settings.cpu_offload,
        }
        found["activation_checkpoint"] = {"mode": str(settings.activation_checkpointing)}
    return found


READER = Reader(name=NAME, read=read, tuned=tuned)  # it alone is TOML, or Python
