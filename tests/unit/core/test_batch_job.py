"""A worker as a batch job: its options, and its script."""

from pathlib import Path

import pytest

from tuner.cli.slurm import FLAGS, OURS, SHORT, VALUED, batch_options, batch_script
from tuner.errors import UsageError

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


def test_the_script() -> None:
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
def test_options_that_are_given_stand_in_the_place_of_ours(given: str, left_out: str) -> None:
    script = batch_script(ARGV, batch_options(given), output="/o")
    assert f"#SBATCH {left_out}\n" not in script
    assert "#SBATCH --no-kill\n" in script


def test_options_come_in_a_form_that_cannot_be_misread() -> None:
    text = "-p gpu -N2 --time 8:00:00 --gres=gpu:8 --comment='two words' --exclusive -t=1"
    assert batch_options(text) == (
        "--partition=gpu",
        "--nodes=2",
        "--time=8:00:00",
        "--gres=gpu:8",
        "--comment=two words",
        "--exclusive",
        "--time=1",
    )
    assert batch_options("") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("--wrap='rm -rf /'", "cannot be given: the job is a worker"),
        ("-N 2 other.sh", "'other.sh'; must be an option of sbatch"),
        ("--nods=2", "'--nods=2'; is no option of sbatch for a worker's job"),
        ("--output=x", "cannot be given: what the worker says is shown"),
        ("--export=NONE", "the worker's environment says where the database is"),
        ("--nodes", "'--nodes'; needs a value"),
        ("-o x", "'-o'; must be an option of sbatch"),
        ("--comment='a", "is not quoted as for a shell: No closing quotation"),
        ("--comment='a\nb'", "must be of printable characters"),
        ("; true", "must be an option of sbatch"),
    ],
)
def test_what_is_no_option_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match="slurm: ") as caught:
        batch_options(text)
    assert why in str(caught.value)


def test_a_line_break_gets_into_no_script() -> None:
    with pytest.raises(UsageError, match="worker: "):
        batch_script(("python", "a\n#SBATCH --wrap=x"), (), output="/o")
    with pytest.raises(UsageError, match="output: "):
        batch_script(ARGV, (), output="/o\nexec rm")
    with pytest.raises(UsageError, match=r"output: .* must have no quote"):
        batch_script(ARGV, (), output='/o"')


def test_an_option_is_in_one_table() -> None:
    assert not {*VALUED} & {*FLAGS}
    assert not {*VALUED, *FLAGS} & OURS.keys()
    assert {*SHORT.values()} <= {*VALUED}
