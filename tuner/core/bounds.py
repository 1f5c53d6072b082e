"""Bounds of fields, each stated once: dataclasses are held to them, requests are read by them, and
their JSON schema tells them. Nothing of pydantic is imported until a request is read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from tuner.errors import UsageError, did_you_mean

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Bound:
    """Something that a field's value must keep to; part of its ``Annotated`` type."""

    def check(self, field: str, value: Any) -> Any:
        """The value as it is kept. Raises UsageError: it is not allowed."""
        raise NotImplementedError

    @property
    def schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        check = partial(self.check, "")
        return core_schema.no_info_before_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Any:
        return {**handler(core), **self.schema}


@dataclass(frozen=True, slots=True)
class Whole(Bound):
    """An integer from ``least`` to ``most``; flags are none."""

    least: int
    most: int

    def check(self, field: str, value: Any) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not self.least <= value <= self.most:
            allowed = f"must be an integer from {self.least} to {self.most}"
            raise UsageError(field, value, allowed)
        return int(value)

    @property
    def schema(self) -> dict[str, Any]:
        return {"minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Number(Bound):
    """A number from ``least`` to ``most``, kept as float; ``allowed`` says it in words."""

    least: float
    most: float
    allowed: str
    above: bool = False  # ``least`` itself is not allowed
    below: bool = False  # ``most`` itself is not allowed

    def check(self, field: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            not is_number
            or not self.least <= value <= self.most
            or (self.above and value == self.least)
            or (self.below and value == self.most)
        ):
            raise UsageError(field, value, self.allowed)
        return float(value)

    @property
    def schema(self) -> dict[str, Any]:
        low, high = "exclusiveMinimum", "exclusiveMaximum"
        return {
            low if self.above else "minimum": self.least,
            high if self.below else "maximum": self.most,
        }


@dataclass(frozen=True, slots=True)
class Spelled(Bound):
    """A text that matches a pattern as a whole; ``allowed`` says it in words."""

    pattern: str
    allowed: str

    def check(self, field: str, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise UsageError(field, value, self.allowed)
        return value

    @property
    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^({self.pattern})$"}


def check_bounds(owner: Any) -> None:
    """Holds the fields of a frozen dataclass to their bounds, and keeps what these make of them.
    Raises UsageError: one is not allowed."""
    for name, bound, is_optional in _bounds(owner.__class__):
        value = getattr(owner, name)
        if not (is_optional and value is None):
            object.__setattr__(owner, name, bound.check(name, value))


@lru_cache
def _bounds(kind: Any) -> tuple[tuple[str, Bound, bool], ...]:
    def found() -> Iterator[tuple[str, Bound, bool]]:
        for name, annotation in kind.__annotations__.items():
            # ``Annotated[X, bound] | None`` has its bound one level down.
            for part in (annotation, *get_args(annotation)):
                for bound in getattr(part, "__metadata__", ()):
                    if isinstance(bound, Bound):
                        yield name, bound, part is not annotation

    return tuple(found())


def choice(
    field: str, kind: type[E], value: object, called: Mapping[str, E] = MappingProxyType({})
) -> E:
    """The member of ``kind`` that is written ``value``. Raises UsageError: there is none, with the
    member that is ``called`` so elsewhere."""
    if value not in list(kind):
        meant = called.get(str(value).lower(), value)
        raise UsageError(
            field, value, f"must be one of {', '.join(kind)}{did_you_mean(meant, kind)}"
        )
    return kind(str(value))
