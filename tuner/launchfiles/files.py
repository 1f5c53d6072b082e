"""A configuration file, and whose it is: told by its content, or by name."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from tuner.errors import UnknownNameError, UsageError
from tuner.launchfiles import (
    accelerate,
    axolotl,
    deepspeed,
    llama_factory,
    nanotron,
    plain,
    torchtitan,
    trainer,
    trl,
)
from tuner.launchfiles.fields import Found
from tuner.launchfiles.syntax import FLAGS, PYTHON, TOML, YAML, syntax_of

_PROGRAMS = (axolotl, llama_factory, trl)
# The reader of each format.
READERS: Mapping[str, ModuleType] = {
    module.NAME: module
    for module in (*_PROGRAMS, accelerate, trainer, deepspeed, nanotron, torchtitan, plain)
}
# Of a file; configurations have some kilobytes.
LARGEST_BYTES = 2**20
# In a file, each counted wherever an alias repeats it: a kilobyte of YAML can stand for millions.
MOST_VALUES = 100_000


class _TwiceError(ValueError):
    """A name that an object has twice, of which launchers take the last one, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A configuration file."""

    text: str
    values: Mapping[str, Any]
    found: Found


def read_file(path: str, format_name: str | None = None) -> Found:
    """What the file at ``path`` says; whose it is is told by its content, unless it is said.

    Raises:
        UsageError: it cannot be read, is none of the formats, or asks for what is not predicted.
        UnknownNameError: there is no such format.
    """
    return open_file(path, format_name).found


def open_file(path: str, format_name: str | None = None) -> Opened:
    """The same, with the file's text and content."""
    if format_name is not None and format_name not in READERS:
        raise UnknownNameError("format", format_name, READERS)
    where = Path(os.path.expanduser(path))  # noqa: PTH111  (Path's own raises for unknown users)
    try:
        if not where.exists():
            raise UsageError("file", path, "there is no such file")
        if not where.is_file():
            raise UsageError("file", path, "must be a file, and is a folder or a device")
        if where.stat().st_size > LARGEST_BYTES:
            raise UsageError("file", path, f"must have {LARGEST_BYTES} bytes at most")
        text = where.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:  # a ValueError: a null character, or no UTF-8
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("file", path, f"cannot be read: {reason}") from error
    return read_text(text, path, format_name)


def read_text(text: str, path: str, format_name: str | None = None) -> Opened:
    """The same of the text of a file at ``path``."""
    syntax = syntax_of(path)
    if syntax is YAML:
        values = parse(text, path)
    else:
        try:
            values = syntax.parse(text)
        except (ValueError, SyntaxError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())[:200]
            raise UsageError("file", path, f"is not {syntax.name}: {why}") from error
    if format_name is None and syntax in (TOML, PYTHON) and "training" in values:
        format_name = torchtitan.NAME
    elif format_name is None and syntax is FLAGS and re.search(r"\b(trl|sft)\b|sft\.py", text):
        format_name = trl.NAME
    name = format_name or format_of(values, path)
    engine = values.get("deepspeed")
    if isinstance(engine, str) and (there := _beside(Path(path), engine)) is not None:
        whole = there.read_bytes()[: LARGEST_BYTES + 1]
        values = {**values, "deepspeed": parse(whole.decode(errors="replace"), engine)}
    return Opened(text=text, values=values, found=READERS[name].read(values))


def _beside(file: Path, name: str) -> Path | None:
    """A file that another names, from its own folder or from here."""
    near = (file.parent / name, Path(name))
    return next((one for one in near if one.is_file()), None)


def parse(text: str, path: str) -> Mapping[str, Any]:
    """The object in a text of JSON or YAML.

    Raises:
        UsageError: it holds none.
    """
    try:
        values = _loaded(text, path)
    except _TwiceError as error:
        raise UsageError("file", path, f"names {error} twice in one object") from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise UsageError("file", path, f"is neither JSON nor YAML: {why}") from error
    if not isinstance(values, Mapping):
        known = ", ".join(READERS)
        raise UsageError("file", path, f"must hold one object of fields, as files of {known} do")
    waiting: list[Any] = [values]
    count = 0
    while waiting and count <= MOST_VALUES:
        one = waiting.pop()
        count += 1
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set):
            waiting += one
    if count > MOST_VALUES:
        raise UsageError("file", path, f"must hold {MOST_VALUES} values at most")
    return values


def _loaded(text: str, path: str) -> Any:
    """Loads JSON or YAML; YAML may begin with a brace too, where the file's name says so.

    Raises:
        _TwiceError: an object has a name twice.
        ValueError, yaml.YAMLError: it is neither.
    """
    is_yaml = path.lower().endswith((".yaml", ".yml"))
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_object)
        except json.JSONDecodeError:
            if not is_yaml:
                raise
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        waiting, known = [node], set()  # before aliases and merged mappings are put in
        while waiting:
            one = waiting.pop()
            if id(one) in known or not isinstance(one, yaml.CollectionNode):
                continue
            known.add(id(one))
            if isinstance(one, yaml.MappingNode):
                keys = [key for key, _ in one.value if isinstance(key, yaml.ScalarNode)]
                _refuse_repeated(str(key.value) for key in keys)
                waiting += [value for _, value in one.value]
            else:
                waiting += one.value
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse_repeated(name for name, _ in pairs)
    return found


def _refuse_repeated(names: Iterable[str]) -> None:
    (name, times), *_ = [*Counter(names).most_common(1), ("", 0)]
    if times > 1:
        raise _TwiceError(repr(name[:80]))


def format_of(values: Mapping[str, Any], path: str) -> str:
    """Finds the launcher that a file belongs to.

    Raises:
        UsageError: it is like none of them, or like several.
    """
    like = [name for name, reader in READERS.items() if reader.MARKS & values.keys()]
    # programs hand the Trainer its arguments, and some have each other's
    if len(like) == 1 or (like and READERS[like[0]] in _PROGRAMS):
        return like[0]
    what = f"could be of {' or '.join(like)}" if like else "is like none of the formats"
    raise UsageError("file", path, f"{what}: say --format {'|'.join(like or READERS)}")
