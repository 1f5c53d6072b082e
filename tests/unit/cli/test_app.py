"""What the help says, and how little it needs."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli.commands import COMMANDS, GROUPS

ALL = [[name] for name in COMMANDS] + [
    [group, name] for group, (_, commands) in GROUPS.items() for name in commands
]


def test_every_help_teaches(cli, monkeypatch):
    for words in ALL:
        text = cli(*words, "--help").out
        assert "Example" in text
        assert f"  tuner {' '.join(words)}" in text
        assert "Exit codes: 0 answered, 1 failed, 2 wrong usage, 3 nothing fits" in text
        assert "--json" in text
        assert "--db URL" in text
        assert max(map(len, text.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "80")
    for group in ([], *([name] for name in GROUPS)):  # lists of commands are not cut off
        shown = cli(*group, "--help").out.partition("\nCommands:\n")[2]
        assert shown
        assert "..." not in shown


HEAVY = {"torch", "optuna", "numpy", "alembic", "tuner.planner", "yaml", "transformers", "fastapi"}


@pytest.mark.parametrize(
    ("words", "more", "allowed"),
    [
        ("suggest --help", {"sqlalchemy", "rich", "tuner.core.study"}, set()),
        ("studies list", set(), set()),
        ("workers --here --json", {"rich"}, {"yaml"}),
        (
            "predict --cases cases.jsonl --dry-runs none",
            set(),
            {"tuner.planner", "yaml", "alembic"},
        ),
    ],
)
def test_light_commands_import_little(
    environment, answered, tmp_path, tiny, words,
    more, allowed
):  # fmt: skip
    """The time itself is measured by a benchmark; this is what it depends on."""
    workload = {"model": json.loads(Path(tiny).read_text()), "sequence_length": 64}
    case = {"workload": {**workload, "global_batch_size": 32}, "cluster": "8xa100-80gb"}
    (tmp_path / "cases.jsonl").write_text(json.dumps({**case, "settings": "sharding=full_shard"}))
    code = (
        f"import sys; from tuner.cli import main; main({words.split()!r});"
        f"print(sorted({HEAVY | more - allowed!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment,
        cwd=tmp_path,
    )  # fmt: skip
    assert set(ast.literal_eval(done.stdout.splitlines()[-1])) <= allowed, done.stdout
