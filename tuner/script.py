"""The command of a script with settings, as a user would type it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from tuner.core.configuration import Settings
from tuner.core.script import TEMPLATE, Launch, Script, is_optional, render, shown

if TYPE_CHECKING:
    from tuner.core.study import Question


# File that ``accelerate launch`` is given.
CONFIGURATION = "accelerate.yaml"
# Modules of the launchers' commands, which need not be on the path.
MODULES = {
    Launch.TORCHRUN: "torch.distributed.run",
    Launch.ACCELERATE: "accelerate.commands.accelerate_cli",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, and what it reads."""

    argv: tuple[str, ...]  # the launcher's name, its options, the script and its arguments
    environment: Mapping[str, str]  # variables that are set for it
    template: str = ""  # its configuration file with the settings; empty where there is none

    @property
    def typed(self) -> tuple[str, ...]:
        """The command with its variables in front, as a shell takes it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return (*(["env", *variables] if variables else []), *self.argv)

    def as_run(self, logs: Path) -> tuple[str, ...]:
        """The command with this Python's own launcher in the place of the one on the path.

        Args:
            logs: folder for what the launcher writes, which else stays in the system's own.
        """
        name, *rest = self.argv
        program = (sys.executable, "-P", "-m", MODULES[Launch(name)])
        if Launch(name) is Launch.TORCHRUN:
            return (*program, "--log-dir", str(logs), *rest)
        return (*program, rest[0], "--log_dir", str(logs), *rest[1:])


def command_of(
    question: "Question", settings: Settings, *, template: str = "", configuration: str = ""
) -> Command:
    """The command of a question's script, told ``settings``.

    ``template`` is the path of its rendered configuration file, by default the template's own name;
    ``configuration`` that of accelerate's file, by default :data:`CONFIGURATION`.
    """
    script = question.script
    assert script is not None
    ranks = question.cluster.world_size
    known = {
        **settings.all_values(),
        "global_batch_size": question.workload.global_batch_size,
        "sequence_length": question.workload.sequence_length,
        "world_size": ranks,
        "data_parallel_size": settings.data_parallel_size(ranks),
    }
    values = {name: shown(value) for name, value in known.items()}
    if script.template is not None:
        values[TEMPLATE] = template or script.template.name
    launcher: tuple[str, ...] = ("torchrun", "--standalone", "--nproc-per-node", str(ranks))
    if script.launch is Launch.ACCELERATE:
        launcher = ("accelerate", "launch", "--config_file", configuration or CONFIGURATION)
    # an argument that is nothing but a placeholder, and becomes nothing, is left out
    pairs = [(text, render(text, values)) for text in script.arguments]
    arguments = [filled for text, filled in pairs if filled or not is_optional(text)]
    return Command(
        argv=(*launcher, script.path, *arguments),
        environment={name: render(text, values) for name, text in script.environment.items()},
        template=render(script.template.text, values) if script.template else "",
    )


def script_launch(
    question: "Question", settings: Settings, configuration: str, files: Mapping[str, str]
) -> dict[str, Any]:
    """``argv`` and ``files`` of a suggestion.

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
    return {"argv": list(command.typed), "files": {**files, **own}}


def tuned_name(script: Script | None) -> str:
    """The name of a script's template with an answer filled in, which is never the template's own;
    empty where it has none."""
    if script is None or script.template is None:
        return ""
    path = PurePath(script.template.name)
    return f"{path.stem}.tuned{path.suffix}"
