"""What a launcher's module must offer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.framework import FrameworkName
from tuner.quantity import Provenance
from tuner.settings import Settings
from tuner.study import Question
from tuner.workload import Precision


class Stack(StrEnum):
    """Whose code trains under a file."""

    ANY = "any"  # that of whatever script is started
    TORCH = "torch"  # FSDP2 or DDP, as torch, accelerate and the Trainer run them
    NANOTRON = "nanotron"
    DEEPSPEED = "DeepSpeed"
    TORCHTITAN = "torchtitan"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where exported settings come from; shown at the top of the file."""

    study_id: str
    """The study."""
    date: str
    """When the file was written, ISO 8601."""
    provenance: Provenance
    """The weakest that stands behind the figures."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that the figures were found with."""
    figures: tuple[str, ...] = ()
    """What was found, one line each, such as ``3425 tokens/s per GPU (3390 to 3460)``."""
    other_stack: str = ""
    """As of :func:`other_stack`, of the format: whoever exports fills it in."""


def other_stack(question: Question, stack: Stack) -> str:
    """That a study's figures are of another stack than a file's; empty where they are of the same.

    Those of a user's script are of its own code, which every file that it can be exported to runs.
    """
    is_nanotron = question.framework.name is FrameworkName.NANOTRON
    in_bf16 = question.workload.precision is Precision.BF16
    mine = Stack.NANOTRON if is_nanotron else Stack.TORCH
    if question.script is not None or stack in (Stack.ANY, mine):
        return ""
    theirs = "torch's own sharding" if stack is Stack.TORCH else str(stack)
    of = "nanotron" if is_nanotron else "torch's own sharding (FSDP2 or DDP)"
    said = f"The figures are of {of}; {theirs} needs other buffers and has another speed."
    if is_nanotron and in_bf16 and stack is not Stack.DEEPSPEED:  # whose file asks for the same
        said += (
            " Its numbers differ too: nanotron accumulates gradients, and steps, in fp32, and with"
            " this file both are in bf16."
        )
    return said


def _nothing(question: Question, settings: Settings) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One launcher's file. All functions are pure."""

    name: str
    """As the user writes it."""
    file_name: str
    """Usual name of the file."""
    stack: Stack
    """Whose code trains under it."""
    why_not: Callable[[Question, Settings], str | None]
    """Why the launcher cannot run the settings and what to do about it; ``None`` if it can."""
    media_type: str = "application/yaml"
    """What the file is, as HTTP says it."""
    render: Callable[[Question, Settings, About], str]
    """The file's text. Only for settings with no ``why_not``."""
    argv: Callable[[Question, str], tuple[str, ...]] | None = None
    """The command that trains with the file at a path; ``None`` if the file starts nothing."""
    beside: Callable[[Question, Settings], tuple[str, ...]] = _nothing
    """What must be done beside the file, one sentence each: of files without comments, which
    cannot say it themselves."""
    for_programs: bool = False
    """Whether programs read it and people hardly ever: pages then show no text of it."""
    merge: Callable[[str, str], str] | None = None
    """The rendered text merged into the text of a file of the user's own, whose other content is
    kept as it is; ``None`` where the file is whole by itself. Raises ``UsageError`` for a text
    that cannot be merged into."""
