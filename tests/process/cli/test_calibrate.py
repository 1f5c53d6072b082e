"""``tuner calibrate``, with cases that take no time, and where its rates are used."""

import json

import pytest

from tuner.cli import machine, main

CPU = ("--cluster", "cpu:2")
CASE = (
    "--model", "stories15m", "--global-batch-size", "4", "--sequence-length", "64", *CPU,
    "--settings", "sharding=full_shard",
)  # fmt: skip


@pytest.fixture
def db(tmp_path, monkeypatch):
    """An absent database; calibrations time small cases only."""
    usual = machine.calibrate_argv

    def quick(cluster):
        return [*usual(cluster), "--quick"]

    monkeypatch.setattr(machine, "calibrate_argv", quick)
    return f"sqlite:///{tmp_path}/tuner.db"


def run(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.long
def test_rates_are_measured_shown_and_used(db, capsys):
    predict = ("predict", *CASE, "--dry-runs", "none", "--json", "--db", db)
    code, out, _ = run(capsys, *predict)
    assert code == 0
    assert json.loads(out)["step_time_s"]["value"] is None
    assert "tuner calibrate --cluster cpu:2" in json.loads(out)["reason"]

    code, out, err = run(capsys, "calibrate", *CPU, "--db", db)
    assert code == 0, err
    assert "bf16 matrices, TFLOP/s" in out
    assert "intra-node link, GB/s" in out
    assert "up to two minutes" in err

    code, out, _ = run(capsys, *predict)
    answer = json.loads(out)
    assert answer["step_time_s"]["value"] > 0
    assert answer["provenance"] == "predicted"
    assert any("calibrated rates" in note for note in answer["notes"])

    suggest = ("suggest", *CASE[:-2], "--fidelity", "predicted", "--max-probes", "1", "--json")
    code, out, err = run(capsys, *suggest, "--db", db)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["best"]["step_time_s"]["provenance"] == "predicted"
    assert any("calibrated rates" in sentence for sentence in answer["explanation"])
