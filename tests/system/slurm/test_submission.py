"""``tuner worker --slurm``: a job is submitted, shown and cancelled; and what can go wrong."""

import signal
import subprocess
import sys

import pytest

TUNER = (sys.executable, "-P", "-c", "import sys; from tuner.cli import main; sys.exit(main())")


@pytest.fixture
def submit(in_slurm, store, tmp_path):
    """Run ``tuner worker --slurm OPTIONS`` with an empty database."""
    started = []

    def submit(options, *more, **variables):
        argv = [*TUNER, "worker", "--slurm", options, "--probes", str(tmp_path), *more]
        environment = {**in_slurm.environment, "TUNER_DB": store.url, **variables}
        started.append(subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield submit
    for process in started:
        process.kill()
        process.communicate()
    in_slurm.run("scancel", "--quiet", "--user=root")
    in_slurm.mend()


def lines_until(process, text):
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if text in line:
            return seen
    raise AssertionError(seen)


def test_ctrl_c_cancels_the_job(submit, in_slurm):
    process = submit("--nodes=2 --time=5 --job-name=mine")
    assert "running on n[1-2]" in lines_until(process, "serving any study")
    script = in_slurm.run("squeue", "-h", "-o", "%j %i %N")
    assert script.startswith("mine ")
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 130
    said = process.stderr.read()
    assert "cancelling Slurm job" in said
    assert "the worker got SIGTERM" in said, "and its probes are given back"


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--nodes=2 --time=soon", "sbatch: sbatch: error: Invalid --time specification"),
        ("--partition=none", "invalid partition specified: none"),
    ],
)
def test_what_sbatch_says_against_it_is_shown(submit, options, why):
    process = submit(options)
    said = process.communicate(timeout=240)[1]
    assert process.returncode == 1
    assert why in said
