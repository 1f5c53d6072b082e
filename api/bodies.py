"""JSON bodies that say something twice: which of the two is meant must not be guessed."""

import json
from collections import Counter
from typing import Any

from fastapi import Request

from api.problems import ProblemError


class _TwiceError(Exception):
    """A name that an object has twice."""


async def unique_names(request: Request) -> None:
    """Refuse a JSON body with an object that has a name twice; readers of JSON take the last one.

    Raises:
        ProblemError: 422, with the name.
    """
    try:
        json.loads(await request.body(), object_pairs_hook=_once)
    except _TwiceError as error:
        name = str(error)[:80]
        allowed = "may be there once in an object"
        detail = f"{_printable(name)}: is there twice in one object of the body"
        raise ProblemError(422, detail, field=_printable(name), allowed=allowed) from error
    except (ValueError, RecursionError):
        pass  # no JSON, or of another media type: told where it is read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


def _printable(text: str) -> str:
    """Without halves of characters, which JSON can escape and no answer can hold."""
    return text.encode("utf-8", "replace").decode()
