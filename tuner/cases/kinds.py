"""Kinds of values that a user writes in JSON: what is not of its kind is named with its path."""

from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

from tuner.errors import UsageError
from tuner.settings import KNOBS

LONGEST_TEXT = 1000
"""Characters of a name or of settings written as text."""
LARGEST_GIB = 2**20
"""Of a memory limit; more is a mistake in units."""


def read_headroom(value: object) -> float:
    """A share of a device's memory.

    Raises:
        UsageError: it is none.
    """
    return read_share("headroom", value, 0.05)


def read_share(path: str, value: object, such_as: float) -> float:
    """A number from 0 to below 1.

    Raises:
        UsageError: it is none.
    """
    if not is_number(value) or not 0 <= value < 1:
        raise UsageError(path, value, f"must be a number from 0 to below 1, such as {such_as}")
    return float(value)


def read_limit_gib(value: object) -> float | None:
    """GiB that one device may use; ``None`` for no limit.

    Raises:
        UsageError: it is no size.
    """
    if value is None:
        return None
    if not is_number(value) or not 2**-30 <= value <= LARGEST_GIB:
        allowed = f"must be a number of GiB above 0 and up to {LARGEST_GIB}"
        raise UsageError("memory_limit_gib", value, allowed)
    return float(value)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number; flags are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_whole(path: str, value: object, least: int, most: int) -> None:
    """Refuse what is no integer, or out of bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(path, value, f"must be an integer from {least} to {most}")


def check_knob(name: str, value: object) -> None:
    """Refuse what the text form may have and JSON may not: numbers and flags as strings."""
    if name not in KNOBS:
        raise UsageError(f"settings.{name}", value, f"no such knob; there are {', '.join(KNOBS)}")
    if KNOBS[name] is bool and not isinstance(value, bool):
        raise UsageError(name, value, "must be true or false")
    if KNOBS[name] is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(name, value, "must be a positive integer")


def check_names(
    path: str, values: Mapping[str, Any], required: Collection[str], optional: Collection[str]
) -> None:
    """Refuse fields that there are not, and objects that lack one that is required.

    Args:
        path: what goes before the names, with its dot.
        values: the object.
        required: names that must have a value.
        optional: further names that there are.
    """
    for name in values:
        if name not in required and name not in optional:
            known = ", ".join(sorted({*required, *optional}))
            field = f"{path}{name[:80]}"
            raise UsageError(field, values[name], f"no such field; there are {known}")
    for name in required:
        if values.get(name) is None:
            raise UsageError(f"{path}{name}", None, "is required")


def as_mapping(path: str, value: object) -> Mapping[str, Any]:
    """The value, which must be an object.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, Mapping):
        raise UsageError(path, value, "must be an object of fields")
    return value


def short(path: str, text: str) -> str:
    """The text, which must not be long.

    Raises:
        UsageError: it is.
    """
    if len(text) > LONGEST_TEXT:
        raise UsageError(path, text, f"must have {LONGEST_TEXT} characters at most")
    return text


def renamed(error: UsageError, field: str) -> UsageError:
    """The same error of a field's path."""
    return UsageError(field, error.given, error.allowed)
