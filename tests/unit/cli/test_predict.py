"""``tuner predict``: one case in words, many as lines, and what goes wrong with either."""

import json
from pathlib import Path

import pytest

CLUSTER = "8xa100-80gb"
SETTINGS = "sharding=full_shard,micro_batch_size=2"


@pytest.fixture
def file(tmp_path, case):
    """Two cases, and between them one that is wrong, and a blank line."""
    lines = [case, {**case, "cluster": "nowhere"}, {**case, "cluster": "8xh100-80gb"}]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)))
    return path


def test_a_file_of_cases(cli, file):
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


def test_one_case_as_json_is_the_answer_of_a_file(cli, tiny, tmp_path, case):
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


def test_sizes_that_a_configuration_leaves_out_are_told_once(cli, tiny, tmp_path):
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


def test_what_does_not_fit_exits_with_3(cli, tiny):
    done = _one(cli, tiny, "--memory-limit", "1KiB")
    assert done.code == 3
    assert "do not fit" in done.err
    assert done.out


def _one(cli, tiny, *more, **changes):
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
