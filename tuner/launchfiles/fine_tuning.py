"""What files of fine-tuning programs say alike: adapters, optimizers, another engine."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.core.adapter import ALL_LINEAR
from tuner.core.configuration import Sharding
from tuner.core.workload import Optimizer
from tuner.errors import UsageError
from tuner.launchfiles import deepspeed as engine
from tuner.launchfiles import trainer
from tuner.launchfiles.fields import ABSENT, Fields, Found

KERNELS = "these kernels are not predicted: mostly faster, with less memory"
FEWER_GRADIENTS = "parts are frozen, and counted as trained: less memory and time than predicted"
OTHER_ENGINE = "the figures are of torch's own sharding: DeepSpeed has other buffers and speed"

OTHER_STEP = "other training than on given answers, which is not predicted"
_DORA = "weights are decomposed: more memory and time than predicted"
_COMPILED = "compiled models are not predicted: mostly faster, with less memory"
_EIGHT_BITS = "products in 8 bits are not predicted: faster on GPUs that have them"
# Fields of such programs, and of the Trainer, that no figure takes into account, and what each may
# change; a program of which one is read passes over it.
UNCOUNTED: Mapping[str, str] = {
    **dict.fromkeys(
        ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel",
         "liger_rms_norm", "liger_glu_activation", "liger_layer_norm", "liger_rope",
         "liger_rms_norm_gated", "liger_swiglu", "flash_attn_rms_norm", "flash_attn_fuse_mlp",
         "flash_attn_cross_entropy", "fused_attn_kernel", "gemma4_hybrid_attn_impl",
         "use_dsv4_kernels", "use_glm_dsa_kernels", "tiled_mlp", "use_unsloth",
         "enable_liger_kernel", "use_v1_kernels"), KERNELS,
    ),
    **dict.fromkeys(
        ("use_kernels", "use_scattermoe", "use_sonicmoe", "experts_implementation",
         "llama4_linearized_experts", "dsv4_fp4_grouped_mode"),
        "experts are computed by other kernels, mostly faster",
    ),
    "lora_target_parameters": "experts are adapted too: more memory and time than predicted",
    "quantize_moe_experts": "experts are kept in fewer bits: less memory than predicted",
    **dict.fromkeys(
        ("unfrozen_parameters", "freeze_mm_modules", "lisa_n_layers", "use_badam"),
        FEWER_GRADIENTS,
    ),
    "relora": "adapters are merged now and then, and begin anew",
    "qat": "weights are quantized in forward: slower than predicted",
    **dict.fromkeys(
        ("context_parallel_size", "sequence_parallel_degree"),
        "sequences are split over GPUs, and are predicted whole",
    ),
    "expert_parallel_size": "experts are split over GPUs, and are predicted as they are sharded",
    "gptq": "the frozen model is kept in the format of GPTQ, and is predicted in bf16",
    "model_quantization_config": "the model is loaded in another number format",
    "ddp_find_unused_parameters": "DDP looks for unused parameters in each step: slower",
    "resize_token_embeddings_to_32x": "the vocabulary becomes a little larger",
    "use_onebitllms": "weights of few bits are not predicted",
    "processor_type": "images and sounds are not counted: figures are of the language model alone",
    "overrides_of_model_config": "the model's shape may be another",
    "peft_use_dora": _DORA, "use_dora": _DORA,
    "fp8": _EIGHT_BITS, "enable_fp8": _EIGHT_BITS,
    "torch_compile": _COMPILED, "torch_compile_backend": _COMPILED,
    "freeze_vision_tower": "images are not counted: figures are of the language model alone",
    **dict.fromkeys(("use_galore", "use_apollo", "use_adam_mini"),
                    "this optimizer is not predicted"),
    "mixture_of_depths": "layers are passed over: less memory and time than predicted",
    "shift_attn": "attention is shorter than predicted",
    **dict.fromkeys(("activation_offloading", "use_unsloth_gc"),
                    "kept activations wait on the host: less memory, mostly slower"),
    "fp16": "fp16 is not predicted: the figures are of bf16, whose numbers are as large",
    "auto_find_batch_size": "the Trainer makes the batch smaller where memory runs out",
    "parallelism_config": "is not predicted: each model is on one GPU, or sharded",
}  # fmt: skip

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
    """Notes the fields of :data:`UNCOUNTED` that are there."""
    for name, effect in UNCOUNTED.items():
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
    fields.refuse_misspelt(reads | trainer.READ | UNCOUNTED.keys())
    own = {
        name: value
        for name, value in fields.values.items()
        if name in trainer.READ and name not in ("optim", "deepspeed", *trainer.REFUSED)
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
