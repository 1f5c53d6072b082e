"""Messages that docs/troubleshooting.md explains are those that commands really say."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.docs.pages import text
from tuner.cli import main

TABLE = text("docs/troubleshooting.md").split("## Messages\n\n")[1].split("\n\n")[0]
SHOWN = re.findall(r"^\| `([^`|]+)`[ ,|]", TABLE, flags=re.M)
QUESTION = ["--global-batch-size", "256", "--sequence-length", "4096", "--fidelity", "predicted"]
LLAMA = ["suggest", "--model", "llama-3.1-8b", "--cluster", "8xh100-80gb", *QUESTION]
HUGE = ["suggest", "--model", "llama-3.1-405b", "--cluster", "8xh100-80gb", *QUESTION]
COMMANDS = {
    "cluster": ([*LLAMA, "--fidelity", "measured"], 2),
    "model": (["suggest", "--model", "lama-3.1-8b", "--cluster", "8xh100-80gb", *QUESTION], 2),
    "global_batch_size": ([*LLAMA, "--framework", "accelerate", "--global-batch-size", "3"], 2),
    "tp_size": ([*LLAMA, "--knob", "tp_size=3"], 2),
    "nothing": ([*HUGE, "--framework", "nanotron"], 3),
    "study": (["studies", "show", "st-0000"], 2),
    "no": (["workers"], 1),
}
"""A command that says the message which starts with a word, and its exit code."""


def first_word(message: str) -> str:
    return re.split(r"\W", message, maxsplit=1)[0]


def without_figures(message: str) -> str:
    """In one line; what a machine or a release may change is left out."""
    return re.sub(r"\d[\d.]*", "N", " ".join(message.split()))


def test_every_message_has_a_command() -> None:
    assert {first_word(message) for message in SHOWN} == set(COMMANDS)


@pytest.mark.parametrize("shown", SHOWN)
def test_a_command_says_it(
    shown: str,
    make_database: Callable[[Path], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TUNER_DB", make_database(tmp_path / "studies.db"))
    argv, code = COMMANDS[first_word(shown)]
    assert main(argv) == code
    assert without_figures(shown).removesuffix(" ...") in without_figures(capsys.readouterr().err)
