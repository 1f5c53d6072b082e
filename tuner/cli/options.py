"""The options of commands: a dataclass for each of the large ones, expanded into the command.

``words.toml`` has their words. Values stay text here, and :mod:`tuner.cli.values` reads them: so
every bad value gets an error of the same form, with what was given and what is allowed, and showing
help imports nothing else.
"""

import inspect
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_origin

from typer import Argument, Option

from tuner.core.launcher import LauncherName

Text = str | None
Several = list[str] | None


# What a shell completes; it waits for them, so each imports no more than it needs.


def model_names(begun: str) -> list[str]:
    from tuner.catalog import models

    return [name for name in models.names() if name.startswith(begun)]


def cluster_names(begun: str) -> list[str]:
    """Spellings of clusters: numbers of nodes and GPUs that are written stay before the kind."""
    from tuner.catalog.gpus import gpu_kinds

    counts = re.match(r"(?:[0-9]+x){0,2}", begun)
    before = counts[0] if counts else ""
    found = [f"{before or '8x'}{kind}" for kind in gpu_kinds()]
    return [one for one in ("local", "cpu:2", *found) if one.startswith(begun)]


def format_names(begun: str) -> list[str]:
    """Formats of files; with ``=`` where an option takes ``FORMAT=PATH``."""
    from tuner.launchfiles import FORMATS

    return [name for name in FORMATS if name.startswith(begun)]


def study_ids(begun: str) -> list[str]:
    """Studies of the default database, the newest first."""
    from tuner.cli.studies import is_there
    from tuner.store import open_store

    if not is_there(None):
        return []
    with open_store(create=False) as store:
        return [one.id for one in store.studies(50) if one.id.startswith(begun)]


def read_question(ctx: Any, path: str | None) -> str | None:
    """Takes the options that are not given from a TOML file, by their names; a list repeats one."""
    if path is None:
        return None
    from tuner.errors import UsageError, did_you_mean, why_unreadable

    try:
        with open(os.path.expanduser(path), "rb") as file:  # noqa: PTH111, PTH123
            written = tomllib.load(file)
    except OSError as error:
        raise UsageError("file", path, why_unreadable(error)) from error
    except ValueError as error:
        raise UsageError("file", path, f"must be a TOML file of options: {error}") from error
    known = {one.name: one for one in ctx.command.params if one.name != "question_file"}
    given: dict[str, Any] = {}
    for name, value in written.items():
        option = known.get(field := name.replace("-", "_"))
        if option is None:
            near = did_you_mean(field, known)
            raise UsageError("file", name, f"is no option of {ctx.info_name}{near}, in {path}")
        if getattr(option, "is_flag", False):
            given[field] = value
        elif option.multiple or isinstance(value, list):
            given[field] = [*map(str, value)] if isinstance(value, list) else [str(value)]
        else:
            given[field] = str(value).lower() if isinstance(value, bool) else str(value)
    ctx.default_map = {**(ctx.default_map or {}), **given}
    return path


QuestionFile = Annotated[
    str | None,
    Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Take options that are not given here from this TOML file, such as"
        ' model = "llama-3.1-8b".',
        callback=read_question,
        is_eager=True,
    ),
]


# By the name of an option.
COMPLETIONS: Mapping[str, Callable[[str], list[str]]] = {
    "model": model_names,
    "cluster": cluster_names,
    "format_name": format_names,
    "write": format_names,
    "study": study_ids,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAsked:
    """What is trained, with what, and within what memory, as it was written."""

    model: Text = None
    global_batch_size: Text = None
    sequence_length: Text = None
    optimizer: Text = None
    precision: Text = None
    reduce_dtype: Text = None
    loss: Text = None
    tensor_parallel: Text = None
    adapter: Text = None
    lora_rank: Text = None
    lora_alpha: Text = None
    lora_dropout: Text = None
    lora_targets: Text = None
    lora_modules_to_save: Text = None
    quantize: Text = None
    double_quant: Text = None
    frozen: Text = None
    task: Text = None
    image_tokens: Text = None
    packing: Text = None
    documents: Text = None
    framework: Text = None
    framework_version: Several = None
    headroom: Text = None
    memory_limit: Text = None
    json: bool = False
    db: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(WorkloadAsked):
    """Options that ``suggest`` and ``probe`` have in common, as they were written."""

    cluster: Text = None
    knob: Several = None
    fidelity: Text = None
    probe_deadline: Text = None
    launcher: Text = None
    ray: Text = None
    script: Text = None
    launch: Text = None
    script_env: Several = None
    template: Text = None
    script_arguments: Several = None
    question_file: QuestionFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestAsked(Asked):
    from_file: Text = None
    format_name: Text = None
    settings: Text = None
    in_place: bool = False
    no_backup: bool = False
    diff: bool = False
    max_probes: Text = None
    budget: Text = None
    max_gpu_seconds: Text = None
    tolerance: str = "0.01"
    sampler: str = "cost-model"
    server: Text = None
    pool: str = ""
    replace: bool = False
    label: Several = None
    write: Several = None
    tokens: Text = None
    why: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAsked(Asked):
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseAsked(WorkloadAsked):
    """Settings of one question that are predicted, as they were written."""

    dry_runs: str = "auto"
    cluster: Text = None
    settings: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAsked(CaseAsked):
    """Options of ``tuner predict``: a file of cases, or one case as in ``tuner probe``."""

    cases: Text = None
    question_file: QuestionFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAsked(CaseAsked):
    """Options of ``tuner check``: a file, and what it does not say."""

    file: str
    format_name: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAsked(WorkloadAsked):
    family: Text = None
    cluster: list[str]
    knob: Several = None
    tokens_per_s: Text = None
    tokens: Text = None
    within: Text = None
    price: Text = None
    verify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearseAsked:
    command: list[str]
    cluster: Text = None
    ranks: str = "0"
    steps: int = 3
    seconds: float = 600.0
    tokens_per_step: int | None = None
    snapshot: Text = None
    allow_network: bool = False
    allow_writes: bool = False
    even_here: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAsked:
    pool: Several = None
    name: str = ""
    once: bool = False
    drain: bool = False
    launcher: LauncherName | None = None
    ray: str = ""
    slurm: Text = None
    probes: Path | None = None
    pass_env: Several = None
    probe_deadline: Text = None
    json: bool = False
    db: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeAsked:
    host: Text = None
    port: int | None = None
    require_keys: bool | None = None
    json: bool = False
    db: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAsked:
    db: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateAsked:
    cluster: str = "local"
    json: bool = False
    db: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorAsked:
    run: bool = False
    json: bool = False
    db: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportAsked:
    study: str
    format_name: str
    write: Text = None
    into: Text = None
    json: bool = False
    db: Text = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowAsked:
    study: str
    why: bool = False
    json: bool = False
    db: Text = None


def command_of(of: Callable[..., Any], work: str = "") -> Callable[..., int]:
    """A command as Typer reads it, with the words of its options: a function, or a class of
    options, for which the function ``work`` ("module.name" of this package) does the work."""

    def run(**options: Any) -> int:
        if not work:
            return int(of(**options))
        module, _, name = work.partition(".")
        # imported when it is called: the help of all commands must be quick
        return int(getattr(import_module(f"{__package__}.{module}"), name)(of(**options)))

    owners = [*(one.__name__ for one in getattr(of, "__mro__", (of,))), "any command"]
    known = [panels for one in owners for panels in words().get(one, {}).items()]

    def option(one: inspect.Parameter) -> inspect.Parameter:
        if get_origin(one.annotation) is Annotated:
            return one
        panel, row = next((title, rows[one.name]) for title, rows in known if one.name in rows)
        metavar, text, *names = row
        said: dict[str, Any] = {"metavar": metavar or None, "help": text}
        said["autocompletion"] = COMPLETIONS.get(one.name)
        if panel == "Arguments":
            return one.replace(annotation=Annotated[one.annotation, Argument(**said)])
        if one.annotation is bool and not names:
            names = [f"--{one.name.replace('_', '-')}"]
        said["rich_help_panel"] = None if panel == "Options" else panel
        return one.replace(annotation=Annotated[one.annotation, Option(*names, **said)])

    found = inspect.signature(of)
    whole = found.replace(parameters=[*map(option, found.parameters.values())])
    run.__signature__ = whole  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


@cache
def words() -> Mapping[str, Mapping[str, Any]]:
    """The help of each command; by command or class, panel and option: metavar, help, and names
    other than its own."""
    return tomllib.loads((files(__package__) / "words.toml").read_text("utf-8"))
