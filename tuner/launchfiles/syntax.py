"""How configurations are written down: YAML and JSON, TOML, flags of a command, Python.

Each is parsed into nested fields, and changed in its own text, of which all else stays.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import tomlkit
import yaml

from tuner.errors import UsageError
from tuner.launchfiles.editing import changed, edited, spliced


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """One way to write fields down."""

    name: str
    parse: Callable[[str], dict[str, Any]]
    """Raises ``ValueError`` or ``SyntaxError`` for a text that is not so."""
    edit: Callable[[str, Mapping[str, Any]], str]
    """Puts changes into a text; ``None`` takes a field away."""


def _edit_toml(text: str, wanted: Mapping[str, Any]) -> str:
    document = tomlkit.parse(text)
    _put(document, wanted)
    return tomlkit.dumps(document)


def _put(table: Any, wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if isinstance(value, Mapping):
            if name not in table:
                table[name] = tomlkit.table()
            _put(table[name], value)
        elif value is None:
            table.pop(name, None)
        elif name in table and hasattr(table[name], "trivia"):  # with its comment
            trivia = table[name].trivia
            table[name] = value
            table[name].trivia.comment_ws, table[name].trivia.comment = (
                trivia.comment_ws,
                trivia.comment,
            )
        else:
            table[name] = value


# A flag with its value, which may stand on the next line of a continued command.
_FLAG = re.compile(
    r"""(?<![\w-])--(?P<name>[A-Za-z_][\w-]*)"""
    r"""(?:(?:=|[ \t]+|[ \t]*\\\r?\n[ \t]*)(?P<value>(?!--|\\)(?:'[^']*'|"[^"]*"|[^\s\\'"]+)))?"""
)


def _flags(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Flags by name; comments are blanked."""
    shown = re.sub(r"(?m)^\s*#.*$", lambda line: " " * len(line[0]), text)
    for found in _FLAG.finditer(shown):
        yield found["name"].replace("-", "_"), found


def _parse_flags(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, found in _flags(text):
        word = found["value"]
        one = True if word is None else yaml.safe_load("".join(shlex.split(word)))
        values[name] = one
    return values


def _edit_flags(text: str, wanted: Mapping[str, Any]) -> str:
    there = dict(_flags(text))
    values = _parse_flags(text)
    pieces: list[tuple[int, int, str]] = []
    end = max(found.end() for found in there.values())
    for name, value in wanted.items():
        old = values.get(name)
        if isinstance(value, Mapping):
            value = changed(old if isinstance(old, Mapping) else {}, value)
        spelled = value if isinstance(value, str) else json.dumps(value)
        if name not in there:
            if value is not None and value != {}:
                pieces.append((end, end, f" --{name} {shlex.quote(spelled)}"))
        elif value is None:
            pieces.append((*there[name].span(), ""))
        elif there[name]["value"] is None:
            pieces.append((there[name].end(), there[name].end(), f" {shlex.quote(spelled)}"))
        else:
            pieces.append((*there[name].span("value"), shlex.quote(spelled)))
    return spliced(text, pieces)


# Objects of a configuration in Python whose fields are looked at, and one that is a value itself.
_SECTIONS = ("training", "parallelism", "compile")
CHECKPOINT = "activation_checkpoint"
# Of torchtitan's main: what an answer may set it to.
_POLICIES = {"none": "None", "full": "FullAC.Config()"}


def _nodes(text: str) -> Iterator[tuple[str, str, ast.expr]]:
    """Section, field and value of what a configuration says: ``training=Config(field=value)`` and
    ``config.training.field = value``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value, name = keyword.value, keyword.arg
                if name in _SECTIONS and isinstance(value, ast.Call):
                    yield from ((name, one.arg, one.value) for one in value.keywords if one.arg)
                elif name == CHECKPOINT:
                    yield name, "mode", value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            words = ast.unparse(node.targets[0]).split(".")
            if len(words) == 3 and words[1] in _SECTIONS:
                yield words[1], words[2], node.value
            elif words[1:] == [CHECKPOINT]:
                yield CHECKPOINT, "mode", node.value


def _literal(node: ast.expr) -> Any:
    """A number, also of a product, a truth or a text; ``None`` of anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _literal(node.left), _literal(node.right)
        return left * right if isinstance(left, int) and isinstance(right, int) else None
    return node.value if isinstance(node, ast.Constant) else None


def _parse_python(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section, field, node in _nodes(text):
        value = _literal(node)
        if section == CHECKPOINT:
            word = ast.unparse(node)
            value = "full" if "FullAC" in word else "none" if word == "None" else "selective"
        if value is not None:
            found.setdefault(section, {})[field] = value
    # what the function begins with, or what its model is made by
    named = re.search(r"\b(?P<name>llama3|qwen3)_(?P<flavor>\d+(?:_\d+)?b)\b", text)
    if found and named:
        flavor = named["flavor"].upper().replace("_", ".")
        found["model"] = {"name": named["name"], "flavor": flavor}
    return found


def _edit_python(text: str, wanted: Mapping[str, Any]) -> str:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data, pieces, left = text.encode(), [], dict(wanted)
    for section, field, node in _nodes(text):
        values = left.get(section)
        if isinstance(values, Mapping) and field in values:
            value = values[field]
            start = starts[node.lineno - 1] + node.col_offset
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            end = starts[node.end_lineno - 1] + node.end_col_offset
            spelled = _POLICIES[value] if section == CHECKPOINT else repr(value)
            pieces.append((start, end, spelled))
            left[section] = {name: one for name, one in values.items() if name != field}
    if missing := [f"{section}.{name}" for section, values in left.items() for name in values]:
        allowed = f"says nothing of {', '.join(missing)}: write them there first"
        raise UsageError("file", "Python", allowed)
    whole = [(len(data[:a].decode()), len(data[:b].decode()), new) for a, b, new in pieces]
    return spliced(text, whole)


YAML = Syntax(name="YAML", parse=yaml.safe_load, edit=edited)
TOML = Syntax(name="TOML", parse=tomllib.loads, edit=_edit_toml)
FLAGS = Syntax(name="flags", parse=_parse_flags, edit=_edit_flags)
PYTHON = Syntax(name="Python", parse=_parse_python, edit=_edit_python)
_BY_ENDING = {".toml": TOML, ".py": PYTHON, ".sh": FLAGS, ".bash": FLAGS, ".sbatch": FLAGS}


def syntax_of(path: str) -> Syntax:
    """The syntax of a file, by the ending of its name; YAML, and JSON with it, of any other."""
    return _BY_ENDING.get(PurePath(path).suffix.lower(), YAML)
