"""A worker as a batch job: its options, its script, and how it is followed."""

from pathlib import Path

import pytest

from tuner.cli.slurm import BatchJob, batch_options, batch_script
from tuner.client.worker_process import Signals
from tuner.errors import UsageError

RUNNING = "RUNNING|gpu|n1|N/A|None"


@pytest.fixture
def squeue(tmp_path, monkeypatch):
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
def test_how_a_job_ended(squeue, tmp_path, capsys, last, code, told):
    squeue.write_text(f"{RUNNING}\n{last}\n")
    with Signals() as signals:
        assert BatchJob(job_id="12", output=tmp_path / "12.log").follow(signals) == code
    said = capsys.readouterr().err
    assert "Slurm job 12: running on n1" in said
    assert f"Slurm job 12: {told}" in said


GOLDEN = Path(__file__).parents[1] / "golden" / "worker.sbatch"
ARGV = (
    "/opt/py thon/bin/python",
    "-P",
    "-m",
    "workers",
    "--serve",
    "--pool=a",
    "--name=it's $HOME",
)


def test_the_script():
    assert batch_script(ARGV, (), output="/home/a user/%j.log") == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ("--oversubscribe", "--exclusive"),
        ("--exclusive=user", "--exclusive"),
        ("--mem-per-gpu=8G", "--mem=0"),
        ("--no-requeue", "--requeue"),
        ("-J mine", "--job-name=tuner"),
    ],
)
def test_options_that_are_given_stand_in_the_place_of_ours(given, left_out):
    script = batch_script(ARGV, batch_options(given), output="/o")
    assert f"#SBATCH {left_out}\n" not in script
    assert "#SBATCH --no-kill\n" in script


def test_options_come_in_a_form_that_cannot_be_misread():
    text = "-p gpu -N2 --time 8:00:00 --gres=gpu:8 --comment='two words' --exclusive -t=1 -J x -H"
    assert batch_options(text) == (
        "-p", "gpu", "-N", "2", "--time=8:00:00", "--gres=gpu:8", "--comment=two words",
        "--exclusive", "-t", "1", "--job-name=x", "-H",
    )  # fmt: skip
    assert batch_options("") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("--wrap='rm -rf /'", "cannot be given: the job is a worker"),
        ("-N 2 other.sh", "'other.sh'; must be an option of sbatch"),
        ("-H evil.sh", "'evil.sh'; must be an option of sbatch"),
        ("-X run.sh -p gpu", "'run.sh'; must be an option of sbatch"),
        ("-z a", "'-z'; is not known; give the option's long name"),
        ("-p --hold", "'-p'; must have a value"),
        ("-a 1-3", "cannot be given: one worker serves all studies"),
        ("--output=x", "cannot be given: what the worker says is shown"),
        ("--export=NONE", "the worker's environment says where the database is"),
        ("--test-only", "cannot be given: no job would be submitted"),
        ("--comment='a", "is not quoted as for a shell: No closing quotation"),
        ("--comment='a\nb'", "must be of printable characters"),
    ],
)
def test_what_would_break_a_worker_is_refused(text, why):
    with pytest.raises(UsageError, match="slurm: ") as caught:
        batch_options(text)
    assert why in str(caught.value)


def test_a_line_break_gets_into_no_script():
    with pytest.raises(UsageError, match="worker: "):
        batch_script(("python", "a\n#SBATCH --wrap=x"), (), output="/o")
    with pytest.raises(UsageError, match="output: "):
        batch_script(ARGV, (), output="/o\nexec rm")
    with pytest.raises(UsageError, match=r"output: .* must have no quote"):
        batch_script(ARGV, (), output='/o"')
