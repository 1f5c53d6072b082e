"""Texts of the form's fields, as the JSON values that a request has in their places.

What cannot be one is handed on as text, and refused where requests are read.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from api.pages.form_fields import Kind, Spec
from tuner.cases.kinds import as_mapping
from tuner.errors import UsageError
from tuner.framework import parse_stated_versions
from tuner.units import read_duration


def value_of(spec: Spec, typed: Sequence[str]) -> Any:
    """What a field's text says.

    Raises:
        UsageError: it is no JSON, no duration, or no versions.
    """
    text = typed[0]
    match spec.kind:
        case Kind.WHOLE:
            return _whole(text)
        case Kind.NUMBER:
            return number_of(text)
        case Kind.DURATION:
            return read_duration(spec.name, text)
        case Kind.FLAGS:
            return [{"true": True, "false": False}.get(one, one) for one in typed]
        case Kind.WHOLES:
            return [_whole(one) for one in re.split(r"[\s,]+", text) if one]
        case Kind.OBJECT:
            return as_mapping(spec.name, _json(spec.name, text))
        case Kind.CLUSTER:
            return _json(spec.name, text) if text.startswith("{") else text
        case Kind.VERSIONS:
            return parse_stated_versions(one for one in re.split(r"[\s,]+", text) if one)
        case Kind.TEXT | Kind.CHOICE:
            return text


def _whole(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text


def number_of(text: str) -> float | str:
    """The number that a text is; else the text."""
    return float(text) if re.fullmatch(r"[+-]?(?=.*[0-9])[0-9]{0,18}\.?[0-9]{0,18}", text) else text


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(name, text, f"is not JSON: {error.msg.lower()} ({where})") from error
    except (ValueError, RecursionError) as error:
        own = isinstance(error, _JsonError)
        why = str(error) if own else "it is too deep, or has a number too long"
        raise UsageError(name, text, f"is not JSON that can be read: {why}") from error


class _JsonError(ValueError):
    """What the reader of JSON lets pass, and we do not."""


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _JsonError(f"{twice[:80]} is there twice")
    return values


def _no_constant(text: str) -> Any:
    raise _JsonError(f"{text} is no number")
