"""``tuner calibrate``, with cases that take no time, and where its rates are used."""

import json
from pathlib import Path

import pytest

from tuner.cli import calibrate, main
from tuner.core.cluster import Cluster

CPU = ("--cluster", "cpu:2")
CASE = (
    "--model", "stories15m", "--global-batch-size", "4", "--sequence-length", "64", *CPU,
    "--settings", "sharding=full_shard",
)  # fmt: skip


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An absent database; calibrations time small cases only."""
    usual = calibrate.calibrate_argv

    def quick(cluster: Cluster) -> list[str]:
        return [*usual(cluster), "--quick"]

    monkeypatch.setattr(calibrate, "calibrate_argv", quick)
    return f"sqlite:///{tmp_path}/tuner.db"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.long
def test_rates_are_measured_shown_and_used(db: str, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.long
def test_json_has_everything_that_was_timed(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "calibrate", "--cluster", "cpu:1", "--json", "--db", db)
    assert code == 0
    found = json.loads(out)
    assert found["links"] == {}
    assert {reading["case"]["kind"] for reading in found["readings"]} >= {"copy", "layers"}
    assert found["catalogue"]["gpu"]["name"] == "cpu"


@pytest.mark.parametrize("cluster", ["8xh100-80gb", "nonsense"])
def test_a_cluster_that_is_not_here_is_a_wrong_option(
    cluster: str, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "calibrate", "--cluster", cluster, "--db", db)
    assert code == 2
    assert "cluster" in err
    assert not (tmp_path / "tuner.db").exists()


def test_a_failure_of_the_worker_is_told(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = ["python", "-c", "raise SystemExit('the device is busy')"]
    monkeypatch.setattr(calibrate, "calibrate_argv", lambda cluster: failing)
    code, _, err = run(capsys, "calibrate", *CPU, "--db", db)
    assert code == 1
    assert "the device is busy" in err
