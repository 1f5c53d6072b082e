"""A configuration file: how it is written down, and whose it is, told by its content or by name.

YAML and JSON, TOML, flags of a command and Python are each parsed into nested fields, and changed
in their own text, of which all else stays.
"""

import json
import os
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import tomlkit
import yaml

from tuner.core.cluster import Cluster
from tuner.core.configuration import KNOBS, Checkpointing, Settings
from tuner.core.study import Question
from tuner.errors import UnknownNameError, UsageError, why_unreadable
from tuner.launchfiles import (
    accelerate,
    axolotl,
    deepspeed,
    fine_tuning,
    nanotron,
    settings_json,
    torch_module,
    torchtitan,
    trainer,
)
from tuner.launchfiles.contract import PREFIX, told_in, told_in_comment, variables
from tuner.launchfiles.editing import edited
from tuner.launchfiles.fields import Found, Reader
from tuner.launchfiles.filled import FILE
from tuner.launchfiles.flags import edit_flags, parse_flags, refuse_launched
from tuner.launchfiles.python_syntax import edit_python, parse_python


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


YAML = Syntax(name="YAML", parse=yaml.safe_load, edit=edited)
TOML = Syntax(name="TOML", parse=tomllib.loads, edit=_edit_toml)
FLAGS = Syntax(name="flags", parse=parse_flags, edit=edit_flags)
PYTHON = Syntax(name="Python", parse=parse_python, edit=edit_python)
_BY_ENDING = {".toml": TOML, ".py": PYTHON, ".sh": FLAGS, ".bash": FLAGS, ".sbatch": FLAGS}


def syntax_of(path: str) -> Syntax:
    """The syntax of a file, by the ending of its name; YAML, and JSON with it, of any other."""
    return _BY_ENDING.get(PurePath(path).suffix.lower(), YAML)


_PROGRAMS = (axolotl.READER, fine_tuning.LLAMA_FACTORY, fine_tuning.TRL)
_LAUNCHERS = (accelerate, trainer, deepspeed, nanotron, torchtitan, settings_json)
# The reader of each format.
READERS: Mapping[str, Reader] = {
    one.name: one for one in (*_PROGRAMS, *(module.READER for module in _LAUNCHERS))
}
# Of a file; configurations have some kilobytes.
LARGEST_BYTES = 2**20
# In a file, each counted wherever an alias repeats it: a kilobyte of YAML can stand for millions.
MOST_VALUES = 100_000


class _TwiceError(ValueError):
    """A name that an object has twice, of which launchers take the last one, or none."""


def edited_lines(
    edit: Callable[[str, Mapping[str, Any]], str], text: str, wanted: Mapping[str, Any]
) -> str:
    """Puts changes into a text, whose new lines end as all others do."""
    made = edit(text.replace("\r\n", "\n"), wanted)
    return made.replace("\n", "\r\n") if "\r\n" in text else made


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """DeepSpeed's JSON, which a configuration file names."""

    path: Path | None
    """``None`` where the text itself stands in the place of a name."""
    text: str
    field: tuple[str, str]
    """The table and the field that name it; one and the same where no table has it."""

    def split(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Changes of the file that names it, and those of its own."""
        table, name = self.field
        rest = {one: value for one, value in wanted.items() if one != table}
        inner = wanted.get(table, {})
        if self.path is None and inner:
            return {**rest, table: self.with_changes(wanted).text}, dict(inner)
        if table == name:
            return rest, dict(inner)
        left = {one: value for one, value in inner.items() if one != name}
        return {**rest, **({table: left} if left else {})}, dict(inner.get(name, {}))

    def with_changes(self, wanted: Mapping[str, Any]) -> "Other":
        """The same after changes of both files; itself where none is its own."""
        table, name = self.field
        inner = wanted.get(table, {})
        own = inner if table == name else inner.get(name, {})
        return replace(self, text=edited_lines(edited, self.text, own)) if own else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A configuration file: its text, its content, and what that says."""

    text: str
    values: Mapping[str, Any]
    found: Found
    other: Other | None = None


def is_text(file: str) -> bool:
    """Tells the text of a file from its path."""
    return "\n" in file or file.startswith("{")


def open_file(path: str, format_name: str | None = None) -> Opened:
    """Reads the file at ``path``, in whose place its text may stand; whose it is is told by its
    content, unless it is said.

    Raises:
        UsageError: it cannot be read, is none of the formats, or asks for what is not predicted.
        UnknownNameError: there is no such format.
    """
    if format_name is not None and format_name not in READERS:
        raise UnknownNameError("format", format_name, READERS)
    if is_text(path):
        return read_text(path, "file", format_name, reads_others=False)
    return read_text(_text_of(_expanded(path), "file", path), path, format_name)


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111  (Path's own raises for unknown users)


def _text_of(where: Path, field: str, given: str) -> str:
    """The text of a configuration file, which ``field`` names.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        if where.exists() and not where.is_file():
            raise UsageError(field, given, "must be a file, and is a folder or a device")
        if where.stat().st_size > LARGEST_BYTES:
            raise UsageError(field, given, f"must have {LARGEST_BYTES} bytes at most")
        return where.read_bytes().decode("utf-8-sig")
    except UsageError:
        raise
    except (OSError, ValueError) as error:  # a ValueError: a null character, or no UTF-8
        raise UsageError(field, given, why_unreadable(error)) from error


def read_text(
    text: str,
    path: str,
    format_name: str | None = None,
    *,
    reads_others: bool = True,
    other: Other | None = None,
) -> Opened:
    """The same of the text of a file at ``path``.

    With ``reads_others`` a file that it names is read too, unless that is ``other`` already.
    """
    told, syntax = told_in_comment(text, path), syntax_of(path)
    if told is not None:
        own = trainer.NAME if told[0] == trainer.FLAGS.name else told[0]
        if own not in READERS and format_name is None:
            return Opened(text=text, values={}, found=_exported(text, *told))
        format_name = format_name or own
    if syntax is YAML:
        values = parse(text, path)
    else:
        try:
            values = syntax.parse(text)
        except UsageError:
            raise
        except (ValueError, SyntaxError, yaml.YAMLError, RecursionError, MemoryError) as error:
            why = " ".join(str(error).split())[:200] or "it is too complex"
            raise UsageError("file", path, f"is not {syntax.name}: {why}") from error
        _check_few(values, path)
    is_torchtitans = "training" in values if syntax is TOML else syntax is PYTHON and bool(values)
    if format_name is None and is_torchtitans:
        format_name = torchtitan.NAME
    elif syntax is FLAGS and told is None:
        refuse_launched(text)
    if format_name is None and syntax is FLAGS and re.search(r"\b(trl|sft)\b|sft\.py", text):
        format_name = fine_tuning.TRL.name
    name = format_name or format_of(values, path)
    values, other = _with_other(values, path, other, reads_others=reads_others)
    found = READERS[name].read(values)
    if told is None and isinstance(values.get("tuner"), Mapping) and "reads" in values["tuner"]:
        told = told_in(values["tuner"]["reads"], path)
    if told is not None:
        unseen = (_code_unseen("the script in its comments"),) if name == accelerate.NAME else ()
        found = replace(found, told=told[1:], notes=(*found.notes, *unseen))
    return Opened(text=text, values=values, found=found, other=other)


# Fields that name DeepSpeed's JSON, with the table that each is in where that is another: the
# Trainer's, and accelerate's.
_ENGINES = (("deepspeed", "deepspeed"), ("deepspeed_config", FILE))


def _with_other(
    values: Mapping[str, Any], path: str, other: Other | None, *, reads_others: bool
) -> tuple[Mapping[str, Any], Other | None]:
    """A file's values, with those of DeepSpeed's JSON in the place of its name, and that JSON."""
    table, field = next((one for one in _ENGINES if one[0] in values), _ENGINES[0])
    block = values if table == field else values.get(table)
    named = block.get(field) if isinstance(block, Mapping) else None
    if not isinstance(named, str) or named.lower() == "none":
        return values, None
    if table == field and named.startswith("{"):  # which transformers parses
        other = Other(path=None, text=named, field=(table, field))
    elif not reads_others:
        allowed = "names a file, and none is read here: put its fields in its place"
        raise UsageError(f"file.{field}", named, allowed)
    if other is None:
        other = _beside(_expanded(path).parent, named, (table, field))
    if other is None:
        return values, None
    own = parse(other.text, field if other.path is None else named)
    return {**values, table: own if table == field else {**values[table], field: own}}, other


# A variable of a shell's lines, or of a job of Kubernetes'.
_VARIABLE = re.compile(
    rf"(?m)^\s*(?:export |- name: )?{PREFIX}(?P<name>[A-Z_]+)(?:=|\n\s+value: )(?P<value>.*)$"
)
# Fields of the question among them that can be changed there, as knobs can.
_FIELDS = frozenset({
    "model", "cluster", "sequence_length", "global_batch_size", "optimizer", "precision",
    "reduce_dtype", "loss",
})  # fmt: skip
# What starts ranks, in a command, an option of Slurm's or a TrainJob: nodes, and ranks of each.
_STARTS = re.compile(
    r"(?:^|\s)(?P<name>--nnodes|--nodes|numNodes|--gpus-per-node|--nproc[-_]per[-_]node"
    r"|numProcPerNode)(?::\s*|[ =]+)(?P<value>[^\s;&|]+)"
)
_NODES = frozenset({"--nnodes", "--nodes", "numNodes"})
_RANKS = frozenset({"--nproc-per-node", "--nproc_per_node", "numProcPerNode"})
# Values that knobs have where nobody names another.
_NAMED: Mapping[str, tuple[Any, ...]] = {
    "cpu_offload": (False,),
    "cp_size": (1,),
    "fused_loss": (False,),
    "activation_checkpointing": tuple(one for one in Checkpointing if one != "offload"),
}
# The formats that have such.
_STARTING = frozenset({"torchrun", "sbatch", "kubernetes"})
# Of where it was written.
_ORIGIN = frozenset({"study_id", "date", "provenance"})


def _exported(text: str, format_name: str, question: Question, settings: Settings) -> Found:
    """What an exported file says that starts any script, or is one: its header, and variables."""
    knobs, may = settings.as_dict(), dict[str, tuple[Any, ...]]()
    written = variables(question, settings)
    written |= {f"{PREFIX}MODEL": question.workload.model.name}
    written |= {f"{PREFIX}CLUSTER": question.cluster.name}
    for found in _VARIABLE.finditer(text):
        variable, name = f"{PREFIX}{found['name']}", found["name"].lower()
        word = _word(found["value"])
        number = int(word) if word.isdecimal() and len(word) < 10 else word
        if name in KNOBS:
            knobs[name] = {"true": True, "false": False}.get(word, number)
        elif name in _ORIGIN or word == written.get(variable):
            continue
        elif name in _FIELDS:
            may[name] = (number,)
        else:
            told = f"the first lines say {written.get(variable, 'nothing of it')}"
            raise UsageError(variable, word, f"{told}, and it cannot be changed alone: export anew")
    notes = [_code_unseen("its code")] if format_name == torch_module.FORMAT.name else []
    ranks = f"{PREFIX}WORLD_SIZE"
    if format_name in _STARTING and not _check_started(text, question.cluster):
        notes.append(f"how many ranks of a node it starts is not seen: {ranks} is taken for right")
    return Found(
        format_name=format_name,
        knobs=knobs,
        # but for what is in no space unless it is named
        free={name: () for name in knobs if name not in _NAMED or knobs[name] in _NAMED[name]},
        may=may,
        ranks=question.cluster.world_size if ranks in text else None,
        ranks_field=ranks,
        notes=tuple(notes),
        told=(question, settings),
    )


def _code_unseen(what: str) -> str:
    return f"what it was written for is taken from its first lines: changes of {what} are not seen"


def _check_started(text: str, cluster: Cluster) -> bool:
    """Refuses a command that starts other nodes or ranks than the cluster has; tells whether it
    says how many ranks of a node."""
    told = False
    for line in text.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#") and not line.startswith("#SBATCH"):
            continue
        for found in _STARTS.finditer(line):
            name, value = found["name"], found["value"].strip("\"'")
            size = cluster.nodes if name in _NODES else cluster.gpus_per_node
            if not value.isdecimal():
                continue
            told = told or name in _RANKS
            if value != str(size):
                allowed = f"the first lines say {size}, of {cluster.name}, and it cannot be changed"
                given = int(value) if len(value) < 10 else value
                raise UsageError(name, given, f"{allowed} alone: export anew")
    return told


def _word(text: str) -> str:
    """A value as a shell reads it; as it stands where its quotes do not end."""
    try:
        return " ".join(shlex.split(text, comments=True))
    except ValueError:
        return text.strip()


def _beside(folder: Path, name: str, field: tuple[str, str]) -> Other | None:
    """The JSON that a file in ``folder`` names: from here, as launchers open it, or from beside it.

    Raises:
        UsageError: it cannot be read, or both places have one and they differ.
    """
    here = _expanded(name)
    try:
        places = [one for one in dict.fromkeys((here, folder / here)) if one.is_file()]
    except (OSError, ValueError) as error:
        raise UsageError(field[1], name, why_unreadable(error)) from error
    texts = [_text_of(one, field[1], name) for one in places]
    if len({*texts}) > 1:
        first, second = (str(one.absolute()) for one in places)
        allowed = f"could be {first}, which launchers open from here, or {second}, and they differ"
        raise UsageError(field[1], name, f"{allowed}: say which by its whole path")
    return Other(path=places[0], text=texts[0], field=field) if places else None


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
    if wrong := [str(name) for name in values if not isinstance(name, str)]:  # as on: is, or 1:
        allowed = f"must have names that are texts: put quotes around {wrong[0][:80]}"
        raise UsageError("file", path, allowed)
    _check_few(values, path)
    return values


def _check_few(values: Any, path: str) -> None:
    """Refuses more values than a configuration has, each counted wherever an alias repeats it."""
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
    like = [name for name, reader in READERS.items() if reader.marks & values.keys()]
    # programs hand the Trainer its arguments, and some have each other's
    if len(like) == 1 or (like and READERS[like[0]] in _PROGRAMS):
        return like[0]
    what = f"could be of {' or '.join(like)}" if like else "is like none of the formats"
    raise UsageError("file", path, f"{what}: say --format {'|'.join(like or READERS)}")
