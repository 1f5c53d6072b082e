"""Placeholders in the command of a user's script, and in the template of its configuration file.

``{micro_batch_size}`` becomes the knob's value, and ``{activation_checkpointing=full?--recompute}``
becomes ``--recompute`` where the knob has that value, and nothing elsewhere. ``{{name}}`` stands
for ``{name}`` itself. Other braces, such as those of JSON, stay as they are.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from tuner.core.bounds import choice
from tuner.core.cluster import Cluster
from tuner.core.configuration import FSDP, KNOBS, Checkpointing, Settings, knob_value
from tuner.core.framework import Framework, FrameworkName, flag_differs
from tuner.errors import UsageError, why_unreadable
from tuner.serialization import Plain
from tuner.text import show

if TYPE_CHECKING:
    from tuner.core.study import Question


# What a placeholder may name beside knobs and the rendered template.
OTHERS = ("global_batch_size", "sequence_length", "world_size", "data_parallel_size")
# The placeholder of the rendered template's path.
TEMPLATE = "template"
# All that a placeholder may name.
NAMES = (*KNOBS, *OTHERS, TEMPLATE)

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_TOKEN = re.compile(
    rf"\{{\{{(?P<literal>{_NAME}[^{{}}]*)\}}\}}|\{{(?P<name>{_NAME})(?P<rest>=[^{{}}]*)?\}}"
)


def used_in(field: str, text: str) -> frozenset[str]:
    """The names of the placeholders in a text, which an error calls by ``field``. Raises
    UsageError: one names nothing that there is, or a value that its knob cannot have."""
    return frozenset(
        _placeholder(field, match)[0] for match in _TOKEN.finditer(text) if not match["literal"]
    )


def render(text: str, values: Mapping[str, str]) -> str:
    """A text, as :func:`used_in` has checked it, with its placeholders filled."""

    def filled(match: re.Match[str]) -> str:
        if literal := match["literal"]:
            return "{" + literal + "}"
        name, value, shown_there = _placeholder("", match)
        if value is None:
            return values[name]
        return shown_there if values[name] == value else ""

    return _TOKEN.sub(filled, text)


def is_optional(text: str) -> bool:
    """Tells whether a text is nothing but one placeholder that may become nothing."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match["rest"] is not None


def _placeholder(field: str, match: re.Match[str]) -> tuple[str, str | None, str]:
    """What it names, the value at which a text of its own stands, or ``None`` where it becomes the
    value itself, and that text."""
    name, rest = match["name"], match["rest"]
    if name not in NAMES:
        raise UsageError(
            field,
            match[0],
            f"no such placeholder; there are {', '.join(f'{{{known}}}' for known in NAMES)}."
            f" Write {{{match[0]}}} for {match[0]} itself",
        )
    if rest is None:
        return name, None, ""
    value, question_mark, text = rest[1:].partition("?")
    if not question_mark or name not in KNOBS:
        allowed = "must look like {KNOB}, or {KNOB=VALUE?TEXT} for a text at one value of a knob"
        raise UsageError(field, match[0], allowed)
    return name, show(knob_value(name, value)), text


# Of a script and of a template; a larger one is not what was meant.
LARGEST_FILE_BYTES = 1 << 20
# Environment variables that a launcher sets or reads, or that place a probe. torchrun takes its
# options from ``PET_*``, by which Kubeflow Trainer tells it of nodes.
RESERVED = re.compile(
    r"TUNER_\w*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w*"
    r"|PET_\w*|CUDA_VISIBLE_DEVICES"
)


class Launch(StrEnum):
    """Ways to start the ranks of a script."""

    TORCHRUN = "torchrun"  # only placeholders tell the script its settings
    ACCELERATE = "accelerate"  # accelerate launch, with a configuration file of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A configuration file with placeholders, which is written anew for every probe."""

    name: str  # the file's name, without its folder
    text: str  # what is in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(Plain):
    """A script with the template of its command."""

    later = ("template",)

    path: str  # where it is, from the root
    sha256: str  # of what is in it, in hex: an edited script is another one
    folder: str  # where it is run
    launch: Launch = Launch.TORCHRUN  # what starts its ranks
    arguments: tuple[str, ...] = ()  # what follows it in the command, with placeholders
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Environment variables with placeholders."""
    template: Template | None = None  # its configuration file, if that has placeholders

    def __post_init__(self) -> None:
        used = self._texts_used()
        if TEMPLATE in used and self.template is None:
            raise UsageError("template", None, "{template} is used: name the file with --template")
        if self.template is not None and TEMPLATE not in used:
            allowed = "no argument or --script-env says where it is: use {template}"
            raise UsageError("template", self.template.name, allowed)
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or RESERVED.fullmatch(name):
                raise UsageError("script_env", name, "is not a name that may be set")

    @property
    def placeholders(self) -> frozenset[str]:
        """Names that its command and its template use."""
        inside = used_in("template", self.template.text) if self.template else frozenset()
        return self._texts_used() | inside

    @property
    def knobs(self) -> frozenset[str]:
        return self.placeholders & KNOBS.keys()

    def _texts_used(self) -> frozenset[str]:
        arguments = (used_in("script arguments", text) for text in self.arguments)
        variables = (used_in("script_env", text) for text in self.environment.values())
        return frozenset().union(*arguments, *variables)

    @property
    def why_other(self) -> str:
        """Why the file is not the script that was asked about; empty if it is."""
        return why_other(self.path, self.sha256)


def read_script(
    path: str | os.PathLike[str],
    *,
    launch: Launch | str = Launch.TORCHRUN,
    arguments: Sequence[str] = (),
    environment: Iterable[str] | Mapping[str, str] = (),
    template: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Script:
    """The script of a command line, run where this process is unless ``folder`` is given.

    ``arguments`` follow it, word by word; ``environment`` is ``NAME=VALUE`` each, or values by
    name; ``template`` is the path of its configuration file, if that has placeholders. Raises
    UsageError: a file cannot be read, a placeholder is not one, or an argument is wrong."""
    where = Path.cwd() if folder is None else Path(folder).absolute()
    if isinstance(arguments, str) or not all(isinstance(word, str) for word in arguments):
        raise UsageError("arguments", arguments, "must be a list of words, such as ['--lr', '1']")
    found = _found("script", where, path)
    content = _read("script", found, str(path))
    known = None
    if template is not None:
        file = _found("template", where, template)
        try:
            text = _read("template", file, str(template)).decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError("template", str(template), "must be text in UTF-8") from None
        if not used_in("template", text):
            allowed = "has no placeholder, such as {micro_batch_size}"
            raise UsageError("template", str(template), allowed)
        known = Template(name=file.name, text=text)
    variables: dict[str, str] = {}
    if isinstance(environment, Mapping):
        environment = [f"{name}={value}" for name, value in environment.items()]
    for text in environment:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError("script_env", text, "must look like NAME={micro_batch_size}")
        if name in variables:
            raise UsageError("script_env", name, "is given twice")
        variables[name] = value
    return Script(
        path=os.path.normpath(found),
        sha256=_sha256(content),
        folder=str(where),
        launch=choice("launch", Launch, launch),
        arguments=tuple(arguments),
        environment=variables,
        template=known,
    )


def _found(field_name: str, where: Path, path: str | os.PathLike[str]) -> Path:
    try:
        return where / Path(path).expanduser()
    except RuntimeError as error:  # of an unknown user
        raise UsageError(field_name, str(path), f"is not a usable path: {error}") from error


def _read(field_name: str, path: Path, given: str) -> bytes:
    try:
        is_small = path.stat().st_size <= LARGEST_FILE_BYTES
        data = path.read_bytes() if is_small else b""
    except (OSError, ValueError) as error:  # a ValueError: a null character
        raise UsageError(field_name, given, why_unreadable(error)) from None
    if not is_small:
        raise UsageError(field_name, given, "must be a file of at most 1 MiB")
    return data


def why_other(path: str, sha256: str) -> str:
    """Why the file at a path is not the script that was asked about; empty if it is."""
    try:
        now = _sha256(Path(path).read_bytes())
    except OSError as error:
        return f"the script {path} cannot be read: {error.strerror or error}"
    changed = f"the script {path} was edited since it was asked about: ask again"
    return "" if now == sha256 else changed


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Knobs of which a script may derive one from the other and the global batch size.
BATCH = ("micro_batch_size", "gradient_accumulation_steps")
# Knobs that ``accelerate launch`` puts in force by its configuration file, on GPUs.
IN_FILE = ("sharding", "cpu_offload", "activation_checkpointing")
# Values that the file cannot say.
NOT_IN_FILE = frozenset(Checkpointing) - {Checkpointing.NONE, Checkpointing.FULL}


def check_script(
    script: Script, cluster: Cluster, framework: Framework, knobs: Mapping[str, tuple[Any, ...]]
) -> None:
    """Refuse a script that could not be told its settings, or is launched as another framework's.
    Raises UsageError: so it is; with what to write."""
    built = framework.name in (FrameworkName.ACCELERATE, FrameworkName.TRAINER)
    if script.launch is Launch.ACCELERATE and not built:
        allowed = f"starts scripts with --framework accelerate or trainer, not {framework.name}"
        raise UsageError("launch", "accelerate", allowed)
    in_file = IN_FILE if script.launch is Launch.ACCELERATE else ()
    for knob, values in knobs.items():
        by_file = knob in in_file and NOT_IN_FILE.isdisjoint(values)
        if len(values) > 1 and not by_file and knob not in (*script.knobs, *BATCH):
            allowed = f"{{{knob}}} is used nowhere in the script's command: use it, or state one"
            raise UsageError(knob, ", ".join(map(str, values)), allowed)
    if script.knobs.isdisjoint(BATCH) and all(len(knobs.get(k, ())) != 1 for k in BATCH):
        raise UsageError(
            "script",
            script.path,
            "its command names neither {micro_batch_size} nor {gradient_accumulation_steps}: use"
            " them, or state what it has with --knob micro_batch_size=N",
        )
    if not script.knobs and not in_file:
        known = ", ".join(f"{{{knob}}}" for knob in KNOBS)
        raise UsageError("script", script.path, f"nothing varies: its command must name of {known}")


def is_sharded(question: "Question", settings: Settings) -> bool:
    """Says if FSDP2 wraps the model: as in the probe, not where no ranks see different data."""
    return settings.sharding in FSDP and settings.sharing_size(question.cluster.world_size) > 1


def checkpoints_in_script(question: "Question", settings: Settings) -> bool:
    """Tells whether the script, and not FSDP's plugin, must turn activation checkpointing on.

    accelerate's plugin can for FSDP only. There it causes the same collectives, the same peak
    memory and, to the last bit, the same losses as ``gradient_checkpointing_enable``, which the
    probe uses: compared over 2 ranks with a Llama. But accelerate wraps layers with
    ``preserve_rng_state=False`` (``fsdp2_apply_ac``), which gives wrong gradients where a layer
    draws random numbers; and from 1.8 to 1.14 it wraps parts of layers (``catalog/versions.toml``).
    """
    if settings.activation_checkpointing is not Checkpointing.FULL:
        return settings.activation_checkpointing is not Checkpointing.NONE  # of which it has none
    differs = flag_differs(question.framework) or loses_random_state(question)
    # what transformers splits it shards too, and accelerate's plugin is not there
    by_plugin = is_sharded(question, settings) and not settings.splits_layers
    return bool(differs) or not by_plugin


def loses_random_state(question: "Question") -> str:
    """What gives wrong gradients under FSDP2's option: a layer whose forward is not the same twice.

    A field that a configuration leaves out has its class's default, as OPT's dropout of 0.1.
    """
    work, lost = question.workload, "it does not restore the random state"
    fields = work.model.fields.items()
    if any(value > 0 for name, value in fields if "drop" in name or "jitter" in name):
        drops = "this model's"
    elif work.adapter is not None and work.adapter.dropout > 0:
        drops = "the adapter's"
    elif work.model.is_traced:
        return f"{lost}, and layers that only dry runs know may draw random numbers"
    else:
        return ""
    return f"{lost}, so with {drops} dropout backward would compute other activations than forward"


# File that ``accelerate launch`` is given.
CONFIGURATION = "accelerate.yaml"
# Where ranks of several nodes meet: torch's own default.
PORT = 29500
# In a launcher's options where a probe is of several nodes: whatever starts it on a node puts in
# their places its number and where rank 0's node is met.
NODE_RANK, MEETING_HOST, MEETING_PORT = "{node_rank}", "{host}", "{port}"
# Modules of the launchers' commands, which need not be on the path.
MODULES = {
    Launch.TORCHRUN: "torch.distributed.run",
    Launch.ACCELERATE: "accelerate.commands.accelerate_cli",
}


def torchrun(cluster: Cluster, *script: str) -> tuple[str, ...]:
    """The command that starts a cluster's ranks of a script with its arguments, on each node.

    Several nodes meet at the same one, ``HOST``.
    """
    ranks = ("--nproc-per-node", str(cluster.gpus_per_node))
    if cluster.nodes == 1:
        return ("torchrun", "--standalone", *ranks, *script)
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"HOST:{PORT}")
    return ("torchrun", "--nnodes", str(cluster.nodes), *ranks, *meeting, *script)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, and what it reads."""

    launcher: tuple[str, ...]  # its name and its options, as a user types them on each node
    script: tuple[str, ...]  # the script and its arguments
    environment: Mapping[str, str]  # variables that are set for it
    cluster: Cluster
    configuration: str  # path of the file that accelerate's launcher reads
    template: str = ""  # its configuration file with the settings; empty where there is none

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.launcher, *self.script)

    @property
    def typed(self) -> tuple[str, ...]:
        """The command with its variables in front, as a shell takes it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return (*(["env", *variables] if variables else []), *self.argv)

    def as_run(self, logs: Path) -> tuple[str, ...]:
        """Python's arguments that run the launcher, without the script: not the one on the path.

        On several nodes :data:`NODE_RANK` and its like stand among them. Nodes are numbered, which
        torchrun's c10d backend does not do (it sorts them by address): which ranks are a node's
        must be known where it fails.

        Args:
            logs: folder for what the launcher writes, which else stays in the system's own.
        """
        launch, nodes = Launch(self.launcher[0]), self.cluster.nodes
        program: tuple[str, ...] = ("-P", "-m", MODULES[launch])
        if launch is Launch.ACCELERATE:
            meeting = accelerate_meeting(NODE_RANK, MEETING_HOST, MEETING_PORT)
            options = ("--log_dir", str(logs), "--config_file", self.configuration)
            return (*program, "launch", *options, *(meeting if nodes > 1 else ()))
        program = (*program, "--log-dir", str(logs))
        if nodes == 1:
            return (*program, *self.launcher[1:])
        ranks = ("--nnodes", str(nodes), "--nproc-per-node", str(self.cluster.gpus_per_node))
        meeting = ("--master-addr", MEETING_HOST, "--master-port", MEETING_PORT)
        return (*program, *ranks, "--node-rank", NODE_RANK, *meeting)


def accelerate_meeting(number: str, host: str, port: str) -> tuple[str, ...]:
    """Options of ``accelerate launch`` on one of several nodes."""
    return ("--machine_rank", number, "--main_process_ip", host, "--main_process_port", port)


def command_of(
    question: "Question", settings: Settings, *, template: str = "", configuration: str = ""
) -> Command:
    """The command of a question's script, told ``settings``.

    ``template`` is the path of its rendered configuration file, by default the template's own name;
    ``configuration`` that of accelerate's file, by default :data:`CONFIGURATION`.
    """
    script, cluster = question.script, question.cluster
    assert script is not None
    known = {
        **settings.all_values(),
        "global_batch_size": question.workload.global_batch_size,
        "sequence_length": question.workload.sequence_length,
        "world_size": cluster.world_size,
        "data_parallel_size": settings.data_parallel_size(cluster.world_size),
    }
    values = {name: show(value) for name, value in known.items()}
    if script.template is not None:
        values[TEMPLATE] = template or script.template.name
    launcher, file = torchrun(cluster), configuration or CONFIGURATION
    if script.launch is Launch.ACCELERATE:
        meeting = accelerate_meeting("NUMBER", "HOST", str(PORT)) if cluster.nodes > 1 else ()
        launcher = ("accelerate", "launch", "--config_file", file, *meeting)
    # an argument that is nothing but a placeholder, and becomes nothing, is left out
    pairs = [(text, render(text, values)) for text in script.arguments]
    arguments = [filled for text, filled in pairs if filled or not is_optional(text)]
    return Command(
        launcher=launcher,
        script=(script.path, *arguments),
        environment={name: render(text, values) for name, text in script.environment.items()},
        cluster=cluster,
        configuration=file,
        template=render(script.template.text, values) if script.template else "",
    )


def script_launch(
    question: "Question", settings: Settings, configuration: str, files: Mapping[str, str]
) -> dict[str, Any]:
    """``argv`` and ``files`` of a suggestion: the command says all that the script must set.

    Args:
        question: one with a script.
        settings: the answer's.
        configuration: path of accelerate's file, where that is what the launcher reads.
        files: text by path, beside that of the rendered template.
    """
    script = question.script
    assert script is not None
    name = tuned_name(script)
    command = command_of(question, settings, template=name, configuration=configuration)
    own = {name: command.template} if name else {}
    return {"argv": list(command.typed), "files": {**files, **own}, "script_sets": []}


def tuned_name(script: Script | None) -> str:
    """The name of a script's template with an answer filled in, which is never the template's own;
    empty where it has none."""
    if script is None or script.template is None:
        return ""
    path = PurePath(script.template.name)
    return f"{path.stem}.tuned{path.suffix}"
