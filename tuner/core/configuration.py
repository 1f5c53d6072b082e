"""One candidate of the search: the knobs of a distributed training step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import Any

from tuner.core.bounds import choice
from tuner.errors import UsageError, did_you_mean


class Sharding(StrEnum):
    """Ways to split a model among the data-parallel ranks."""

    DDP = "ddp"  # nothing: every rank holds the whole model
    ZERO1 = "zero1"  # optimizer state (nanotron and deepspeed)
    SHARD_GRAD_OP = "shard_grad_op"  # gradients and optimizer state (ZeRO-2)
    FULL_SHARD = "full_shard"  # parameters too (ZeRO-3)
    HYBRID_SHARD = "hybrid_shard"  # as full_shard within a node, replicated between nodes


# What they are called elsewhere, told of whoever writes it; FSDP's default is its full shard.
CALLED = {
    "zero2": Sharding.SHARD_GRAD_OP,
    **dict.fromkeys(("fsdp", "fsdp1", "fsdp2", "zero3"), Sharding.FULL_SHARD),
    **dict.fromkeys(("hsdp", "zero++"), Sharding.HYBRID_SHARD),
}
# Shardings that FSDP does: they split gradients and optimizer state at least.
FSDP = (Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD, Sharding.HYBRID_SHARD)


class Checkpointing(StrEnum):
    """Ways to compute again in backward instead of keeping from forward: a ladder."""

    NONE = "none"
    SELECTIVE = "selective"  # of every layer all but matrix products and attention
    EVERY_2 = "every_2"  # every second layer, from the first on; only its input is kept
    FULL = "full"  # every decoder layer; only its input is kept
    OFFLOAD = "offload"  # as full, and the inputs wait for backward in host memory

    def of_layer(self, index: int) -> "Checkpointing":
        """What a decoder layer does by itself: anything but ``every_2``.

        ``every_2`` takes the layers that transformers takes (``every_n_layers`` of
        ``_set_gradient_checkpointing`` in modeling_utils.py, 5.18): the first, the third, ...
        """
        if self is Checkpointing.EVERY_2:
            return Checkpointing.NONE if index % 2 else Checkpointing.FULL
        return self

    def layers_again(self, layers: int) -> int:
        """How many of so many decoder layers backward computes again, in part or whole."""
        if self is Checkpointing.EVERY_2:
            return -(-layers // 2)
        return 0 if self is Checkpointing.NONE else layers


class _Kept:
    """Keeps hash, text and layout of a configuration once computed; no fields, so never copied."""

    __slots__ = ("_class", "_hash", "_text")
    _class: "Settings"
    _hash: int
    _text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(_Kept):
    """One candidate. ``str(settings)`` is its canonical key, and ``parse_settings`` reads it back.

    Inactive knobs hold one canonical value (see :mod:`tuner.space`), so equal settings train
    the same way and compare equal.
    """

    sharding: Sharding = Sharding.DDP
    """How model, gradients and optimizer state are split over the data-parallel ranks."""
    tp_size: int = 1
    """Ranks that split each layer (tensor parallelism, sequence parallel between the blocks)."""
    tp_recompute_allgather: bool = False
    """Whether backward gathers activations again instead of keeping them gathered."""
    pp_size: int = 1  # pipeline stages
    cp_size: int = 1
    """Ranks that split each sequence (context parallelism), and the model's shards with it."""
    micro_batch_size: int = 1  # sequences that one data-parallel rank computes at once
    gradient_accumulation_steps: int = 1  # micro-batches of one rank in one optimizer step
    sync_each_batch: bool = True
    """Whether gradients are reduced after every micro-batch, or only after the last."""
    defer_all_reduce: bool = False
    """Whether replicas of shards reduce after the last micro-batch only, ranks of a shard group
    after each (``FSDPModule.set_requires_all_reduce``)."""
    activation_checkpointing: Checkpointing = Checkpointing.NONE
    """What is computed again in backward."""
    cpu_offload: bool = False
    """Whether parameters, gradients and optimizer state live in host memory."""
    fused_loss: bool = False
    """Whether logits and loss are computed part by part, without the whole logits in memory."""

    def __post_init__(self) -> None:
        sizes = (*NO_MODEL_PARALLELISM, "micro_batch_size", "gradient_accumulation_steps")
        for name in sizes:
            value = getattr(self, name)
            if value < 1:
                raise UsageError(name, value, "must be a positive integer")

    @property
    def splits_layers(self) -> bool:
        """Whether each layer is split over ranks: tensor parallelism."""
        return self.tp_size > 1

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
            parts = filter(None, map(_part, KNOBS, _VALUES(self)))
            object.__setattr__(self, "_text", ",".join(parts))
            return self._text

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, in the order of the fields, as they are stored and hashed: knobs that
        are left out at their default (:attr:`Knob.added_later`) are not among them then."""
        values = self.all_values().items()
        return {name: v for name, v in values if name not in UNSAID or v != UNSAID[name]}

    def all_values(self) -> dict[str, Any]:
        """As :meth:`as_dict`, of every knob: for tables, and for who reads knobs by name."""
        values = ((name, getattr(self, name)) for name in KNOBS)
        return {name: str(v) if isinstance(v, StrEnum) else v for name, v in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """The reverse of :meth:`as_dict` and :meth:`all_values`; absent knobs take their defaults.
        Raises UsageError: an unknown knob, or a value of the wrong kind."""
        return cls(**{name: knob_value(name, value) for name, value in values.items()})

    @property
    def layout(self) -> "Settings":
        """The settings without micro-batch size and accumulation, which are set to 1."""
        try:
            return self._class
        except AttributeError:
            object.__setattr__(self, "_class", _class_of(*_OF_CLASS(self)))
            return self._class

    @property
    def model_parallel_size(self) -> int:
        """Ranks that compute the same sequences together: ``tp_size * pp_size * cp_size``."""
        return self.tp_size * self.pp_size * self.cp_size

    def data_parallel_size(self, world_size: int) -> int:
        """Ranks that see different data: ``world_size / (tp_size * pp_size * cp_size)``."""
        return world_size // self.model_parallel_size

    def sharing_size(self, world_size: int) -> int:
        """Ranks that share a model's shards, and reduce its gradients together: those that see
        different data, and under context parallelism those that see parts of one sequence."""
        return self.data_parallel_size(world_size) * self.cp_size


# What launchers that split nothing but data run.
NO_MODEL_PARALLELISM: Mapping[str, int] = {"tp_size": 1, "pp_size": 1, "cp_size": 1}


def model_parallel_size(knobs: Mapping[str, int]) -> int:
    """:attr:`Settings.model_parallel_size` of knobs some of which are not said."""
    return prod(knobs.get(name, one) for name, one in NO_MODEL_PARALLELISM.items())


def idle_knobs(settings: Settings) -> frozenset[str]:
    """Knobs that do nothing beside the others' values, whatever the question."""
    one_micro_batch, unsplit = settings.gradient_accumulation_steps == 1, not settings.splits_layers
    found = {"sync_each_batch", "defer_all_reduce"} if one_micro_batch else set()
    return frozenset(found | ({"tp_recompute_allgather"} if unsplit else set()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Describes one knob: all that commands, REST, forms, tables and reports need to know of it."""

    kind: type  # type of its values: an enumeration, ``bool`` or ``int`` (a positive one)
    label: str  # its name for people
    head: str  # head of its column in a terminal's table, of one or two lines
    live_when: str
    """Condition under which it makes a difference; versions of a stack may rule it out too."""
    values: Mapping[Any, str] = field(default_factory=dict)
    """Values of an enumeration with a hint for people."""
    added_later: bool = False
    """Whether configurations were stored before it came: text and JSON then name it off its default
    only, so that what was recorded without it keeps its text, its hash and its identity."""


# A knob is added here, and where it acts: the cost model, the probe and the launch files.
# Every knob by its name, in the order in which a configuration is written.
KNOBS: Mapping[str, Knob] = {
    "sharding": Knob(
        kind=Sharding,
        label="Sharding",
        head="sharding",
        live_when="several ranks see different data",
        values={
            Sharding.DDP: "ddp: nothing is split",
            Sharding.ZERO1: "zero1: optimizer state (nanotron, deepspeed)",
            Sharding.SHARD_GRAD_OP: "shard_grad_op: gradients and state",
            Sharding.FULL_SHARD: "full_shard: parameters too",
            Sharding.HYBRID_SHARD: "hybrid_shard: full within a node",
        },
    ),
    "tp_size": Knob(kind=int, label="Tensor-parallel size", head="tp\nsize", live_when="always"),
    "tp_recompute_allgather": Knob(
        kind=bool,
        label="Gather activations again in backward",
        head="re-\ngather",
        live_when="tp_size > 1",
    ),
    "pp_size": Knob(
        kind=int,
        label="Pipeline stages",
        head="pp\nsize",
        live_when="the stack has pipelines (nanotron)",
    ),
    "cp_size": Knob(
        kind=int,
        label="Context-parallel size",
        head="cp\nsize",
        live_when="the stack has ring attention, on GPUs; only where asked for",
        added_later=True,
    ),
    "micro_batch_size": Knob(
        kind=int, label="Micro-batch size", head="micro\nbatch", live_when="always"
    ),
    "gradient_accumulation_steps": Knob(
        kind=int,
        label="Accumulation steps",
        head="accum\nsteps",
        live_when="always; it follows from the global batch size",
    ),
    "sync_each_batch": Knob(
        kind=bool,
        label="Sync gradients after each micro-batch",
        head="sync\neach",
        live_when="accumulation > 1 and several ranks see different data",
    ),
    "defer_all_reduce": Knob(
        kind=bool,
        label="Sync replicas after the last micro-batch only",
        head="defer\nreduce",
        live_when="hybrid_shard, accumulation > 1 and sync_each_batch",
        added_later=True,
    ),
    "activation_checkpointing": Knob(
        kind=Checkpointing,
        label="Activation checkpointing",
        head="ckpt",
        live_when="always",
        values={
            Checkpointing.NONE: "none: all is kept",
            Checkpointing.SELECTIVE: "selective: products and attention are kept",
            Checkpointing.EVERY_2: "every_2: every second layer",
            Checkpointing.FULL: "full: every layer",
            Checkpointing.OFFLOAD: "offload: every layer, its input on the host",
        },
    ),
    "cpu_offload": Knob(
        kind=bool, label="Offload to host memory", head="off-\nload", live_when="sharded"
    ),
    "fused_loss": Knob(
        kind=bool,
        label="Loss without whole logits",
        head="fused\nloss",
        live_when="tp_size 1, where the stack has it",
        added_later=True,
    ),
}

# The defaults at which a knob is left out of text and JSON.
UNSAID: Mapping[str, Any] = {
    name: getattr(Settings(), name) for name, knob in KNOBS.items() if knob.added_later
}
# The values of all knobs.
_VALUES = attrgetter(*KNOBS)
# The knob that makes up the global batch: it follows from those that are chosen.
ACCUMULATION = "gradient_accumulation_steps"
# The knobs in which settings of one class differ.
BATCH = ("micro_batch_size", ACCUMULATION)
# The values of all knobs that are chosen but one, by that one.
OTHERS_CHOSEN: Mapping[str, Callable[[Settings], Any]] = {
    knob: attrgetter(*(name for name in KNOBS if name not in (knob, ACCUMULATION)))
    for knob in KNOBS
}
_CLASS = tuple(name for name in KNOBS if name not in BATCH)
# The values of the knobs that all settings of a class have.
_OF_CLASS = attrgetter(*_CLASS)


# A space has few classes, which its settings share.
@lru_cache(maxsize=4096)
def _class_of(*values: Any) -> Settings:
    return Settings(**dict(zip(_CLASS, values, strict=True)))


def no_knob(name: str) -> str:
    """Says that a name is of no knob, which ones there are, and which is most like it."""
    return f"no such knob{did_you_mean(name, KNOBS)}; the knobs are {', '.join(KNOBS)}"


def knob_value(name: str, value: object) -> Any:
    """One knob's value from JSON or from the command line's text. Raises UsageError: an unknown
    knob, or a value that the knob cannot take."""
    if name not in KNOBS:
        raise UsageError("settings", name, no_knob(name))
    kind = KNOBS[name].kind
    if issubclass(kind, StrEnum):
        return choice(name, kind, value, CALLED if kind is Sharding else {})
    if kind is bool:
        known = {"true": True, "false": False}.get(str(value).lower())
        if known is None or not isinstance(value, bool | str):
            raise UsageError(name, value, "must be true or false")
        return known
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
        raise UsageError(name, value, "must be a positive integer")
    return value


# A study is read again after every probe: the same object has its hash and its text already.
@lru_cache(maxsize=4096)
def parse_settings(text: str) -> Settings:
    """Settings from ``knob=value,knob=value``. Raises UsageError: not of that form, an unknown or
    repeated knob, or a bad value."""
    values: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UsageError("settings", part, "must look like knob=value,knob=value")
        if name in values:
            raise UsageError("settings", name, "is given twice")
        values[name] = value
    return Settings.from_dict(values)


# Settings are put in order by their text, and the same values come again and again.
@lru_cache(maxsize=4096)
def _part(name: str, value: object) -> str:
    if name in UNSAID and value == UNSAID[name]:
        return ""
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveKnob:
    """A knob that does not act."""

    knob: str  # its name
    why: str  # a whole sentence: the value it has, where, and the reason
