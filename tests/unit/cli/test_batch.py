"""What is told of a worker's batch job, with a squeue that says what a test wants."""

from pathlib import Path

import pytest

from tuner.cli.slurm import BatchJob
from tuner.client.worker_process import Signals

RUNNING = "RUNNING|gpu|n1|N/A|None"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH: each line of its ``says`` is an answer, and the last one stays."""
    says = tmp_path / "says"
    program = tmp_path / "squeue"
    program.write_text(
        f'#!/bin/sh\nhead -1 {says}; [ "$(wc -l < {says})" -gt 1 ] && sed -i 1d {says}; true\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("tuner.cli.slurm.LOOK_S", 0.01)
    monkeypatch.setattr("tuner.cli.slurm.READ_S", 0.01)
    return says


@pytest.mark.parametrize(
    ("last", "code", "told"),
    [
        ("COMPLETED|gpu|n1|N/A|None", 0, "completed"),
        ("FAILED|gpu|n1|N/A|NonZeroExitCode", 1, "failed (NonZeroExitCode)"),
        ("CANCELLED|gpu|n1|N/A|by | the administrator", 1, "cancelled (by | the administrator)"),
        ("", 1, "Slurm knows it no more, nor how it ended"),
    ],
)
def test_how_a_job_ended(squeue, tmp_path, capsys, last: str, code: int, told: str) -> None:
    squeue.write_text(f"{RUNNING}\n{last}\n")
    with Signals() as signals:
        assert BatchJob(job_id="12", output=tmp_path / "12.log").follow(signals) == code
    said = capsys.readouterr().err
    assert "Slurm job 12: running on n1" in said
    assert f"Slurm job 12: {told}" in said
