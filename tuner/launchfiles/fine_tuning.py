"""Files of fine-tuning programs: adapters, optimizers and another engine, which all say alike, and
those of LLaMA-Factory and TRL, which are ``TrainingArguments`` and more.

Fields are those of LLaMA-Factory 0.9.4 (``src/llamafactory/hparams/``): layers are checkpointed
unless that is turned off (``disable_gradient_checkpointing`` in model_args.py), and what is trained
is kept in fp32 unless ``pure_bf16`` (``init_adapter`` in model/adapter.py). TRL's are of 1.14, in
YAML or as a script's command line: ``SFTConfig`` in trl/trainer/sft_config.py, whose defaults
differ from ``TrainingArguments`` in that layers are checkpointed and numbers are bf16, and
``ModelConfig`` in trl/trainer/model_config.py.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tuner.core.adapter import ALL_LINEAR, Quantize
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.study import Question
from tuner.core.workload import Optimizer
from tuner.errors import UsageError
from tuner.launchfiles import deepspeed as engine
from tuner.launchfiles import trainer
from tuner.launchfiles.fields import ABSENT, Fields, Found, Reader, known_fields
from tuner.launchfiles.fsdp import reshards

OTHER_ENGINE = "the figures are of torch's own sharding: DeepSpeed has other buffers and speed"

OTHER_STEP = "other training than on given answers, which is not predicted"


@cache
def uncounted() -> Mapping[str, str]:
    """What fields of such programs, and of the Trainer, may change that no figure counts."""
    effects = known_fields()["uncounted"]
    return {name: effect for effect, names in effects.items() for name in names}


# Optimizers that are not predicted, with what they are counted as.
_LIKE = (
    (r".*(8bit|4bit|fp8|ademamix_8).*", Optimizer.ADAMW_BNB_8BIT),
    (r".*lion.*", Optimizer.LION),
    (r".*adafactor.*", Optimizer.ADAFACTOR),
    (r".*(muon|dion).*", Optimizer.MUON),
    (r"sgd.*", Optimizer.SGD),
)


def optimizer_of(
    fields: Fields, name: str, known: Mapping[str, Optimizer], knobs: Mapping[str, Any]
) -> Optimizer:
    """The optimizer that a field names, or what one that is not predicted is counted as.

    DeepSpeed's shards are plain tensors, which bitsandbytes steps; torch's, by which the file is
    counted, are not.
    """
    word = str(fields.values.get(name) or "adamw_torch_fused").lower()
    found = known.get(word)
    by_engine = "deepspeed" in fields and knobs["sharding"] != Sharding.DDP
    if by_engine and found in (Optimizer.ADAMW_BNB_8BIT, Optimizer.PAGED_ADAMW_8BIT):
        counted = Optimizer.ADAMW_8BIT
        effect = f"torch's sharding has no such step: counted as {counted}, whose state is as large"
        fields.pass_over(name, effect, word)
        return counted
    if found is not None:
        return found
    like = (one for pattern, one in _LIKE if re.fullmatch(pattern, word))
    found = next(like, Optimizer.ADAMW)
    effect = f"is not predicted, and counted as {found}: its state and time may be others"
    fields.pass_over(name, effect, word)
    return found


def adapter(
    fields: Fields,
    *,
    four_bits: bool,
    eight_bits: str,
    reentrant: bool,
    double: bool,
    rank: str,
    saved: str,
    defaults: tuple[int, float, float],
    targets: str,
) -> dict[str, Any]:
    """An adapter's fields, as requests have them.

    Args:
        fields: the file's.
        four_bits: whether the frozen model is kept in four bits.
        eight_bits: the field that has it kept in eight; empty of none.
        reentrant: whether its checkpoints are.
        double: whether scales are quantized too.
        rank: the field of the rank.
        saved: the field of what is trained whole.
        defaults: of rank, alpha and dropout.
        targets: the field of linear layers: their names, a pattern, or ``all-linear``; they are
            all taken where it is empty.
    """
    if four_bits and eight_bits:
        allowed = "cannot stand beside four bits: a frozen model is loaded in one of the two"
        raise fields.error(eight_bits, allowed)
    found: dict[str, Any] = {
        "method": "qlora" if four_bits else "lora",
        "rank": fields.whole(rank, defaults[0]),
        "alpha": fields.number("lora_alpha", defaults[1]),
        "dropout": fields.number("lora_dropout", defaults[2]),
        "target_modules": _targets(fields, targets),
    }
    if saved in fields:
        found["modules_to_save"] = fields.words(saved)
    if four_bits:
        found["double_quant"] = double
    elif eight_bits:
        found["quantize"] = str(Quantize.INT8)
        if not reentrant:
            effect = "checkpoints that are not reentrant do not drop what layers in 8 bits keep:"
            fields.pass_over(eight_bits, f"{effect} more memory than predicted", True)
    return found


def _pass_over_known(fields: Fields) -> None:
    for name, effect in uncounted().items():
        if name in fields and fields.values[name] not in (False, "false", "none", 0):
            fields.pass_over(name, effect)


def _packed(fields: Fields, variant: str, name: str, value: object) -> dict[str, str] | None:
    """What packs documents; without a ``variant`` a field is noted by which they are one."""
    if variant:
        return {"variant": variant}
    effect = "documents of a row see each other: counted as one, which they are there"
    fields.pass_over(name, effect, value)
    return None


def _of_trainer(
    fields: Fields,
    *,
    format_name: str,
    knobs: Mapping[str, Any],
    model: str,
    length: int | None,
    adapter: Mapping[str, Any] | None,
    packing: Mapping[str, Any] | None,
    mixes: bool,
    bf16: bool = False,
    reads: Collection[str],
) -> Found:
    """What a file of ``TrainingArguments`` and more says: ``knobs`` in the program's own way, what
    is kept in fp32 if it ``mixes``, numbers in ``bf16`` unless that is said, and the fields that it
    ``reads`` beside the Trainer's."""
    known = known_fields()["trainer"]
    fields.refuse_misspelt({*reads, *known["read"], *known["refused"], *uncounted()})
    own = {
        name: value
        for name, value in fields.values.items()
        if name in known["read"] and name not in ("optim", "deepspeed")
    }
    micro = fields.whole("per_device_train_batch_size", trainer.MICRO_BATCH) or 1
    fields.pass_over_evaluation(*trainer.EVALUATION, micro, trainer.MICRO_BATCH)
    by_engine = deepspeed(fields) if fields.values.get("deepspeed") else {}
    liger = fields.flag("enable_liger_kernel") or fields.flag("use_liger_kernel")
    found = trainer.read({**own, "use_liger_kernel": liger})
    values = {**found.knobs, **knobs, **by_engine}
    optimizer = optimizer_of(fields, "optim", trainer.OPTIMIZERS, values)
    engine.check_sizes(fields.values.get("deepspeed"), values, "the file says")
    half = fields.flag("bf16", default=bf16) or fields.flag("pure_bf16")
    half = half or fields.flag("fp16")
    precision = "fp32" if not half else "bf16_mixed" if mixes or adapter else "bf16"
    is_sharded = values["sharding"] != Sharding.DDP
    free: dict[str, tuple[Any, ...]] = {
        "micro_batch_size": (), "gradient_accumulation_steps": (), "sync_each_batch": (),
        "activation_checkpointing": ("none", "full"),
    }  # fmt: skip
    if not by_engine and precision == "bf16_mixed":  # which it is with FSDP and without
        free["sharding"] = ("ddp", "full_shard", "shard_grad_op")
    if adapter is None:
        free["fused_loss"] = ()
    return replace(
        found,
        format_name=format_name,
        knobs=values,
        may={
            "framework": ("accelerate" if adapter and is_sharded else "trainer",),
            "model": (model,),
            "precision": (precision,),
            "optimizer": (str(optimizer),),
            "adapter": (adapter,),
            "packing": (packing,),
            "sequence_length": (length,),
        },
        free=free,
        strict=False,
        uncounted=(*found.uncounted, *fields.uncounted),
    )


# A pattern over all layers of a language model that ends with names of their linears, such as
# ``model.layers.[\d]+.(mlp|self_attn).(up|down|q|v)_proj``.
_OF_ALL_LAYERS = re.compile(
    r"[\w.\\]*layers\\?\.(\[\\d\]|\\d)\+[A-Za-z_|().?\\]*?\((?P<names>[a-z]+(\|[a-z]+)*)\)_proj"
)


def _targets(fields: Fields, name: str) -> list[str]:
    value = fields.values.get(name) if name else None
    if value in ABSENT or value in ("all", "all-linear"):
        return [ALL_LINEAR]
    if isinstance(value, str) and (every := _OF_ALL_LAYERS.fullmatch(value)):
        return [f"{one}_proj" for one in every["names"].split("|")]
    if isinstance(value, str) and not re.fullmatch(r"[\w\-, ]+", value):
        fields.pass_over(name, "a pattern is counted as all linear layers: an upper bound")
        return [ALL_LINEAR]
    return [one.rpartition(".")[2] for one in fields.words(name)]


def deepspeed(fields: Fields) -> dict[str, Any]:
    """Sharding and offload of DeepSpeed's configuration, or of its file's name where that is all
    there is."""
    value = fields.values["deepspeed"]
    is_here = isinstance(value, Mapping)
    shown = "a configuration" if is_here else value
    fields.pass_over("deepspeed", OTHER_ENGINE, shown)
    if is_here:
        zero = Fields(value).part("zero_optimization")
        stage = zero.values.get("stage", 0)
        if not isinstance(stage, int) or stage not in range(4):
            raise zero.error("stage", "must be 0, 1, 2 or 3")
        names = ("offload_param", "offload_optimizer")
        devices = [zero.part(name).values.get("device") == "cpu" for name in names]
        offloads = any(devices)
        if offloads and not all(devices):
            effect = "one of parameters and optimizer state is on the host, and counted as both"
            fields.pass_over("zero_optimization", effect, "offload")
    else:
        named = re.search(r"(?:zero|z|stage)[_-]?([0-3])", str(value).lower())
        if named is None:
            allowed = "is not here to be read, and its name says no stage of ZeRO"
            raise UsageError("deepspeed", value, allowed)
        stage, offloads = int(named[1]), "offload" in str(value).lower()
        effect = f"the file is not here: ZeRO {stage} is taken from its name"
        fields.pass_over("deepspeed", effect, shown)
    kind = engine.SHARDINGS[stage]
    if kind is Sharding.ZERO1:
        effect = "ZeRO 1 is counted as ddp: less memory than predicted"
        fields.pass_over("zero_optimization.stage", effect, 1)
        kind = Sharding.DDP
    if offloads and kind is not Sharding.FULL_SHARD:
        effect = "is counted as kept on the device: less memory and more time than predicted"
        fields.pass_over("zero_optimization.offload_optimizer", effect, "cpu")
        offloads = False
    return {"sharding": str(kind), "cpu_offload": offloads}


def _read_llama_factory(values: Mapping[str, Any]) -> Found:
    fields = Fields(values)
    _pass_over_known(fields)
    if "model" in fields and "model_name_or_path" not in fields:
        allowed = "is a field of LLaMA-Factory's v1, whose files are not read: those of its older"
        raise fields.error("model", f"{allowed} form have model_name_or_path")
    for name, why in known_fields()["llama-factory"]["other_step"].items():
        if name in fields and fields.values[name] is not False:
            fields.pass_over(name, why, rules_out=True)
    if str(fields.values.get("stage") or "sft") not in ("sft", "pt"):
        fields.pass_over("stage", OTHER_STEP, rules_out=True)
    kind = str(fields.values.get("finetuning_type") or "lora").lower()
    if kind == "freeze":
        fields.pass_over("finetuning_type", uncounted()["use_badam"], kind)
    elif kind not in ("lora", "full"):
        effect = "this adapter is not predicted, and counted as lora"
        fields.pass_over("finetuning_type", effect, kind)
    is_whole, bits = kind in ("full", "freeze"), fields.values.get("quantization_bit")
    trained = None
    if not is_whole:
        rank = fields.whole("lora_rank", 8) or 8
        trained = adapter(
            fields,
            four_bits=bits == 4,
            eight_bits="quantization_bit" if bits == 8 else "",
            reentrant=fields.flag("use_reentrant_gc", default=True),
            double=fields.flag("double_quantization", default=True),
            rank="lora_rank",
            saved="additional_target",
            defaults=(8, 2 * rank, 0.0),
            targets="lora_target",
        )
    neat = fields.flag("neat_packing")
    packing = None
    if neat or fields.flag("packing"):
        packing = _packed(fields, "block_diagonal" if neat else "", "packing", True)
    checkpoints = not fields.flag("disable_gradient_checkpointing")
    full = str(Checkpointing.FULL if checkpoints else Checkpointing.NONE)
    return _of_trainer(
        fields,
        format_name="llama-factory",
        knobs={"activation_checkpointing": full},
        model=fields.text("model_name_or_path"),
        length=fields.whole("cutoff_len", 2048),
        adapter=trained,
        packing=packing,
        mixes=not (fields.flag("pure_bf16") or fields.flag("use_badam")),
        bf16=fields.flag("use_badam"),  # what it trains is not made wider (``init_adapter``)
        reads=known_fields()["llama-factory"]["read"],
    )


def _read_trl(values: Mapping[str, Any]) -> Found:
    fields = Fields(values)
    _pass_over_known(fields)
    for name in known_fields()["trl"]["others"]:
        if name in fields and fields.values[name] not in ("nll", "dft", "chunked_nll"):
            fields.pass_over(name, OTHER_STEP, rules_out=True)
    trained = None
    four, eight = fields.flag("load_in_4bit"), fields.flag("load_in_8bit")
    if fields.flag("use_peft"):
        trained = adapter(
            fields,
            four_bits=four,
            eight_bits="load_in_8bit" if eight else "",
            reentrant=fields.part("gradient_checkpointing_kwargs").flag("use_reentrant"),
            double=fields.flag("use_bnb_nested_quant"),
            rank="lora_r",
            saved="lora_modules_to_save",
            defaults=(16, 32, 0.05),
            targets="lora_target_modules",
        )
    keeps_apart = str(fields.values.get("packing_strategy") or "bfd").startswith("bfd")
    packing = None
    if fields.flag("packing"):
        packing = _packed(fields, "varlen" if keeps_apart else "", "packing_strategy", "wrapped")
    is_on = fields.flag("gradient_checkpointing", default=True)
    knobs = (
        {}
        if "gradient_checkpointing_kwargs" in fields
        else {"activation_checkpointing": str(Checkpointing.FULL if is_on else Checkpointing.NONE)}
    )
    return _of_trainer(
        fields,
        format_name="trl",
        knobs=knobs,
        model=fields.text("model_name_or_path"),
        length=fields.whole("max_length", 1024),
        adapter=trained,
        packing=packing,
        mixes=str(fields.values.get("dtype", fields.values.get("torch_dtype"))) != "bfloat16",
        bf16=not fields.flag("fp16"),
        reads=known_fields()["trl"]["read"],
    )


def _arguments(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer's arguments that say the settings, in a file that has ``values``."""
    # layers are checkpointed where no field says otherwise; figures are of torch's own sharding
    arguments = {"gradient_checkpointing": True, **values, "deepspeed": None}
    engine.check_sizes(values.get("deepspeed"), settings.all_values(), "the answer says")
    return trainer.tuned(question, settings, arguments)


def _tuned_llama_factory(
    question: Question, settings: Settings, values: Mapping[str, Any]
) -> dict[str, Any]:
    found = _arguments(question, settings, values)
    if found.get("fsdp") is True:  # of a transformers that it takes (5.8 at most), layers by a word
        found["fsdp"] = "full_shard auto_wrap" if reshards(settings) else "shard_grad_op auto_wrap"
        found["fsdp"] += " offload" * settings.cpu_offload
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        found.pop(name, None)
        found.pop(f"{name}_kwargs", None)
    none = settings.activation_checkpointing is Checkpointing.NONE
    return {**found, "disable_gradient_checkpointing": none or None}


def _tuned_trl(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    found = _arguments(question, settings, values)
    renamed = "activation_checkpointing"  # in newer releases of transformers, not of TRL
    return {name.replace(renamed, "gradient_checkpointing"): one for name, one in found.items()}


LLAMA_FACTORY = Reader(
    name="llama-factory",
    marks=frozenset({"finetuning_type", "cutoff_len"}),
    read=_read_llama_factory,
    tuned=_tuned_llama_factory,
)
TRL = Reader(
    name="trl",
    marks=frozenset({
        "max_length", "use_peft", "packing", "padding_free", "assistant_only_loss",
        "completion_only_loss",
    }),
    read=_read_trl,
    tuned=_tuned_trl,
)  # fmt: skip
