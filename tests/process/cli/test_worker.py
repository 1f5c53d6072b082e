"""``tuner worker``: its command, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli.options import WorkerAsked
from tuner.cli.serve import worker, worker_argv
from tuner.core.launcher import LauncherName
from tuner.errors import UsageError

SERVES = [sys.executable, "-P", "-m", "workers", "--serve"]
RAY, SLURM, LOCAL = LauncherName.RAY, LauncherName.SLURM, LauncherName.LOCAL


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (WorkerAsked(), []),
        (WorkerAsked(pool=["h100", "a"], name="w 1", drain=True),
         ["--pool=h100", "--pool=a", "--name=w 1", "--drain"]),
        (WorkerAsked(once=True, probe_deadline="90m"), ["--once", "--probe-deadline=5400"]),
        (WorkerAsked(launcher=SLURM, probes=Path("/shared/a b")),
         ["--probes=/shared/a b", "--launcher=slurm"]),
        (WorkerAsked(launcher=RAY, ray="10.0.0.1:6379"),
         ["--launcher=ray", "--ray=10.0.0.1:6379"]),
    ],
)  # fmt: skip
def test_the_command_of_a_worker(asked, words):
    assert worker_argv(asked) == [*SERVES, *words]


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        (WorkerAsked(once=True, drain=True), "once"),
        (WorkerAsked(ray="auto"), "ray: got 'auto'; is for --launcher ray"),
        (WorkerAsked(launcher=SLURM, ray="auto"), "ray: got 'auto'; is for --launcher ray"),
        (WorkerAsked(launcher=LOCAL, slurm="-N2"), "launcher: got 'local'; must be slurm with"),
    ],
)
def test_what_is_refused(asked, refused):
    with pytest.raises(UsageError, match=refused):
        worker(asked)


def test_a_worker_is_the_process_that_was_started(tmp_path):
    """Signals that the command gets are the worker's; the database stands in no argument."""
    url = f"sqlite:///{tmp_path}/new.db"
    command = "import sys; from tuner.cli import main; sys.exit(main())"
    argv = [sys.executable, "-P", "-c", command, "worker", "--db", url, "--name", "w1"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        assert '"serving any study as w1"' in process.stderr.readline()
        assert url not in Path(f"/proc/{process.pid}/cmdline").read_text()
        process.terminate()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()
