"""The fields of a configuration file, each taken by its kind or refused by its path."""

import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from tuner.core.configuration import Settings
from tuner.core.study import Question
from tuner.cost.memory.zero import Zero
from tuner.errors import UsageError, did_you_mean

T = TypeVar("T")
# What stands for nothing, in files that write all their fields out.
ABSENT: tuple[object, ...] = (None, "", {}, [])
_OFF = ("no", "false")
# Of a whole number; launchers have none that is larger.
LARGEST = 2**31 - 1
# Likeness of names (difflib's ratio) from which one is taken for a slip of the other; no field of
# ``TrainingArguments`` is so like one that is read.
LIKE = 0.88


@cache
def known_fields() -> Mapping[str, Mapping[str, Any]]:
    """What is known of fields by their names alone, by program: ``fields.toml``."""
    text = files("tuner.launchfiles").joinpath("fields.toml").read_text("utf-8")
    return tomllib.loads(text)


class Fields:
    """An object of a configuration file."""

    def __init__(self, values: object, path: str = "") -> None:
        """The object at ``path``, which ends with a dot; nothing for ``None``.

        Raises:
            UsageError: it is no object.
        """
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            raise UsageError(path.rstrip(".") or "file", values, "must be an object of fields")
        self.values: Mapping[str, Any] = values
        self.path = path
        self.uncounted: list[Uncounted] = []

    def pass_over(
        self, name: str, effect: str, value: object = None, *, rules_out: bool = False
    ) -> None:
        """Notes a field that no figure takes into account, by default with its own value."""
        value = self.values.get(name) if value is None else value
        self.uncounted.append(Uncounted(key=name, value=value, effect=effect, rules_out=rules_out))

    def pass_over_evaluation(
        self, when: Iterable[str], batch: str, micro: int, default: int = 0
    ) -> None:
        """Notes evaluation between the steps, if one of ``when`` asks for it; with its ``batch``,
        or the ``default`` of one that is not said, where that is larger than a micro-batch."""
        named = [name for name in when if str(self.values.get(name) or "no").lower() not in _OFF]
        if not named:
            return
        self.pass_over(named[0], "evaluation takes time of its own, beside the steps")
        said = batch in self
        size = self.values[batch] if said else default
        if isinstance(size, int) and size > micro:
            effect = f"more sequences at once than the {micro} of a micro-batch: evaluation"
            effect += " may need more memory than a step"
            self.pass_over(batch, effect, size if said else f"{size} by default")

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) not in ABSENT

    def any_of(self, *names: str) -> str:
        """The first of these spellings that is there, or else the first."""
        return next((name for name in names if name in self), names[0])

    def part(self, name: str) -> "Fields":
        """An object in it; an empty one where it is not there."""
        value = self.values.get(name)
        return Fields(None if value in ABSENT else value, f"{self.path}{name}.")

    def whole(self, name: str, default: int | None = None) -> int | None:
        """A positive whole number, of at most :data:`LARGEST`."""
        value = self.values.get(name)
        if value in ABSENT:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST:
            raise self.error(name, "must be a positive whole number")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value in ABSENT:
            return default
        word = str(value).lower()
        if word not in ("true", "false"):
            raise self.error(name, "must be true or false")
        return word == "true"

    def number(self, name: str, default: float) -> float:
        """A number of any kind."""
        value = self.values.get(name)
        if value in ABSENT:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, "must be a number")
        if not abs(value) <= sys.float_info.max:  # which NaN is not either
            raise self.error(name, "must be a number that is finite")
        return value

    def text(self, name: str) -> str:
        """A word or a path, which must be there."""
        value = self.values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, "must be a name, or a path")
        return value.strip()

    def words(self, name: str) -> list[str]:
        """A list of words, or a text of them with commas between."""
        value = self.values.get(name)
        if value in ABSENT:
            return []
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise self.error(name, "must be a list of words")
        return [one.strip() for one in listed]

    def choice(self, name: str, known: Mapping[str, T], default: str | None = None) -> T:
        """Reads a word into its value; upper and lower case are one."""
        value = self.values.get(name)
        word = str(default if value in ABSENT else value).lower()
        if value is False and "no" in known:
            word = "no"  # as YAML 1.1 reads it without quotes
        if word not in known:
            raise self.error(name, f"must be one of {', '.join(known)}")
        return known[word]

    def refuse(self, name: str, why: str, but: Collection[object] = (False, "no", 0, 1)) -> None:
        """Refuse a field that is there with another value than these."""
        value = self.values.get(name)
        spelled = value.lower() if isinstance(value, str) else value
        if value not in ABSENT and not any(
            spelled == one and isinstance(spelled, bool) == isinstance(one, bool)  # True is 1 too
            for one in but
        ):
            raise self.error(name, why)

    def refuse_others(self, known: Collection[str]) -> None:
        """Refuse fields that there are not, which may mean anything."""
        for name, value in self.values.items():
            if name not in known and name in self:
                near = did_you_mean(name, known)
                allowed = f"is not known here{near}, and may change what it needs"
                raise self._no_field(name, value, allowed)

    def refuse_misspelt(self, known: Collection[str]) -> None:
        """Refuse fields that are nearly one of these, and would be passed over."""
        for name, value in self.values.items():
            if not isinstance(name, str) or name in known or name not in self:
                continue
            if near := get_close_matches(name, known, n=1, cutoff=LIKE):
                raise self._no_field(
                    name, value, f"there is no such field; did you mean {near[0]}?"
                )

    def _no_field(self, name: object, value: object, allowed: str) -> UsageError:
        shown = repr(str(name)[:80])[1:-1]  # it may hold what a terminal would obey
        return UsageError(f"{self.path}{shown}", value, allowed)

    def error(self, name: str, allowed: str) -> UsageError:
        """Makes the error of a wrong field."""
        value = self.values.get(name)
        if value == "auto":
            allowed += "; write what accelerate or the Trainer would fill in"
        return UsageError(f"{self.path}{name}", value, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """A field of a file that no figure takes into account."""

    key: str
    value: object
    effect: str
    """What it may change, such as ``frees memory: the figures are an upper bound``."""
    rules_out: bool = False
    """Whether nothing that is predicted is like what the file then asks for."""

    def __str__(self) -> str:
        shown = repr(str(self.value)[:60])[1:-1]
        return f"{self.key}: {shown}: {self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Contents of a configuration file; the rest comes from the caller."""

    format_name: str
    knobs: Mapping[str, Any]
    """Values of the knobs that it decides."""
    unsaid: frozenset[str] = frozenset()
    """Those of them of which it says nothing, so that the default of its stack holds."""
    may: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that the file leaves open, by field (``precision``, ``sequence_length``, ...); where
    nothing is said otherwise the first one holds. A field that is not named may have any."""
    ranks: int | None = None
    ranks_field: str = ""
    nodes: int | None = None
    groups: tuple[int, int] | None = None
    """Number and size of the groups of ranks that shard, where that is not one group of all."""
    secondary: int | None = None
    """Ranks that share a second copy of the parameters (``zero_hpz_partition_size``)."""
    layer_classes: tuple[str, ...] = ()
    """Classes of the layers that are sharded one by one; the model's own where none are named."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Knobs without a value that can be taken for granted, with who decides them."""
    fsdp_checkpointing: bool = False
    """Whether FSDP's own option turns activation checkpointing on."""
    notes: tuple[str, ...] = ()
    """What is taken for granted, and what to know of the figures."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """What is taken for granted of knobs as long as nobody says them."""
    strict: bool = True
    """Whether what does not go with the model is a mistake; else it is taken as near as it is
    predicted, and told."""
    free: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Knobs that the file can say otherwise, with the values it can say; none for any."""
    uncounted: tuple[Uncounted, ...] = ()
    """Fields that no figure takes into account."""
    auto: frozenset[str] = frozenset()
    """Knobs whose fields it leaves to whoever names it, and which are left to it there."""
    by_hidden: frozenset[str] = frozenset()
    """Sizes of DeepSpeed's that are filled in by the model's hidden size."""
    zero: Zero | None = None
    """Sizes of DeepSpeed's buckets where they are not its defaults."""
    told: tuple[Question, Settings] | None = None
    """What a file that was exported says that it was written for, where its fields do not."""

    @property
    def fsdp1(self) -> Uncounted | None:
        """What is told of a file of FSDP1, of which figures, and what is put into it, are
        FSDP2's."""
        lines = (one for one in self.uncounted if one.key in ("fsdp_version", "version"))
        return next(lines, None)

    def notes_beside(self, knobs: Collection[str]) -> tuple[str, ...]:
        """The notes, with what is taken for granted of other knobs than these."""
        return (*self.notes, *(one for name, one in self.assumed.items() if name not in knobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads one program's files, and says what an answer changes in them. Both are pure."""

    name: str
    marks: frozenset[str] = frozenset()
    """Fields that other files do not have."""
    read: Callable[[Mapping[str, Any]], Found]
    """Raises ``UsageError`` for a field."""
    tuned: Callable[[Question, Settings, Mapping[str, Any]], dict[str, Any]] | None = None
    """The fields that say the settings, in a file that has these values; ``None`` of files that are
    exported anew."""
