"""axolotl's YAML: what it says, and what a study's answer changes in it.

Fields are those of axolotl of July 2026 (``utils/schemas/``, 067b021c8). It trains by transformers'
Trainer, and shards by accelerate: ``core/builders/base.py``, ``utils/trainer.py``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.core.configuration import NO_MODEL_PARALLELISM, Checkpointing, Settings, Sharding
from tuner.core.script import is_sharded
from tuner.core.study import Question
from tuner.core.workload import Optimizer
from tuner.launchfiles import deepspeed as engine
from tuner.launchfiles.fields import Fields, Found, Reader, known_fields
from tuner.launchfiles.fine_tuning import (
    adapter,
    deepspeed,
    optimizer_of,
    uncounted,
)
from tuner.launchfiles.fsdp import FSDP1, NO_SHARD, fsdp1_sharding, layer_class, reshards
from tuner.launchfiles.trainer import OPTIMIZERS

NAME = "axolotl"
MARKS = frozenset({"base_model", "sequence_len"})

_LIGER = "axolotl.integrations.liger.LigerPlugin"
_CCE = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
_FLASH = ("flash_attention_2", "flash_attention_3", "kernels-community/vllm-flash-attn3")


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field."""
    fields = Fields(values)
    _pass_over(fields)
    micro = fields.whole("micro_batch_size", 1) or 1
    if values.get("val_set_size") or values.get("test_datasets"):  # else there is no evaluation
        strategy = fields.any_of("eval_strategy", "evaluation_strategy")
        on = () if strategy in fields else ("val_set_size", "test_datasets")
        when = ("evals_per_epoch", "eval_steps", strategy, *on)
        fields.pass_over_evaluation(when, "eval_batch_size", micro)
    steps = fields.whole("gradient_accumulation_steps")
    if steps is None and (whole := fields.whole("batch_size")) is not None:
        steps = max(1, whole // micro)  # of one rank, as axolotl takes it
    knobs: dict[str, Any] = {
        **NO_MODEL_PARALLELISM,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": steps or 1,
        "sync_each_batch": fields.part("accelerator_config")
        .part("gradient_accumulation_kwargs")
        .flag("sync_each_batch"),
        "fused_loss": fields.flag("liger_fused_linear_cross_entropy")
        or fields.flag("cut_cross_entropy", _CCE in fields.words("plugins")),
    }
    engine.check_sizes(fields.values.get("deepspeed"), knobs, "the file says")
    sharding, classes = _read_sharding(fields)
    knobs |= sharding
    free: dict[str, tuple[Any, ...]] = {
        "micro_batch_size": (), "gradient_accumulation_steps": (), "sync_each_batch": (),
        "activation_checkpointing": ("none", "full"),
    }  # fmt: skip
    knobs["activation_checkpointing"] = _read_checkpointing(fields, knobs)
    trained = _read_adapter(fields)
    is_sharded = knobs["sharding"] != Sharding.DDP
    precision = _read_precision(fields, is_sharded or trained is not None)
    if "deepspeed" not in fields and (is_sharded or trained is not None):
        free["sharding"] = ("full_shard", "shard_grad_op")
        free["sharding"] += () if trained is None else ("ddp",)
    if trained is None and _CCE not in fields.words("plugins"):
        free["fused_loss"] = ()
    packing = _read_packing(fields)
    if is_sharded and packing is None and trained is None and "deepspeed" not in fields:
        for place, line in enumerate(fields.uncounted):
            if line.key in ("context_parallel_size", "sequence_parallel_degree"):
                effect = "the ring is counted as torch's: axolotl's has other buffers and kernels"
                fields.uncounted[place] = replace(line, effect=effect)
                knobs["cp_size"] = fields.whole(line.key)
    optimizers = {**OPTIMIZERS, "muon": Optimizer.MUON}
    optimizer = optimizer_of(fields, "optimizer", optimizers, knobs)
    on_its_own = (trained is not None and is_sharded) or optimizer == Optimizer.MUON
    may: dict[str, tuple[Any, ...]] = {
        # the Trainer has no Muon, and shards an adapter's matrices by themselves
        "framework": ("accelerate" if on_its_own else "trainer",),
        "model": (fields.text("base_model"),),
        "precision": (precision,),
        "optimizer": (str(optimizer),),
        "adapter": (trained,),
        "packing": (packing,),
    }
    if (length := fields.whole("sequence_len")) is not None:
        may["sequence_length"] = (length,)
    classifies = fields.flag("reward_model") or "SequenceClassification" in str(
        fields.values.get("model_type")
    )
    if classifies:
        may["task"] = ("sequence_classification",)
    return Found(
        format_name=NAME,
        knobs=knobs,
        may=may,
        free=free,
        strict=False,
        layer_classes=classes,
        fsdp_checkpointing=fields.part("fsdp_config").flag("activation_checkpointing"),
        uncounted=tuple(fields.uncounted),
    )


def _pass_over(fields: Fields) -> None:
    """Notes fields that no figure takes into account, and those that nothing is known of; refuses
    those that are nearly one that is read."""
    known, effects = known_fields()["axolotl"], uncounted()
    other_step, pattern = known["other_step"], known["no_effect"].replace("\n", "")
    unknown = {n: one for n, one in fields.values.items() if not re.fullmatch(pattern, str(n))}
    Fields(unknown).refuse_misspelt({*known["read"], *effects, *other_step})
    for name, value in fields.values.items():
        if name not in fields or value is False or (value == 1 and value is not True):
            continue
        if name in known["read"] and name != "plugins":
            continue
        if why := other_step.get(name):
            why = known["rl"].get(str(value), why) if name == "rl" else why
            fields.pass_over(name, why, rules_out=True)
        elif why := effects.get(name, ""):
            fields.pass_over(name, why)
        elif name == "plugins":
            for plugin in fields.words(name):
                if plugin.endswith("DiffusionPlugin"):
                    fields.pass_over(name, other_step["diffusion"], plugin, rules_out=True)
        elif name in unknown:
            fields.pass_over(name, "is not known here, and may change memory and speed")


def _read_sharding(fields: Fields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Sharding and offload, and the classes of the layers that FSDP shards one by one."""
    if "deepspeed" in fields:
        return deepspeed(fields), ()
    options, words = fields.part("fsdp_config"), fields.words("fsdp")
    split = fields.whole("tensor_parallel_size", 1) or 1
    knobs: dict[str, Any] = {"sharding": str(Sharding.DDP), "cpu_offload": False}
    if split > 1:
        effect = "tensor parallelism of the Trainer is not predicted"
        fields.pass_over("tensor_parallel_size", effect, rules_out=True)
    shards = fields.whole("dp_shard_size", 1) or 1
    if not words and not options.values and shards == 1:
        return knobs, ()
    named = {name: options.any_of(f"fsdp_{name}", name) for name in
             ("offload_params", "reshard_after_forward", "transformer_layer_cls_to_wrap",
              "version")}  # fmt: skip
    version = fields.whole("fsdp_version") or options.whole(named["version"]) or 1
    if version == 1:
        kind = fsdp1_sharding(options, words, nodes=None)
        fields.pass_over("fsdp_version", NO_SHARD if kind is Sharding.DDP else FSDP1, 1)
        fields.uncounted += options.uncounted
    else:
        whole = options.flag(named["reshard_after_forward"], default="shard_grad_op" not in words)
        kind = Sharding.FULL_SHARD if whole else Sharding.SHARD_GRAD_OP
    if (copies := fields.whole("dp_replicate_size", 1) or 1) > 1:
        effect = "how many GPUs shard is taken from the cluster's nodes: its replicas may be others"
        fields.pass_over("dp_replicate_size", effect)
    kind = Sharding.HYBRID_SHARD if copies > 1 else kind
    knobs["sharding"] = str(kind)
    knobs["cpu_offload"] = options.flag(named["offload_params"]) or "offload" in words
    return knobs, tuple(options.words(named["transformer_layer_cls_to_wrap"]))


def _read_checkpointing(fields: Fields, knobs: Mapping[str, Any]) -> str:
    how = fields.values.get("gradient_checkpointing")
    offloads = how in ("offload", "offload_disk") or "activation_offloading" in fields
    if offloads and fields.values.get("activation_offloading") is not False:
        return str(Checkpointing.OFFLOAD)
    options = fields.part("fsdp_config")
    by_fsdp = options.flag(options.any_of("fsdp_activation_checkpointing",
                                          "activation_checkpointing"))  # fmt: skip
    is_on = by_fsdp or str(how).lower() not in ("none", "false", "")  # it has words of its own
    return str(Checkpointing.FULL if is_on else Checkpointing.NONE)


def _read_adapter(fields: Fields) -> dict[str, Any] | None:
    kind = fields.values.get("adapter")
    if kind == "qlora" and fields.flag("load_in_8bit"):
        raise fields.error(
            "load_in_8bit", "cannot stand beside adapter: qlora, which loads four bits"
        )
    if kind in (None, "", False):
        if fields.flag("load_in_8bit") or fields.flag("load_in_4bit"):
            effect = "the model is loaded in fewer bits, and trained as a whole in bf16 here"
            fields.pass_over("load_in_8bit", effect, True)
        return None
    if kind not in ("lora", "qlora"):
        fields.pass_over("adapter", "this adapter is not predicted, and counted as lora")
    linear = fields.flag("lora_target_linear", default="lora_target_modules" not in fields)
    return adapter(
        fields,
        four_bits=fields.flag("load_in_4bit", default=kind == "qlora"),
        eight_bits="load_in_8bit" if fields.flag("load_in_8bit") else "",
        # its default (``normalize_config`` in utils/config/__init__.py)
        reentrant=fields.part("gradient_checkpointing_kwargs").flag("use_reentrant", default=True),
        double=fields.part("bnb_config_kwargs").flag("bnb_4bit_use_double_quant", default=True),
        rank="lora_r",
        saved="lora_modules_to_save",
        defaults=(8, 16, 0.0),
        targets="" if linear else "lora_target_modules",
    )


def _read_precision(fields: Fields, mixes: bool) -> str:
    """axolotl loads weights in bf16, and accelerate makes fp32 of what FSDP2 trains; peft keeps
    adapters in fp32."""
    bits = [fields.values.get(name) for name in ("bf16", "bfloat16")]
    half = any(str(one).lower() not in ("none", "false", "") for one in bits)
    if fields.flag("fp16") and not half:
        effect = "fp16 is not predicted: the figures are of bf16, whose numbers are as large"
        fields.pass_over("fp16", effect, True)
        return "bf16_mixed"
    if not half:
        return "fp32"
    return "bf16_mixed" if mixes else "bf16"


def _read_packing(fields: Fields) -> dict[str, Any] | None:
    if not fields.flag("sample_packing"):
        return None
    attention = str(fields.values.get("attn_implementation") or "")
    flash = fields.flag("flash_attention", default=not attention or attention in _FLASH)
    return {"variant": "varlen" if flash else "position_ids"}


def tuned(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say the settings, in a file that has ``values``."""
    engine.check_sizes(values.get("deepspeed"), settings.all_values(), "the answer says")
    how, shards = settings.activation_checkpointing, is_sharded(question, settings)
    options = values.get("fsdp_config")
    by_fsdp = isinstance(options, Mapping) and any(
        f"{prefix}activation_checkpointing" in options for prefix in ("", "fsdp_")
    )
    recomputes = how in (Checkpointing.FULL, Checkpointing.OFFLOAD)
    own = bool(values.get("gradient_checkpointing"))  # it may be said twice
    found: dict[str, Any] = {
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "micro_batch_size": settings.micro_batch_size,
        "gradient_checkpointing": recomputes and (not by_fsdp or not shards or own),
        "activation_offloading": True if how is Checkpointing.OFFLOAD else None,
        "accelerator_config": {
            "gradient_accumulation_kwargs": {"sync_each_batch": settings.sync_each_batch}
        },
        "liger_fused_linear_cross_entropy": settings.fused_loss or None,
    }
    if "batch_size" in values and "gradient_accumulation_steps" not in values:  # one of the two
        steps = found.pop("gradient_accumulation_steps")
        found["batch_size"] = settings.micro_batch_size * steps
    plugins = [*(values.get("plugins") or [])]
    if settings.fused_loss and _LIGER not in plugins:
        found["plugins"] = [*plugins, _LIGER]
    else:
        found["plugins"] = plugins or None
    if shards:
        found["fsdp"] = values.get("fsdp")
        found["fsdp_version"] = 2
        found["fsdp_config"] = {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": layer_class(question.workload.model) or None,
            "state_dict_type": "FULL_STATE_DICT",
            "offload_params": settings.cpu_offload,
            "reshard_after_forward": reshards(settings),
            **({"activation_checkpointing": recomputes} if by_fsdp else {}),
        }
    return found


READER = Reader(name=NAME, marks=MARKS, read=read, tuned=tuned)
