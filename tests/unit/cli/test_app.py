"""What the help says, and how little it needs."""

import re
import subprocess
import sys
from typing import Any

import pytest

from tuner.cli.commands import COMMANDS, GROUPS

ALL = [[name] for name in COMMANDS] + [
    [group, name] for group, (_, commands) in GROUPS.items() for name in commands
]
SUGGEST_OPTIONS = {
    "--script",
    "--launch",
    "--script-env",
    "--template",
    "--model",
    "--global-batch-size",
    "--sequence-length",
    "--optimizer",
    "--precision",
    "--reduce-dtype",
    "--cluster",
    "--framework",
    "--framework-version",
    "--knob",
    "--headroom",
    "--sampler",
    "--memory-limit",
    "--fidelity",
    "--probe-deadline",
    "--max-probes",
    "--budget",
    "--max-gpu-seconds",
    "--tolerance",
    "--json",
    "--db",
    "--write",
    "--server",
    "--replace",
    "--pool",
    "--help",
}


def test_commands_are_those_that_exist() -> None:
    assert {" ".join(words) for words in ALL} == {
        "suggest",
        "predict",
        "check",
        "probe",
        "calibrate",
        "export",
        "doctor",
        "studies list",
        "studies show",
        "studies cancel",
        "db upgrade",
        "db check",
        "db backup",
        "serve",
        "worker",
        "workers",
        "keys create",
        "keys list",
        "keys revoke",
        "keys audit",
    }


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_help_teaches(cli: Any, words: list[str]) -> None:
    text = cli(*words, "--help").out
    assert "Example" in text
    assert f"  tuner {' '.join(words)}" in text
    assert "Exit codes: 0 answered, 1 failed, 2 wrong usage, 3 nothing fits" in text
    assert "--json" in text
    assert "--db URL" in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_command_at_all_shows_help(cli: Any) -> None:
    assert cli().out == cli("--help").out == cli("-h").out
    assert cli().code == 0


def test_suggest_has_the_options_of_today(cli: Any) -> None:
    text = cli("suggest", "--help").out
    assert set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE)) == SUGGEST_OPTIONS


def test_probe_takes_settings_and_no_budget(cli: Any) -> None:
    text = cli("probe", "--help").out
    found = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE))
    budget = {"--max-probes", "--budget", "--max-gpu-seconds", "--tolerance", "--write"}
    budget |= {"--sampler"}
    elsewhere = {"--server", "--replace", "--pool"}
    assert found == SUGGEST_OPTIONS - budget - elsewhere | {"--settings"}


def test_options_say_their_unit_and_default(cli: Any) -> None:
    text = " ".join(cli("suggest", "--help").out.split())
    for part in (
        "Share of each GPU's usable memory to leave free, below 1. By default 0.05.",
        "--max-probes N Probes to run at most. By default 20; with --fidelity predicted 3,",
        "such as 90s, 10m or 1.5h. By default without limit.",
        "such as 4GiB or 500MiB",
        "--sequence-length N Tokens of one sequence. [required]",
    ):
        assert part in text


def test_help_imports_little() -> None:
    """The time itself is measured by a benchmark; this is what it depends on."""
    code = (
        "import sys; from tuner.cli import main; main(['suggest', '--help']);"
        "heavy = {'torch', 'sqlalchemy', 'rich', 'optuna', 'numpy', 'tuner.core.study'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_list_of_studies_imports_no_planner(environment: dict[str, str], answered: Any) -> None:
    code = (
        "import sys; from tuner.cli import main; assert main(['studies', 'list']) == 0;"
        "heavy = {'torch', 'optuna', 'numpy', 'alembic', 'tuner.planner', 'yaml'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("group", [[], *([name] for name in GROUPS)], ids=" ".join)
def test_lists_of_commands_are_not_cut_off(
    cli: Any, group: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli(*group, "--help").out.partition("\nCommands:\n")[2]
    assert shown
    assert "..." not in shown
