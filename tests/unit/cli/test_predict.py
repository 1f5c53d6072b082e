"""``tuner predict``: one case in words, many as lines, and what goes wrong with either."""

import json
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
    file.write_text(file.read_text() + "\nnope\n{}\n")
    done = cli("predict", "--cases", str(file), "--dry-runs", "none", "--json")
    assert done.code == 0
    assert all(isinstance(json.loads(line), dict) for line in done.out.splitlines())
    assert done.err == "tuner: 2 of 5 cases answered with an error\n"


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


def test_sizes_that_a_configuration_leaves_out_are_told_once(
    cli: Any, tiny: str, tmp_path: Path
) -> None:
    sizes = json.loads(Path(tiny).read_text())
    del sizes["max_position_embeddings"]
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(sizes))
    done = _one(cli, str(path), "--json", "--headroom", "0.1", "--memory-limit", "20GiB")
    assert done.err.startswith("bare: not in the model's configuration")
    (note,) = done.json["notes"]
    assert note.startswith("the headroom is not applied")
    done = _one(cli, str(path))
    assert "not in the model's configuration" in done.err
    assert "not in the model's configuration" not in " ".join(done.out.split())


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


def test_files_that_cannot_be_read_and_options_that_go_into_them(
    cli: Any, tmp_path: Path, file: Path, database: Path
) -> None:
    for name in ("absent.jsonl", ".", "a\0b"):
        done = cli("predict", "--cases", str(tmp_path / name))
        assert (done.code, done.out) == (2, "")
        assert "tuner: error: cases: got" in done.err
        assert "cannot be read" in done.err
    done = cli("predict", "--cases", str(file), "--cluster", CLUSTER, "--json")
    assert (done.code, done.json["error"]["field"]) == (2, "cluster")
    done = cli("predict", "--cases", str(file), "--dry-runs", "some", "--json")
    assert (done.code, done.json["error"]["field"]) == (2, "dry_runs")
    assert not database.exists()


def test_what_is_wrong_or_missing_is_named_as_the_option(
    cli: Any, tiny: str, database: Path
) -> None:
    for name, value, field in (
        ("settings", "tp_size=3", "tp_size"),
        ("settings", "tp=3", "settings"),
        ("sequence_length", "1e3", "sequence_length"),
        ("cluster", "8xh100-80bg", "cluster"),
        ("headroom", "5%", "headroom"),
        ("model", None, "model"),
        ("cluster", None, "cluster"),
        ("settings", None, "settings"),
    ):
        done = _one(cli, tiny, "--json", **{name: value})
        assert (done.code, done.json["error"]["field"]) == (2, field), (name, value)
    assert not database.exists()
