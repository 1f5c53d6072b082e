"""What the command line takes, read without running anything, and what variables are read."""

import re
from functools import cache

import typer

from api.settings import PREFIX, Settings
from tests.system.docs.pages import ROOT
from tuner.cli.app import app


def parsed(words):
    """The context of a command of ``tuner`` with its options read, as before it runs.

    Args:
        words: without ``tuner``.
    """
    command = typer.main.get_command(app())
    context = command.make_context("tuner", list(words))
    while hasattr(command, "resolve_command"):
        left = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, left)
        context = command.make_context(name, rest, parent=context)
    return context


def command_of(names):
    """The context of a command, of which nothing was read.

    Args:
        names: such as ``("keys", "create")``; none for the whole of ``tuner``.
    """
    command = typer.main.get_command(app())
    context = command.make_context("tuner", [], resilient_parsing=True)
    for name in names:
        command = command.get_command(context, name)
        context = typer.Context(command, parent=context, info_name=name)
    return context


@cache
def known_variables():
    """``TUNER_*`` variables that anything reads: settings, and names in the code."""
    names = {PREFIX + field.upper() for field in Settings.model_fields}
    for package in ("tuner", "workers", "api"):
        for path in (ROOT / package).rglob("*.py"):
            names |= set(re.findall(r'"(TUNER_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    return names
