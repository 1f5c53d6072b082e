"""One candidate of the search: the knobs of a distributed training step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any

from tuner.errors import UsageError


class Sharding(StrEnum):
    """What the data-parallel ranks split among themselves."""

    DDP = "ddp"  # nothing: every rank holds the whole model
    ZERO1 = "zero1"  # optimizer state (nanotron only)
    SHARD_GRAD_OP = "shard_grad_op"  # gradients and optimizer state (ZeRO-2)
    FULL_SHARD = "full_shard"  # parameters too (ZeRO-3)
    HYBRID_SHARD = "hybrid_shard"  # as full_shard within a node, replicated between nodes


FSDP = (Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD, Sharding.HYBRID_SHARD)
"""Shardings that FSDP does: they split gradients and optimizer state at least."""


class Checkpointing(StrEnum):
    """What backward computes again instead of keeping it from forward."""

    NONE = "none"
    FULL = "full"  # every decoder layer; only its input is kept


class _Kept:
    """What settings keep of themselves once it was asked for; no fields, so never copied."""

    __slots__ = ("_class", "_hash", "_text")
    _class: "Settings"
    _hash: int
    _text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(_Kept):
    """One candidate. ``str(settings)`` is its canonical key, and ``parse_settings`` reads it back.

    Dead knobs hold one canonical value (see :mod:`tuner.space`), so equal settings train
    the same way and compare equal.
    """

    sharding: Sharding = Sharding.DDP
    """How model, gradients and optimizer state are split over the data-parallel ranks."""
    tp_size: int = 1
    """Ranks that split each layer (tensor parallelism, sequence parallel between the blocks)."""
    tp_recompute_allgather: bool = False
    """Whether backward gathers activations again instead of keeping them gathered."""
    pp_size: int = 1
    """Pipeline stages."""
    micro_batch_size: int = 1
    """Sequences that one data-parallel rank computes at once."""
    gradient_accumulation_steps: int = 1
    """Micro-batches of one rank in one optimizer step."""
    sync_each_batch: bool = True
    """Whether gradients are reduced after every micro-batch, or only after the last."""
    activation_checkpointing: Checkpointing = Checkpointing.NONE
    """What is computed again in backward."""
    cpu_offload: bool = False
    """Whether parameters, gradients and optimizer state live in host memory."""

    def __post_init__(self) -> None:
        for name in ("tp_size", "pp_size", "micro_batch_size", "gradient_accumulation_steps"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(name, value, "must be a positive integer")

    # Whatever is known of a space is found by its settings: a page looks up some 80,000 times.
    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(_VALUES(self)))
            return self._hash

    def __str__(self) -> str:
        try:
            return self._text
        except AttributeError:
            object.__setattr__(self, "_text", ",".join(map(_part, KNOBS, _VALUES(self))))
            return self._text

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, in the order of the fields."""
        values = ((name, getattr(self, name)) for name in KNOBS)
        return {name: str(v) if isinstance(v, StrEnum) else v for name, v in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """The reverse of :meth:`as_dict`; absent knobs take their defaults.

        Raises:
            UsageError: an unknown knob, or a value of the wrong kind.
        """
        return cls(**{name: knob_value(name, value) for name, value in values.items()})

    @property
    def settings_class(self) -> "Settings":
        """The settings without micro-batch size and accumulation, which are set to 1."""
        try:
            return self._class
        except AttributeError:
            object.__setattr__(self, "_class", _class_of(*_OF_CLASS(self)))
            return self._class

    def data_parallel_size(self, world_size: int) -> int:
        """Ranks that see different data: ``world_size / (tp_size * pp_size)``."""
        return world_size // (self.tp_size * self.pp_size)


KNOBS: Mapping[str, type] = {
    "sharding": Sharding,
    "tp_size": int,
    "tp_recompute_allgather": bool,
    "pp_size": int,
    "micro_batch_size": int,
    "gradient_accumulation_steps": int,
    "sync_each_batch": bool,
    "activation_checkpointing": Checkpointing,
    "cpu_offload": bool,
}
"""Every knob and the type of its values."""

_VALUES = attrgetter(*KNOBS)
"""The values of all knobs."""
ACCUMULATION = "gradient_accumulation_steps"
"""The knob that makes up the global batch: it follows from those that are chosen."""
BATCH = ("micro_batch_size", ACCUMULATION)
"""The knobs in which settings of one class differ."""
OTHERS_CHOSEN: Mapping[str, Callable[[Settings], Any]] = {
    knob: attrgetter(*(name for name in KNOBS if name not in (knob, ACCUMULATION)))
    for knob in KNOBS
}
"""The values of all knobs that are chosen but one, by that one."""
_CLASS = tuple(name for name in KNOBS if name not in BATCH)
_OF_CLASS = attrgetter(*_CLASS)
"""The values of the knobs that all settings of a class have."""


# A space has few classes, which its settings share.
@lru_cache(maxsize=4096)
def _class_of(*values: Any) -> Settings:
    return Settings(**dict(zip(_CLASS, values, strict=True)))


def knob_value(name: str, value: object) -> Any:
    """One knob's value from JSON or from the command line's text.

    Raises:
        UsageError: an unknown knob, or a value that the knob cannot take.
    """
    kind = KNOBS.get(name)
    if kind is None:
        raise UsageError("settings", name, f"no such knob; the knobs are {', '.join(KNOBS)}")
    if issubclass(kind, StrEnum):
        if value in list(kind):
            return kind(str(value))
        raise UsageError(name, value, f"must be one of {', '.join(kind)}")
    if kind is bool:
        return _bool(name, value)
    return _positive(name, value)


def parse_settings(text: str) -> Settings:
    """Settings from ``knob=value,knob=value``.

    Raises:
        UsageError: not of that form, an unknown or repeated knob, or a bad value.
    """
    values: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UsageError("settings", part, "must look like knob=value,knob=value")
        if name in values:
            raise UsageError("settings", name, "is given twice")
        values[name] = value
    return Settings.from_dict(values)


def _bool(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise UsageError(name, value, "must be true or false")


def _positive(name: str, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
        raise UsageError(name, value, "must be a positive integer")
    return value


# Settings are put in order by their text, and the same values come again and again.
@lru_cache(maxsize=4096)
def _part(name: str, value: object) -> str:
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"
