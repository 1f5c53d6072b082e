"""docs/cli.md is what the command line says now, and is complete."""

import re

from tests.system.docs import reference
from tests.system.docs.pages import text
from tuner.errors import NothingFitsError, ProbeError, TrainsWronglyError, UsageError


def test_it_is_what_the_command_line_says_now():
    assert text("docs/cli.md") == reference.page(), "make docs writes it anew"


def test_every_exit_code_is_told():
    told = re.findall(r"^\| (\d|128 \+ N) \|", text("docs/troubleshooting.md"), flags=re.M)
    errors = ProbeError, UsageError, NothingFitsError, TrainsWronglyError
    known = {0, *(error.exit_code for error in errors)}
    assert told == [*map(str, sorted(known)), "128 + N"]
