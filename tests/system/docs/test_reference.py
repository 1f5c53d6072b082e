"""docs/cli.md is what the command line says now, and is complete."""

import re

import pytest

from tests.system.docs import reference
from tests.system.docs.command_line import command_of
from tests.system.docs.pages import text
from tuner.cli.commands import COMMANDS, GROUPS
from tuner.errors import NothingFitsError, ProbeError, TrainsWronglyError, UsageError

NAMES = [*COMMANDS, *(f"{group} {name}" for group, (_, own) in GROUPS.items() for name in own)]


def test_it_is_what_the_command_line_says_now() -> None:
    assert text("docs/cli.md") == reference.page(), "make docs writes it anew"


def test_every_command_has_every_option_in_it() -> None:
    page = text("docs/cli.md")
    for name in NAMES:
        (section,) = re.findall(rf"^## tuner {name}\n(.*?)(?=^## |\Z)", page, flags=re.M | re.S)
        context = command_of(name.split())
        for one in context.command.get_params(context):
            for option in one.opts if one.param_type_name == "option" else ():
                assert option in ("--help", "-h") or f"`{option}" in section, (name, option)
        assert "```sh\ntuner " in section, "an example"


@pytest.mark.parametrize("page", ["docs/cli.md", "docs/troubleshooting.md"])
def test_every_exit_code_is_told(page: str) -> None:
    told = re.findall(r"^\| (\d|128 \+ N) \|", text(page), flags=re.M)
    errors = ProbeError, UsageError, NothingFitsError, TrainsWronglyError
    known = {0, *(error.exit_code for error in errors)}
    assert told == [*map(str, sorted(known)), "128 + N"]
