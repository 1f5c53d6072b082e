"""Blocks of YAML put into a file of the user's own, of which all else stays, comments too."""

import io
from collections.abc import Mapping, MutableMapping
from itertools import dropwhile
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tuner.errors import UsageError

FIRST_WORDS = "# Written by tuner "
"""What a header begins with; it ends before the first line that is no comment."""


def merged(blocks: str, into: str) -> str:
    """``into`` with the values of ``blocks``, and their header at the top.

    Args:
        blocks: YAML with a header, an empty line, and mappings.
        into: YAML of the user's own. A header of an earlier merging is replaced.

    Raises:
        UsageError: ``into`` is not YAML with a mapping at the top, or has something else where a
            block must be.
    """
    head, _, text = blocks.partition("\n\n")
    reader = _reader()
    document = _read(reader, _without_header(into))
    _update(document, _read(YAML(typ="safe", pure=True), text))
    out = io.StringIO()
    reader.dump(document, out)
    return f"{head}\n\n{out.getvalue()}"


def _reader() -> YAML:
    reader = YAML()  # keeps comments, order, quotes and the spelling of numbers
    reader.preserve_quotes = True
    reader.width = 2**20  # no line is broken anew
    return reader


def _read(reader: YAML, text: str) -> MutableMapping[str, Any]:
    try:
        document = reader.load(text)
    except (YAMLError, ValueError) as error:
        raise UsageError("into", _shown(text), f"must be YAML: {_first_line(error)}") from error
    if not isinstance(document, MutableMapping):
        raise UsageError("into", _shown(text), "must be YAML with fields at the top")
    return document


def _update(there: MutableMapping[str, Any], values: Mapping[str, Any], path: str = "") -> None:
    for name, value in values.items():
        if not isinstance(value, Mapping):
            there[name] = value
            continue
        if there.get(name) is None:
            there[name] = {}
        if not isinstance(there[name], MutableMapping):
            raise UsageError(f"into.{path}{name}", there[name], "must be a block of fields")
        _update(there[name], value, f"{path}{name}.")


def _without_header(text: str) -> str:
    """Without the comment lines of an earlier merging, and the empty line after them."""
    if not text.startswith(FIRST_WORDS):
        return text
    rest = list(dropwhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    return "".join(rest[1:] if rest and not rest[0].strip() else rest)


def _shown(text: str) -> str:
    return text.strip().partition("\n")[0][:40]


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
