"""Dataclasses as JSON values, and read back from them."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints


class Plain:
    """A dataclass that is kept or sent as JSON."""

    __slots__ = ()
    form: ClassVar[int | None] = None
    """The number of its form, where that changes: it is written, and no other is read."""
    later: ClassVar[tuple[str, ...]] = ()
    """Fields that came later: they are written off their default alone, so that what is hashed or
    kept of older values stays."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, in the order of the fields, those that are inherited last."""
        form = {} if self.form is None else {"format": self.form}
        kind: Any = type(self)
        values = {name: getattr(self, name) for name in _names(kind)}
        same = {name for name in self.later if values[name] == _defaults(kind)[name]}
        return {**form, **{name: plain(v) for name, v in values.items() if name not in same}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The reverse of :meth:`as_dict`; fields that are left out have their defaults.

        Raises:
            ValueError: another format, or an unknown member of an enumeration.
            KeyError, TypeError: a field is unknown, missing, or of another kind.
        """
        known = dict(values)
        if cls.form is not None and (form := known.pop("format", None)) != cls.form:
            raise ValueError(f"format {form}; format {cls.form} is read")
        try:
            made: Self = _made(cls, known)
        except AttributeError as error:  # a text or a number where an object should be
            raise TypeError(str(error)) from error
        return made


def plain(value: Any) -> Any:
    """A value in JSON's kinds: enumerations by their values, tuples as lists, keys as text."""
    if type(value) in (float, int, str, bool, NoneType):  # most there are
        return value
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _names(value.__class__)}
    return value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    own = get_annotations(kind)
    return tuple(sorted((one.name for one in fields(kind)), key=lambda name: name not in own))


@cache
def _defaults(kind: Any) -> Mapping[str, Any]:
    return {one.name: one.default for one in fields(kind)}


@cache
def _readers(kind: Any) -> Mapping[str, Callable[[Any], Any]]:
    """By field, what makes its value of JSON; nothing where that is the value itself."""
    hints = get_type_hints(kind)
    return {name: read for name in _names(kind) if (read := _reader(hints[name])) is not None}


def _reader(kind: Any) -> Callable[[Any], Any] | None:
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType) and NoneType in of:
        some = _reader(of[of[0] is NoneType])
        return some and (lambda value: None if value is None else some(value))
    if origin is tuple:
        item = _reader(of[0])
        return (lambda value: tuple(map(item, value))) if item else tuple
    if isinstance(origin, type) and issubclass(origin, Mapping):
        read = _reader(of[1])
        if of[0] is not int:
            return read and (lambda value: {name: read(one) for name, one in value.items()})
        return lambda value: {int(n): read(one) if read else one for n, one in value.items()}
    if isinstance(kind, type) and (issubclass(kind, Enum) or hasattr(kind, "from_dict")):
        return getattr(kind, "from_dict", kind)
    return partial(_made, kind) if is_dataclass(kind) else None


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    readers = _readers(kind)
    return kind(**{n: readers[n](v) if n in readers else v for n, v in values.items()})
