"""Usage errors through pydantic and back: raised where a part is read, told with its path."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationInfo
from pydantic_core import PydanticCustomError

from tuner.errors import UsageError

Read = Callable[[Any, ValidationInfo], Any]

# Values of a knob that may be allowed.
MOST_VALUES = 100
A_LIST = f"must be a list of 1 to {MOST_VALUES} values that are allowed"
# Words for pydantic's kinds of errors; others have words of their own.
ALLOWED: Mapping[str, str] = {
    "missing": "is required",
    "model_type": "must be an object of fields",
    "model_attributes_type": "must be an object of fields",
    "dataclass_type": "must be a table of fields",
    "bool_type": "must be true or false",
    "enum": "must be one of {expected}",
    "tuple_type": A_LIST,
    "too_short": A_LIST,
    "too_long": A_LIST,
    "string_type": "must be a text",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "string_pattern_mismatch": "must match {pattern}",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of 64 bits",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
}


def wrong(field: str, given: object, allowed: str) -> PydanticCustomError:
    """An error in the form in which it passes through pydantic."""
    return told(UsageError(field, given, allowed))


def told(error: UsageError) -> PydanticCustomError:
    """The same of one that was raised."""
    return PydanticCustomError("usage", "wrong", {"error": error})


def telling(read: Read) -> Read:
    """``read`` with its usage errors told of the field that is read."""

    def reading(value: Any, info: ValidationInfo) -> Any:
        try:
            return read(value, info)
        except UsageError as error:
            raise told(error) from error

    return reading


def errors_of(
    lines: Iterable[Mapping[str, Any]], models: Mapping[str, type[Any]] = MappingProxyType({})
) -> Iterator[UsageError]:
    """pydantic's errors as ours, each with its path."""
    for line in lines:
        names = [one for one in line["loc"] if isinstance(one, str)]
        context, kind = line.get("ctx", {}), line["type"]
        if isinstance(error := context.get("error"), UsageError):
            for one in error.errors:
                yield one.at(_placed(names, one.field))
            continue
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            path, name = ".".join(names[:-1]), names[-1][:80]
            known = ", ".join(sorted(_fields(models[path]))) if path in models else ""
            field = f"{path}.{name}" if path else name
            yield UsageError(field, line["input"], f"no such field; there are {known}")
            continue
        if "expected" in context:
            context = {"expected": context["expected"].replace("'", "").replace(" or ", ", ")}
        allowed = ALLOWED.get(kind, "").format_map(context) or line["msg"]
        given = None if kind == "missing" else line.get("input")
        yield UsageError(".".join(names) or "body", given, allowed)


def _fields(kind: type[Any]) -> Iterable[str]:
    if issubclass(kind, BaseModel):
        return kind.model_fields
    return (field.name for field in fields(kind))


def _placed(names: Sequence[str], field: str) -> str:
    """The path of what a reader of the part at ``names`` calls ``field``."""
    path = ".".join(names)
    if field == "model name":
        return f"{'.'.join(names[:-1])}.model_name"
    if not path or field in (path, "", "framework", "framework_version", names[-1]):
        return path or field or "body"
    return field if field.startswith(f"{path}.") else f"{path}.{field}"
