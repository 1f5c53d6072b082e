"""Values put into a file of the user's own, of which every other line stays as it is.

YAML and JSON are changed where the parser says that a value stands; what was changed is read again,
and must be what was meant. Blocks of YAML can be merged in, of all else even the comments stay.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.anchor import Anchor
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.tag import Tag

from tuner.errors import UsageError

# Names of one field in different releases: a file keeps the one it has.
_SPELLINGS = (("gradient_checkpointing", "activation_checkpointing"),)
_PREFIXES = ("fsdp_", "parallelism_config_")


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``after`` differs from ``before``; ``None`` of what is not in it."""
    found: dict[str, Any] = {}
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if inner := changes(old, new):
                found[name] = inner
        elif old != new:
            found[name] = new
    return found


def spelled_in(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The same changes by the names that a file has; what it leaves to the Trainer (``auto``), or
    has already, is not among them."""
    found: dict[str, Any] = {}
    for name, value in wanted.items():
        own = next((one for one in _names(name) if one in there), name)
        old = there.get(own)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := spelled_in(old, value):
                found[own] = inner
        elif old != "auto" and old != value:
            found[own] = value
    return found


def _names(name: str) -> Iterator[str]:
    yield name
    for group in _SPELLINGS:
        if name in group:
            yield from group
    for prefix in _PREFIXES:
        yield name.removeprefix(prefix) if name.startswith(prefix) else f"{prefix}{name}"


def changed(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file after changes; ``None`` takes a field away."""
    found = dict(there)
    for name, value in wanted.items():
        if isinstance(value, Mapping):
            old = found.get(name)
            made = changed(old if isinstance(old, Mapping) else {}, value)
            if made or not value or name in found:
                found[name] = made
        elif value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


def edited(text: str, wanted: Mapping[str, Any]) -> str:
    """YAML or JSON with these changes, of nested fields; ``None`` takes a field away.

    Raises:
        UsageError: what is to be changed stands in several places at once (an anchor, a merge key).
    """
    before, made = yaml.safe_load(_with_blanks(text)), text
    for part in [*_away(wanted), changed({}, wanted)]:
        if not part:
            continue
        pieces: list[tuple[int, int, str]] = []
        root = yaml.compose(_with_blanks(made), Loader=yaml.SafeLoader)
        if isinstance(root, yaml.MappingNode) and root.value:
            _edit(made, root, part, pieces)
        else:  # nothing is left
            at = 0 if root is None else root.start_mark.index
            end = len(made) if root is None else root.end_mark.index
            pieces.append((at, end, json.dumps(part, indent=2)))
        made = spliced(made, pieces)
    try:
        is_meant = yaml.safe_load(_with_blanks(made)) == changed(before, wanted)
    except yaml.YAMLError:
        is_meant = False
    if not is_meant:
        where = ", ".join(wanted)
        allowed = "stands in several places of the file at once: write it out first"
        raise UsageError("file", where, allowed)
    return made


def _with_blanks(text: str) -> str:
    """JSON without the tabs that indent it, which YAML does not take; all stands where it stood."""
    return text.replace("\t", " ") if text.lstrip().startswith("{") else text


def spliced(text: str, pieces: list[tuple[int, int, str]]) -> str:
    """The text with pieces from one character to another replaced."""
    placed = sorted((start, end, number, new) for number, (start, end, new) in enumerate(pieces))
    for start, end, _, new in reversed(placed):
        text = text[:start] + new + text[end:]
    return text


def _away(wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is taken away, one by one: what is before and behind it changes."""
    for name, value in wanted.items():
        if isinstance(value, Mapping):
            yield from ({name: inner} for inner in _away(value))
        elif value is None:
            yield {name: None}


def _edit(
    text: str,
    block: yaml.MappingNode,
    wanted: Mapping[str, Any],
    pieces: list[tuple[int, int, str]],
) -> None:
    entries = {key.value: (key, value) for key, value in block.value}
    # what is added to the last block stands before what is added behind it
    for name, value in sorted(wanted.items(), key=lambda one: one[0] not in entries):
        if name in entries:
            key, old = entries[name]
            if old.start_mark.index < key.end_mark.index:  # an alias: it stands elsewhere
                raise UsageError("file", name, "is an alias: write it out first")
            if isinstance(value, Mapping) and isinstance(old, yaml.MappingNode) and old.value:
                last = len(old.value) == 1 and None in value.values()
                if last and old.value[0][0].value in value:  # nothing is left
                    pieces.append(_instead(text, block, key, old, {}))
                else:
                    _edit(text, old, value, pieces)
            elif isinstance(value, Mapping) and [*_away(value)]:
                continue  # there is nothing to take away
            elif value is None:
                pieces.append(_without(text, block, key, old))
            else:
                pieces.append(_instead(text, block, key, old, value))
        elif value is not None and not (isinstance(value, Mapping) and [*_away(value)]):
            pieces.append(_added(text, block, wanted, name, value))


def _end(node: yaml.Node) -> int:
    """Where a node's last character stands: a block's own mark is behind its comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _spelled(value: Any, flow: bool) -> str:
    if flow or isinstance(value, Mapping | list):
        return json.dumps(value)
    return str(yaml.safe_dump(value, width=2**20)).removesuffix("\n...\n").removesuffix("\n")


def _lines(name: str, value: Any, indent: int) -> str:
    """A field of a block, on lines of its own."""
    dumped = yaml.safe_dump({name: value}, sort_keys=False, width=2**20)
    return "".join(f"{' ' * indent}{line}" for line in dumped.splitlines(keepends=True))


def _instead(
    text: str, block: yaml.MappingNode, key: yaml.Node, old: yaml.Node, value: Any
) -> tuple[int, int, str]:
    flow = bool(block.flow_style)
    scalar = isinstance(old, yaml.ScalarNode) and old.style not in ("|", ">")
    if flow or (scalar and not isinstance(value, Mapping | list)):
        start, end = old.start_mark.index, old.end_mark.index
        blank = "" if start < end else " "  # nothing stood there
        if not blank:
            return start, end, _spelled(value, flow)
        after = key.end_mark.index + 1
        return after, after, f"{blank}{_spelled(value, flow)}"
    start, end = _whole(text, key, old)
    return start, end, _lines(key.value, value, key.start_mark.column)


def _whole(text: str, key: yaml.Node, old: yaml.Node) -> tuple[int, int]:
    """The lines of a field of a block."""
    start = key.start_mark.index - key.start_mark.column
    end = max(_end(old), key.end_mark.index)
    last = len(text[:end].rstrip())  # a block scalar goes on to what comes next
    newline = text.find("\n", last if "\n" in text[last:end] else end)
    return start, len(text) if newline < 0 else newline + 1


def _without(
    text: str, block: yaml.MappingNode, key: yaml.Node, old: yaml.Node
) -> tuple[int, int, str]:
    if not block.flow_style:
        return (*_whole(text, key, old), "")
    position = next(n for n, (one, _) in enumerate(block.value) if one is key)
    if position + 1 < len(block.value):
        return key.start_mark.index, block.value[position + 1][0].start_mark.index, ""
    before = block.value[position - 1][1].end_mark.index if position else key.start_mark.index
    return before, old.end_mark.index, ""


def _added(
    text: str, block: yaml.MappingNode, wanted: Mapping[str, Any], name: str, value: Any
) -> tuple[int, int, str]:
    """A new field, behind the field that is before it among the changes, or else at the end."""
    entries = {key.value: (key, one) for key, one in block.value}
    earlier = list(wanted)[: list(wanted).index(name)]
    before = [one for one in earlier if one in entries and wanted[one] is not None]
    key, last = entries[before[-1]] if before else block.value[-1]
    if block.flow_style:
        at = last.end_mark.index
        line = text.rfind("\n", 0, key.start_mark.index)
        lead = text[line + 1 : key.start_mark.index]
        blank = f"\n{lead}" if line >= 0 and not lead.strip() else " "
        return at, at, f",{blank}{json.dumps(name)}: {json.dumps(value)}"
    _, at = _whole(text, key, last)
    newline = "" if text[:at].endswith("\n") else "\n"
    return at, at, newline + _lines(name, value, key.start_mark.column)


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
        why = " ".join(str(error).split())[:200]
        raise UsageError("into", _shown(text), f"must be YAML: {why}") from error
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
