"""JSON as others can read it: no NaN and no Infinity, which a diverged loss is."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def json_text(value: Any, *, indent: int | None = None) -> str:
    """The JSON text of plain values; a number that is not finite is written ``null``."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, indent=indent, allow_nan=False, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False, separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
