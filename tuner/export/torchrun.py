"""A shell script with the whole ``torchrun`` command, and the settings as variables.

Options are those of torch 2.13's ``torch/distributed/run.py``.
"""

from tuner.export.contract import About, Format, Stack
from tuner.export.header import comments, header, provenance
from tuner.export.shell import MEDIA_TYPE, argv, checks, command, exports, usage
from tuner.export.variables import surroundings, variables
from tuner.framework import FrameworkName
from tuner.settings import Settings
from tuner.study import Question

FILE_NAME = "torchrun.sh"


def in_force(question: Question) -> str:
    """Of files that start any script: how the settings come into force in it."""
    if question.script is not None:
        return (
            "The study is of a script of your own: the settings are in force only with the"
            " arguments by which it takes them, which tuner studies show tells as its launch."
        )
    if question.framework.name is FrameworkName.NANOTRON:
        return (
            "The script is nanotron's run_train.py, with --config-file and a configuration that"
            " has the settings (tuner's format nanotron)."
        )
    return (
        "The settings are in force only if the script applies them: from tuner's formats"
        " accelerate, trainer or torch, or from the variables below."
    )


def _why_not(question: Question, settings: Settings) -> str | None:
    return None


def _render(question: Question, settings: Settings, about: About) -> str:
    use = usage(question, FILE_NAME)
    top = header(provenance(question, settings, about), use, comments(in_force(question)))
    values = {**variables(question, settings), **surroundings(question)}
    lines = ["#!/bin/sh", top, "set -eu", *exports(values), *checks(question, FILE_NAME)]
    return "\n".join([*lines, f"exec {command(question)}", ""])


FORMAT = Format(
    name="torchrun",
    file_name=FILE_NAME,
    stack=Stack.ANY,
    media_type=MEDIA_TYPE,
    why_not=_why_not,
    render=_render,
    argv=argv,
)
