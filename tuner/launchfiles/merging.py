"""Blocks of YAML put into a file of the user's own, of which all else stays, comments too."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.anchor import Anchor
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.tag import Tag

from tuner.errors import UsageError

# What a header begins with; it ends before the first line that is no comment.
FIRST_WORDS = "# Written by tuner "


def merged(blocks: str, into: str) -> str:
    """``into`` with the values of ``blocks``, and their header at the top.

    Raises:
        UsageError: ``into`` is not YAML with a mapping at the top, or has something else where a
            block must be.
    """
    head, _, text = blocks.partition("\n\n")
    document = _read(_without_header(into))
    _update(document, YAML(typ="safe", pure=True).load(text))
    out = io.StringIO()
    _reader().dump(document, out)
    return f"{head}\n\n{out.getvalue()}"


@dataclass(frozen=True)
class _Spelled:
    """A number, truth, null or date of the user's own, written back as it is spelled.

    What ruamel makes of them is spelled anew: ``0E1`` becomes ``0E0``, which PyYAML reads as
    another key, ``1E400`` becomes ``.inf``, ``~`` becomes nothing, ``-0e0`` is an error.
    """

    tag: Tag
    text: str
    style: str | None
    anchor: Anchor | None

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


class _Constructor(RoundTripConstructor):
    def construct_spelled(self, node: ScalarNode) -> _Spelled | None:
        if node.tag == f"{_TAGS}null" and not node.value:
            return None
        anchor = None
        if node.anchor:
            anchor = Anchor()
            anchor.value, anchor.always_dump = node.anchor, True
        return _Spelled(node.ctag, node.value, node.style, anchor)


class _Representer(RoundTripRepresenter):
    def ignore_aliases(self, data: object) -> bool:
        if isinstance(data, _Spelled):
            return data.anchor is None
        return bool(super().ignore_aliases(data))

    def represent_spelled(self, data: _Spelled) -> ScalarNode:
        return self.represent_scalar(data.tag, data.text, style=data.style, anchor=data.anchor)


_TAGS = "tag:yaml.org,2002:"
for _kind in ("null", "bool", "int", "float", "timestamp"):
    _Constructor.add_constructor(f"{_TAGS}{_kind}", _Constructor.construct_spelled)
_Representer.add_representer(_Spelled, _Representer.represent_spelled)


def _reader() -> YAML:
    reader = YAML()  # keeps comments, order and quotes
    reader.Constructor, reader.Representer = _Constructor, _Representer
    reader.preserve_quotes = True
    reader.width = 2**20  # no line is broken anew
    return reader


def _read(text: str) -> CommentedMap:
    try:
        document = _reader().load(text)
    except (YAMLError, ValueError) as error:
        raise UsageError("into", _shown(text), f"must be YAML: {_first_line(error)}") from error
    if not isinstance(document, CommentedMap):
        raise UsageError("into", _shown(text), "must be YAML with fields at the top")
    return document


def _update(
    there: CommentedMap, values: Mapping[str, Any], path: str = "", shared: bool = False
) -> None:
    for name, value in values.items():
        if not isinstance(value, Mapping):
            there[name] = value
            continue
        block = there.get(name)
        if block is None or (isinstance(block, _Spelled) and str(block.tag) == f"{_TAGS}null"):
            block = there[name] = CommentedMap()
        if not isinstance(block, CommentedMap):
            raise UsageError(f"into.{path}{name}", block, "must be a block of fields")
        inherited = all(name != own for own, _ in there.non_merged_items())
        if elsewhere := shared or inherited or block.anchor.value is not None:
            # What an anchor or a merge key puts in other places too stays there as it is.
            block = there[name] = block.copy()
            setattr(block, Anchor.attrib, Anchor())
        _update(block, value, f"{path}{name}.", elsewhere)


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
