"""What files of fine-tuning programs say alike: adapters, optimizers, another engine."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tuner.core.adapter import ALL_LINEAR
from tuner.core.configuration import Sharding
from tuner.core.workload import Optimizer
from tuner.errors import UsageError
from tuner.launchfiles import deepspeed as engine
from tuner.launchfiles import trainer
from tuner.launchfiles.fields import ABSENT, Fields, Found, known_fields

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


def optimizer_of(fields: Fields, name: str, known: Mapping[str, Optimizer]) -> Optimizer:
    """The optimizer that a field names, or what one that is not predicted is counted as."""
    word = str(fields.values.get(name) or "adamw_torch_fused").lower()
    if word in known:
        return known[word]
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
        effect = "frozen weights of 8 bits are counted as bf16: up to half of them is too much"
        fields.pass_over(eight_bits, effect, True)
    return found


def pass_over_known(fields: Fields) -> None:
    """Notes the fields that are there which no figure counts."""
    for name, effect in uncounted().items():
        if name in fields and fields.values[name] not in (False, "false", "none", 0):
            fields.pass_over(name, effect)


def packed(fields: Fields, is_packed: bool, variant: str, name: str, value: object) -> Any:
    """What packs documents; of rows that are ``is_packed`` without a ``variant`` a field is noted
    by which they are."""
    if not is_packed:
        return None
    if variant:
        return {"variant": variant}
    effect = "documents of a row see each other: counted as one, which they are there"
    fields.pass_over(name, effect, value)
    return None


def of_trainer(
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
    reads: frozenset[str],
) -> Found:
    """What a file of ``TrainingArguments`` and more says.

    Args:
        fields: the file's.
        format_name: whose file it is.
        knobs: those that the program says in its own way.
        model: its name.
        length: tokens of a sequence.
        adapter: what is trained in the model's place.
        packing: how documents lie in a sequence.
        mixes: whether what is trained is kept in fp32.
        bf16: whether numbers are bf16 unless that is said.
        reads: fields that the program has beside the Trainer's, and that are looked at.
    """
    known = known_fields()["trainer"]
    fields.refuse_misspelt({*reads, *known["read"], *known["refused"], *uncounted()})
    own = {
        name: value
        for name, value in fields.values.items()
        if name in known["read"] and name not in ("optim", "deepspeed")
    }
    optimizer = optimizer_of(fields, "optim", trainer.OPTIMIZERS)
    by_engine = deepspeed(fields) if fields.values.get("deepspeed") else {}
    liger = fields.flag("enable_liger_kernel") or fields.flag("use_liger_kernel")
    found = trainer.read({**own, "use_liger_kernel": liger})
    values = {**found.knobs, **knobs, **by_engine}
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
