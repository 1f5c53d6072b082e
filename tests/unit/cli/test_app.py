"""What the help says, and how little it needs."""

import ast
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tuner.catalog.gpus import gpu_kind
from tuner.cli.app import COMMANDS, GROUPS
from tuner.cli.options import study_ids

ALL = [name.split() for name in COMMANDS]


def test_every_help_teaches(cli, monkeypatch):
    for words in ALL:
        text = cli(*words, "--help").out
        assert "Example" in text
        assert f"  tuner {' '.join(words)}" in text
        assert "Exit codes: 0 answered, 1 failed, 2 wrong usage" in text
        fitting = ("suggest", "predict", "check", "size", "probe", "export", "rehearse")
        assert ("3 nothing fits" in text) == (words in ([one] for one in fitting))
        assert "--json" in text or words[0] == "mcp"  # which says nothing else anyway
        assert "--db URL" in text or words in (["models"], ["gpus"], ["rehearse"])
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
        ("studies list", {"tuner.cost", "tuner.dryrun"}, set()),
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


def test_the_version_is_shown(cli):
    found = cli("--version")
    assert (found.code, found.out) == (0, f"tuner {version('tuner')}\n")


def test_the_catalogue_is_listed(cli):
    shown = cli("models", "llama-3.1")
    assert shown.code == 0
    assert "llama-3.1-8b" in shown.out
    assert "8.03" in shown.out
    assert "gpt2" not in shown.out
    (found,) = cli("models", "llama-3.1-8b", "--json").json["models"]
    assert found["parameters"] == 8_030_261_248
    assert "80gb-pcie" in cli("gpus", "h100").out
    (found,) = cli("gpus", "l40s", "--json").json["gpus"]
    assert (found["name"], found["memory_bytes"]) == ("l40s", gpu_kind("l40s").memory_bytes)
    assert cli("gpus", "nonesuch").code == 1


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tuner sug", ["suggest"]),
        ("tuner suggest --model llama-3.1-", ["llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b"]),
        ("tuner predict --cluster 2x8xh100-n", ["2x8xh100-nvl"]),
        ("tuner suggest --cluster loc", ["local"]),
        ("tuner export st-1 acc", ["accelerate"]),
    ],
)
def test_a_shell_completes(environment, words, completed):
    asked = {"_TUNER_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    code = "import sys; from tuner.cli import main; sys.exit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**environment, **asked},
    )  # fmt: skip
    assert done.stdout.split() == completed, done.stderr


def test_a_shell_completes_studies(answered):
    begun = answered.id[:6]
    assert study_ids(begun) == [answered.id]
    assert study_ids("st-x") == []
