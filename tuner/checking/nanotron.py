"""nanotron's YAML, which says all but where it runs.

Fields are those of nanotron's repository on 7 April 2026 (commit 2411b022): ``ParallelismArgs`` in
``config/parallelism_config.py``, ``TokensArgs`` and ``OptimizerArgs`` in ``config/config.py``,
``LlamaConfig`` in ``config/models_config.py``.
"""

from collections.abc import Mapping
from typing import Any

from tuner.checking.fields import Fields
from tuner.checking.found import Found
from tuner.settings import Checkpointing, Sharding
from tuner.workload import Optimizer

NAME = "nanotron"
MARKS = frozenset({"parallelism", "tokens"})
"""Fields that other files do not have."""
OPTIMIZERS = {"adamw": Optimizer.ADAMW, "sgd": Optimizer.SGD}
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings", "tie_word_embeddings",
)  # fmt: skip
"""Of a Llama's configuration; transformers has the same names."""
TOP = ("parallelism", "tokens", "optimizer", "model")
PARALLEL = (
    "dp", "tp", "pp", "tp_recompute_allgather", "recompute_layer", "expert_parallel_size",
    "context_parallel_size", "tp_mode", "pp_engine",
)  # fmt: skip
TOKENS = ("sequence_length", "micro_batch_size", "batch_accumulation_per_replica")
"""What is read of the file and of its parts."""
REFUSED = {"expert_parallel_size": "must be 1", "context_parallel_size": "must be 1"}


def read(values: Mapping[str, Any]) -> Found:
    """What the file says.

    Raises:
        UsageError: a field is wrong, or asks for what is not predicted.
    """
    fields = Fields(values)
    parallel, tokens = fields.part("parallelism"), fields.part("tokens")
    for part, known in ((fields, TOP), (parallel, PARALLEL), (tokens, TOKENS)):
        part.refuse_misspelt(known)
    sizes = {name: _required(parallel, name) for name in ("dp", "tp", "pp")}
    _refuse(parallel, sizes)
    micro = _required(tokens, "micro_batch_size")
    steps = tokens.whole("batch_accumulation_per_replica", 1) or 1
    knobs: dict[str, Any] = {
        "sharding": str(_sharding(fields.part("optimizer"))),
        "tp_size": sizes["tp"],
        "pp_size": sizes["pp"],
        "tp_recompute_allgather": parallel.flag("tp_recompute_allgather", default=True),
        "micro_batch_size": micro,
        "gradient_accumulation_steps": steps,
        "sync_each_batch": False,
        "activation_checkpointing": str(_checkpointing(parallel)),
        "cpu_offload": False,
    }
    if sizes["tp"] == 1:
        del knobs["tp_recompute_allgather"]  # it does nothing
    if sizes["dp"] == 1 or steps == 1:
        del knobs["sync_each_batch"]
    return Found(
        format_name=NAME,
        knobs=knobs,
        may=_may(fields, micro * steps * sizes["dp"]),
        ranks=sizes["dp"] * sizes["tp"] * sizes["pp"],
        ranks_field="parallelism.dp x tp x pp",
    )


def _may(fields: Fields, batch: int) -> dict[str, tuple[Any, ...]]:
    model = fields.part("model")
    model.choice("dtype", {"bfloat16": True}, "bfloat16")
    factory = fields.part("optimizer").part("optimizer_factory")
    may: dict[str, tuple[Any, ...]] = {
        "framework": ("nanotron",),
        "precision": ("bf16",),
        "sequence_length": (_required(fields.part("tokens"), "sequence_length"),),
        "global_batch_size": (batch,),
        "optimizer": (str(factory.choice("name", OPTIMIZERS, "adamw")),),
    }
    if model.part("model_config").values:
        may["model"] = (_model(model.part("model_config")),)
    return may


def _model(fields: Fields) -> dict[str, Any]:
    """The model as transformers' configuration has it."""
    is_llama = fields.flag("is_llama_config", default="is_qwen2_config" not in fields)
    if not is_llama:
        raise fields.error("is_llama_config", "must be true: other models are named with --model")
    fields.refuse("moe_config", "is not predicted")
    return {
        "model_type": "llama",
        **{name: fields.values[name] for name in SIZES if name in fields},
    }


def _sharding(fields: Fields) -> Sharding:
    fields.refuse_misspelt(("zero_stage", "accumulate_grad_in_fp32", "optimizer_factory"))
    stage = fields.values.get("zero_stage", 0)
    if stage not in (0, 1) or not isinstance(stage, int) or isinstance(stage, bool):
        raise fields.error("zero_stage", "must be 0 or 1: nanotron has no other")
    if not fields.flag("accumulate_grad_in_fp32", default=True):
        allowed = "must be true: gradients in bf16 are not predicted"
        raise fields.error("accumulate_grad_in_fp32", allowed)
    return Sharding.ZERO1 if stage == 1 else Sharding.DDP


def _checkpointing(fields: Fields) -> Checkpointing:
    return Checkpointing.FULL if fields.flag("recompute_layer") else Checkpointing.NONE


def _refuse(parallel: Fields, sizes: Mapping[str, int]) -> None:
    for name, why in REFUSED.items():
        parallel.refuse(name, f"{why}: another is not predicted")
    if sizes["tp"] > 1:
        parallel.choice("tp_mode", {"reduce_scatter": True}, "reduce_scatter")
    if sizes["pp"] > 1:
        parallel.choice("pp_engine", {"1f1b": True}, "1f1b")


def _required(fields: Fields, name: str) -> int:
    size = fields.whole(name)
    if size is None:
        raise fields.error(name, "is required")
    return size
