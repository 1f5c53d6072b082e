"""Adapters: small matrices that are trained beside a model that is frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from tuner.catalog.models import Task
from tuner.core.bounds import Number, Whole, check_bounds, choice
from tuner.errors import UsageError, did_you_mean
from tuner.model import ModelConfig
from tuner.model.shape import Linear, end_names, linears
from tuner.serialization import plain

# Channels between an adapter's two matrices; more is a mistake.
LARGEST_RANK = 2**14
LARGEST_ALPHA = 2**16
ALPHA = f"must be above 0, {LARGEST_ALPHA} at most"
# peft's word for every linear layer but the output head (``INCLUDE_LINEAR_LAYERS_SHORTHAND`` in
# peft/utils/constants.py, 0.21).
ALL_LINEAR = "all-linear"


class AdapterMethod(StrEnum):
    """The kind of an adapter."""

    LORA = "lora"  # Hu et al. 2021, https://arxiv.org/abs/2106.09685
    QLORA = "qlora"  # the same beside a quantized model: Dettmers et al. 2023, arXiv 2305.14314


class Quantize(StrEnum):
    """Number formats that bitsandbytes keeps a frozen model in."""

    NF4 = "nf4"  # four bits, of which eight weights are packed in four bytes: of qlora
    FP4 = "fp4"
    INT8 = "int8"  # a byte, LLM.int8(): Dettmers et al. 2022, arXiv 2208.07339; of lora


# Weights in a block with a scale of its own, and scales in a block of these where they are
# quantized too (``quantize_4bit`` in bitsandbytes/functional.py, 0.50).
BLOCK, SCALES = 64, 256
# What only a quantized model has, and the defaults of qlora, as users' scripts have them.
QUANTIZED: Mapping[str, object] = {"quantize": Quantize.NF4, "double_quant": True}


def names_of(field: str, given: object) -> tuple[str, ...]:
    """The names in a list, each once. Raises UsageError: it is no list of texts."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise UsageError(field, given, "must be a list of names")
    return tuple(sorted({one.strip() for one in given} - {""}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What is trained in the place of the model, with peft's names; defaults are those of TRL
    (``ModelConfig`` in trl/trainer/model_config.py), which trains all linear layers
    here.

    Scale and dropout change no shapes. Dropout is of each adapted layer's input, and keeps a mask.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "json_schema_extra": {"required": ["method"]},  # in an object, which says what it is of
    }

    method: AdapterMethod = AdapterMethod.LORA  # the kind of adapter
    rank: Annotated[int, Whole(1, LARGEST_RANK)] = 16  # channels between the two matrices
    alpha: Annotated[float, Number(0, LARGEST_ALPHA, ALPHA, above=True)] = 32.0
    """Over the rank it scales what is added."""
    dropout: Annotated[float, Number(0, 1, "must be from 0 to below 1", below=True)] = 0.05
    """Of the adapted layers' inputs."""
    target_modules: tuple[str, ...] = (ALL_LINEAR,)
    """Names of linear layers in each decoder layer, or ``all-linear``."""
    modules_to_save: tuple[str, ...] = ()
    """Names of modules of which copies are trained whole beside it, such as ``embed_tokens``."""
    quantize: Quantize = Quantize.NF4
    """Number format of the frozen model's linear layers: nf4 or fp4 of qlora; of lora they are as
    they are computed with, but where it is int8."""
    double_quant: bool = True  # whether the scales of qlora's blocks are quantized too

    def __post_init__(self) -> None:
        for name in ("target_modules", "modules_to_save"):
            object.__setattr__(self, name, names_of(name, getattr(self, name)))
        names = self.target_modules
        if not names:
            allowed = f"must be {ALL_LINEAR}, or names of linear layers such as q_proj,v_proj"
            raise UsageError("target_modules", "", allowed)
        if ALL_LINEAR in names and len(names) > 1:
            raise UsageError("target_modules", ",".join(names), "all-linear stands by itself")
        if self.quantizes and self.quantize is Quantize.INT8:
            allowed = f"is of the method {AdapterMethod.LORA}: {AdapterMethod.QLORA} has four bits"
            raise UsageError("quantize", str(self.quantize), allowed)
        if not self.quantizes:
            for name, default in QUANTIZED.items():
                value = getattr(self, name)
                if value not in (default, Quantize.INT8):
                    raise UsageError(name, str(value), f"needs the method {AdapterMethod.QLORA}")
        check_bounds(self)

    def __str__(self) -> str:
        """Such as ``lora of rank 16 on all-linear``."""
        kept = f" beside {self.quantize}" if self.eight_bits else ""
        if self.quantizes:
            kept = f" beside {self.quantize}{' with double quantization' * self.double_quant}"
        if self.modules_to_save:
            kept += f", {' and '.join(self.modules_to_save)} trained whole"
        return f"{self.method} of rank {self.rank} on {', '.join(self.target_modules)}{kept}"

    @property
    def quantizes(self) -> bool:
        """Whether the frozen model's linear layers are kept in four bits."""
        return self.method is AdapterMethod.QLORA

    @property
    def eight_bits(self) -> bool:
        """Whether they are kept in eight."""
        return not self.quantizes and self.quantize is Quantize.INT8

    def scale_bytes(self, inputs: int, outputs: int) -> int:
        """Bytes of what bitsandbytes keeps beside a quantized matrix, in the allocator's blocks of
        512: the format's 16 values, and an fp32 for each block, or a byte where these are quantized
        too, with 256 values, an fp32 for each block of them, and their mean (``QuantState``); in
        eight bits an fp32 for each row (``Int8Params.SCB``); 0 of what is not quantized."""
        blocks = -(-inputs * outputs // BLOCK)
        parts: tuple[int, ...] = (64, 4 * blocks) if self.quantizes else ()
        if self.eight_bits:
            parts = (4 * outputs,)
        elif self.quantizes and self.double_quant:
            parts = (64, blocks, 4 * 256, 4 * -(-blocks // SCALES), 4)
        return sum(-(-part // 512) * 512 for part in parts)

    def check(self, model: ModelConfig) -> None:
        """Refuses names that no linear layer of the model has. Raises UsageError: with those that
        it has."""
        if self.eight_bits and (model.is_traced or model.experts):
            what = "experts" if model.experts else "such linear layers"
            allowed = f"is priced by arithmetic, which knows none of {what} of {model.model_type}"
            raise UsageError("adapter.quantize", str(self.quantize), allowed)
        if model.is_traced:
            sees = model.task is Task.IMAGE_TEXT_TO_TEXT
            if not model.is_causal_lm and (self.quantizes or not sees):
                allowed = f"is not covered for {model.type_and_task}"
                raise UsageError("adapter", str(self.method), allowed + ": lora is" * sees)
            return  # its linear layers are not known before its dry run
        if model.experts:
            return  # peft packs and names what it adapts of experts (``ParamWrapper``): see there
        known = tuple(dict.fromkeys(one.name for one in linears(model)))
        odd = [one for one in self.target_modules if one not in known and one != ALL_LINEAR]
        if odd:
            allowed = f"must be {ALL_LINEAR} or of {', '.join(known)}, which {model.name} has"
            allowed += did_you_mean(odd[0], [ALL_LINEAR, *known])
            raise UsageError("adapter.target_modules", ",".join(odd), allowed)
        ends = end_names(model)
        if odd := [one for one in self.modules_to_save if one not in ends]:
            allowed = f"must be of {', '.join(ends)}, which {model.name} has"
            allowed += did_you_mean(odd[0], ends)
            raise UsageError("adapter.modules_to_save", ",".join(odd), allowed)
        if self.modules_to_save and model.tied_embeddings:
            allowed = f"is not covered for {model.name}, whose output head is its embedding"
            raise UsageError("adapter.modules_to_save", ",".join(self.modules_to_save), allowed)

    def targets(self, name: str) -> bool:
        """Tells whether a linear layer of this name is adapted."""
        return name in self.target_modules or ALL_LINEAR in self.target_modules

    def adapted(self, model: ModelConfig) -> tuple[Linear, ...]:
        """The adapted linear layers of a decoder layer, in the order of its modules."""
        return tuple(one for one in linears(model) if self.targets(one.name))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; what only a quantized model has is left out of others, and what came
        later while it is the default: identities stay."""
        left_out = set() if self.quantizes else {*QUANTIZED}
        left_out -= {"quantize"} if self.eight_bits else set()
        left_out |= set() if self.modules_to_save else {"modules_to_save"}
        return {
            f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in left_out
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Adapter":
        """The reverse of :meth:`as_dict`."""
        method = choice("method", AdapterMethod, values["method"])
        given = {**values, "method": method}
        if "quantize" in given:
            given["quantize"] = choice("quantize", Quantize, given["quantize"])
        return cls(**given)
