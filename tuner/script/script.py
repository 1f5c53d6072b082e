"""A user's training script as a part of a question."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tuner.errors import UsageError
from tuner.script.placeholders import TEMPLATE, used_in
from tuner.settings import KNOBS
from tuner.workload import choice

LARGEST_FILE_BYTES = 1 << 20
"""Of a script and of a template; a larger one is not what was meant."""
RESERVED = re.compile(
    r"TUNER_\w*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w*"
    r"|PET_\w*|CUDA_VISIBLE_DEVICES"
)
"""Environment variables that a launcher sets or reads, or that place a probe. torchrun takes its
options from ``PET_*``, by which Kubeflow Trainer tells it of nodes."""


class Launch(StrEnum):
    """What starts the ranks of a script."""

    TORCHRUN = "torchrun"  # only placeholders tell the script its settings
    ACCELERATE = "accelerate"  # accelerate launch, with a configuration file of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A configuration file with placeholders, which is written anew for every probe."""

    name: str
    """The file's name, without its folder."""
    text: str
    """What is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script with the template of its command."""

    path: str
    """Where it is, from the root."""
    sha256: str
    """Of what is in it, in hex: an edited script is another one."""
    folder: str
    """Where it is run."""
    launch: Launch = Launch.TORCHRUN
    """What starts its ranks."""
    arguments: tuple[str, ...] = ()
    """What follows it in the command, with placeholders."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Environment variables with placeholders."""
    template: Template | None = None
    """Its configuration file, if that has placeholders."""

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
        """What its command and its template name."""
        inside = used_in("template", self.template.text) if self.template else frozenset()
        return self._texts_used() | inside

    @property
    def knobs(self) -> frozenset[str]:
        """The knobs among these."""
        return self.placeholders & KNOBS.keys()

    def _texts_used(self) -> frozenset[str]:
        arguments = (used_in("script arguments", text) for text in self.arguments)
        variables = (used_in("script_env", text) for text in self.environment.values())
        return frozenset().union(*arguments, *variables)

    @property
    def why_other(self) -> str:
        """Why the file is not the script that was asked about; empty if it is."""
        try:
            now = _sha256(Path(self.path).read_bytes())
        except OSError as error:
            return f"the script {self.path} cannot be read: {error.strerror or error}"
        changed = f"the script {self.path} was edited since it was asked about: ask again"
        return "" if now == self.sha256 else changed

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        known: dict[str, Any] = {
            "path": self.path,
            "sha256": self.sha256,
            "folder": self.folder,
            "launch": str(self.launch),
            "arguments": list(self.arguments),
            "environment": dict(self.environment),
        }
        if self.template is not None:
            known["template"] = {"name": self.template.name, "text": self.template.text}
        return known

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Script":
        """The reverse of :meth:`as_dict`."""
        template = values.get("template")
        return cls(
            path=values["path"],
            sha256=values["sha256"],
            folder=values["folder"],
            launch=Launch(values["launch"]),
            arguments=tuple(values["arguments"]),
            environment=dict(values["environment"]),
            template=template and Template(**template),
        )


def read_script(
    path: str | os.PathLike[str],
    *,
    launch: Launch | str = Launch.TORCHRUN,
    arguments: Sequence[str] = (),
    environment: Iterable[str] | Mapping[str, str] = (),
    template: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Script:
    """The script of a command line.

    Args:
        path: of the script; from ``folder``, unless from the root.
        launch: what starts its ranks: ``torchrun`` or ``accelerate``.
        arguments: what follows it, word by word.
        environment: ``NAME=VALUE`` each, or values by name.
        template: path of its configuration file, if that has placeholders.
        folder: where it is run; where this process is unless given.

    Raises:
        UsageError: a file cannot be read, a placeholder is not one, or an argument is wrong.
    """
    where = Path.cwd() if folder is None else Path(folder).absolute()
    found = _found("script", where, path)
    content = _read("script", found, str(path))
    return Script(
        path=os.path.normpath(found),
        sha256=_sha256(content),
        folder=str(where),
        launch=choice("launch", Launch, launch),
        arguments=_words(arguments),
        environment=dict(_variables(environment)),
        template=None if template is None else _template(where, template),
    )


def _found(field_name: str, where: Path, path: str | os.PathLike[str]) -> Path:
    try:
        return where / Path(path).expanduser()
    except RuntimeError as error:  # of an unknown user
        raise UsageError(field_name, str(path), f"is not a usable path: {error}") from error


def _words(arguments: Sequence[str]) -> tuple[str, ...]:
    if isinstance(arguments, str) or not all(isinstance(word, str) for word in arguments):
        raise UsageError("arguments", arguments, "must be a list of words, such as ['--lr', '1']")
    return tuple(arguments)


def _template(where: Path, path: str | os.PathLike[str]) -> Template:
    found = _found("template", where, path)
    try:
        text = _read("template", found, str(path)).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("template", str(path), "must be text in UTF-8") from None
    if not used_in("template", text):
        raise UsageError("template", str(path), "has no placeholder, such as {micro_batch_size}")
    return Template(name=found.name, text=text)


def _variables(texts: Iterable[str] | Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(texts, Mapping):
        texts = [f"{name}={value}" for name, value in texts.items()]
    known = set()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError("script_env", text, "must look like NAME={micro_batch_size}")
        if name in known:
            raise UsageError("script_env", name, "is given twice")
        known.add(name)
        yield name, value


def _read(field_name: str, path: Path, given: str) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise UsageError(field_name, given, "must be a file of at most 1 MiB")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError: a null character
        why = getattr(error, "strerror", None) or error
        raise UsageError(field_name, given, f"must be a file that can be read: {why}") from None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
