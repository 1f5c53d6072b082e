"""``tuner predict``: one case in words, many as lines, and what goes wrong with either."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

CLUSTER = "8xa100-80gb"
GIVEN = ("--sequence-length", "64", "--global-batch-size", "32", "--cluster", CLUSTER)
SETTINGS = "sharding=full_shard,micro_batch_size=2"
MAIN = "import sys; from tuner.cli import main; sys.exit(main())"


@pytest.fixture
def case(tiny: str) -> dict[str, Any]:
    """A case with a whole configuration."""
    return {
        "workload": {
            "model": json.loads(Path(tiny).read_text()),
            "sequence_length": 64,
            "global_batch_size": 32,
        },
        "cluster": CLUSTER,
        "settings": SETTINGS,
    }


@pytest.fixture
def file(tmp_path: Path, case: dict[str, Any]) -> Path:
    """Two cases, and between them one that is wrong, and a blank line."""
    lines = [case, {**case, "cluster": "nowhere"}, {**case, "cluster": "8xh100-80gb"}]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)))
    return path


def test_a_file_of_cases(cli: Any, file: Path) -> None:
    done = cli("predict", "--cases", str(file), "--dry-runs", "none")
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0
    assert [answer.get("fits") for answer in answers] == [True, None, True]
    assert [answer.get("provenance") for answer in answers] == ["predicted", "unknown", "predicted"]
    assert done.err == ""


def test_wrong_cases_are_counted_on_stderr(cli: Any, file: Path) -> None:
    file.write_text(file.read_text() + "\nnope\n{}\n")
    done = cli("predict", "--cases", str(file), "--dry-runs", "none")
    assert done.code == 0
    assert len(done.out.splitlines()) == 5
    assert done.err == "tuner: 2 of 5 cases answered with an error\n"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_lines_are_json_with_and_without_the_option(cli: Any, file: Path, more: Any) -> None:
    done = cli("predict", "--cases", str(file), "--dry-runs", "none", *more)
    assert all(isinstance(json.loads(line), dict) for line in done.out.splitlines())


def test_cases_from_stdin(file: Path, environment: dict[str, str]) -> None:
    done = _run("predict", "--cases", "-", "--dry-runs", "none", env=environment, stdin=file)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == b""


def test_a_case_at_a_time_is_answered_while_the_next_is_not_yet_there(
    case: dict[str, Any], environment: dict[str, str]
) -> None:
    process = _start("predict", "--cases", "-", "--dry-runs", "none", env=environment)
    with process:
        assert process.stdin
        assert process.stdout
        for number in (1, 2):
            process.stdin.write(json.dumps({**case, "id": number}).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.stdin.close()
        assert process.stdout.readline() == b""
    assert process.returncode == 0


def test_a_closed_stdout_ends_it_quietly(
    case: dict[str, Any], tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text((json.dumps(case) + "\n") * 3000)
    process = _start("predict", "--cases", str(path), "--dry-runs", "none", env=environment)
    with process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_leaves_what_was_answered(case: dict[str, Any], environment: dict[str, str]) -> None:
    process = _start("predict", "--cases", "-", "--dry-runs", "none", env=environment)
    with process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(case).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["fits"]
        time.sleep(0.2)  # it waits for more
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130


@pytest.mark.parametrize("name", ["absent.jsonl", ".", "a\0b"])
def test_a_file_that_cannot_be_read(cli: Any, tmp_path: Path, name: str, database: Path) -> None:
    done = cli("predict", "--cases", str(tmp_path / name))
    assert done.code == 2
    assert "tuner: error: cases: got" in done.err
    assert "cannot be read" in done.err
    assert done.out == ""
    assert not database.exists()


def test_options_of_one_case_are_not_taken_with_many(cli: Any, file: Path) -> None:
    done = cli("predict", "--cases", str(file), "--cluster", CLUSTER, "--json")
    assert done.code == 2
    assert done.json["error"]["field"] == "cluster"
    assert "goes into each case" in done.err


def test_a_policy_that_there_is_not(cli: Any, file: Path) -> None:
    done = cli("predict", "--cases", str(file), "--dry-runs", "some", "--json")
    assert done.json["error"]["field"] == "dry_runs"
    assert "auto, all, none" in done.err


# One case


def test_one_case_in_words(cli: Any, tiny: str) -> None:
    done = _one(cli, tiny)
    text = " ".join(done.out.split())
    assert done.code == 0
    for part in (
        "tiny on 8xa100-80gb (torch), global batch 32, sequence 64",
        "sharding full_shard",
        "gradient_accumulation_steps 2",
        "fits yes",
        "tokens/s per GPU",
        "by arithmetic",
        "allocated",
        "reserved",
        "on the device",
        "parameters",
        "optimizer state",
        "backward",
    ):
        assert part in text
    assert max(map(len, done.out.splitlines())) <= 160


def test_one_case_as_json_is_the_answer_of_a_file(
    cli: Any, tiny: str, tmp_path: Path, case: dict[str, Any]
) -> None:
    alone = _one(cli, tiny, "--json").json
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(case))
    line = json.loads(cli("predict", "--cases", str(path), "--dry-runs", "none").out)
    asked = {"workload", "cluster", "framework", "settings"}
    assert {k: v for k, v in alone.items() if k not in asked} == {
        k: v for k, v in line.items() if k not in asked
    }
    path.write_text(json.dumps({name: alone[name] for name in asked}))
    again = json.loads(cli("predict", "--cases", str(path), "--dry-runs", "none").out)
    assert again == alone


def test_dead_knobs_are_said(cli: Any, tiny: str) -> None:
    done = _one(cli, tiny, settings="sharding=ddp,tp_recompute_allgather=true")
    assert "tp_recompute_allgather is false, not true as asked" in " ".join(done.out.split())


def test_what_does_not_fit_exits_with_3(cli: Any, tiny: str) -> None:
    done = _one(cli, tiny, "--memory-limit", "1KiB")
    assert done.code == 3
    assert "these settings do not fit" in done.err
    assert "no" in done.out


def test_a_cluster_of_ones_own_without_rates(cli: Any, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'nodes = 1\ngpus_per_node = 8\ngpu = {name = "mine", memory_bytes = 4294967296}'
    )
    done = _one(cli, tiny, cluster=str(path))
    assert done.code == 0
    assert "mine is not known" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"settings": "tp_size=3"}, "tp_size"),
        ({"settings": "tp=3"}, "settings"),
        ({"sequence_length": "1e3"}, "sequence_length"),
        ({"sequence_length": "512"}, "sequence_length"),
        ({"global_batch_size": "4"}, "global_batch_size"),
        ({"cluster": "8xh100-80bg"}, "cluster"),
        ({"model": "lama"}, "model"),
        ({"framework": "jax"}, "framework"),
        ({"headroom": "5%"}, "headroom"),
        ({"optimizer": "lion"}, "optimizer"),
    ],
)
def test_what_is_wrong_is_named_as_the_option(
    cli: Any, tiny: str, changes: dict[str, str], field: str, database: Path
) -> None:
    done = _one(cli, tiny, "--json", **changes)
    assert done.code == 2
    assert done.json["error"]["field"] == field
    assert not database.exists()


@pytest.mark.parametrize("name", ["model", "cluster", "settings", "sequence_length"])
def test_what_is_missing_is_named(cli: Any, tiny: str, name: str) -> None:
    done = _one(cli, tiny, "--json", **{name: None})
    assert done.code == 2
    assert done.json["error"]["field"] == name
    assert "--cases" in done.err


def test_a_file_of_cases_needs_neither_torch_nor_the_planner(
    file: Path, environment: dict[str, str]
) -> None:
    code = (
        "import sys; from tuner.cli import main;"
        f"assert main(['predict', '--cases', {str(file)!r}, '--dry-runs', 'none']) == 0;"
        "heavy = {'torch', 'optuna', 'numpy', 'transformers', 'fastapi'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_real_dry_run_is_made_and_kept(
    case: dict[str, Any], tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(case) + "\n" + json.dumps({**case, "settings": SETTINGS[:-1] + "4"}))
    made = _run("predict", "--cases", str(path), env=environment)
    kept = _run("predict", "--cases", str(path), "--dry-runs", "none", env=environment)
    assert (made.returncode, made.stderr) == (0, b"")
    assert made.stdout == kept.stdout
    memories = [json.loads(line)["memory"] for line in made.stdout.splitlines()]
    assert {memory["basis"] for memory in memories} == {"dry_run"}
    assert memories[0]["allocated_gib"]["value"] < memories[1]["allocated_gib"]["value"]


def _one(cli: Any, tiny: str, *more: str, **changes: str | None) -> Any:
    options = {
        "model": tiny,
        "cluster": CLUSTER,
        "sequence_length": "64",
        "global_batch_size": "32",
        "settings": SETTINGS,
        **changes,
    }
    words = [
        word
        for name, value in options.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    return cli("predict", *words, "--dry-runs", "none", *more)


def _start(*arguments: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-P", "-c", MAIN, *arguments]
    return subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=env,
        # A shell starts what it runs in the background with the signal ignored, for good.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def _run(
    *arguments: str, env: dict[str, str], stdin: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-P", "-c", MAIN, *arguments]
    with (stdin or Path(os.devnull)).open("rb") as file:
        return subprocess.run(argv, stdin=file, capture_output=True, env=env, check=False)
