import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuner.cli.serve import WorkerPlace, service_argv
from tuner.cli.serve import worker_run as run
from tuner.core.launcher import LauncherName
from tuner.errors import UsageError

ASKED: dict[str, Any] = {
    "pools": [], "name": "", "once": False, "drain": False, "place": WorkerPlace(), "slurm": None,
    "as_json": False, "db": None,
}  # fmt: skip


def test_the_command_of_a_service() -> None:
    serves = [sys.executable, "-P", "-m", "workers", "--serve"]
    assert service_argv() == serves
    assert service_argv(["h100", "a"], name="w 1", drain=True) == [
        *serves, "--pool=h100", "--pool=a", "--name=w 1", "--drain"
    ]  # fmt: skip
    assert service_argv(once=True) == [*serves, "--once"]


def test_a_worker_is_the_process_that_was_started(tmp_path: Path) -> None:
    """Signals that the command gets are the worker's; the database stands in no argument."""
    url = f"sqlite:///{tmp_path}/new.db"
    command = "import sys; from tuner.cli import main; sys.exit(main())"
    argv = [sys.executable, "-P", "-c", command, "worker", "--db", url, "--name", "w1"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert '"serving any study as w1"' in process.stderr.readline()
        assert url not in Path(f"/proc/{process.pid}/cmdline").read_text()
        process.terminate()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


def test_one_study_and_all_of_them_cannot_both_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="once"):
        run(**{**ASKED, "once": True, "drain": True})


def test_where_probes_run_stands_in_the_command() -> None:
    assert WorkerPlace().arguments == []
    place = WorkerPlace(launcher=LauncherName.SLURM, probes=Path("/shared/a b"))
    assert place.arguments == ["--launcher=slurm", "--probes=/shared/a b"]
    place = WorkerPlace(launcher=LauncherName.RAY, ray="10.0.0.1:6379")
    assert place.arguments == ["--launcher=ray", "--ray=10.0.0.1:6379"]
    assert WorkerPlace(probe_deadline_s=5400.0).arguments == ["--probe-deadline=5400"]


@pytest.mark.parametrize("launcher", [None, LauncherName.LOCAL, LauncherName.SLURM])
def test_a_ray_cluster_is_of_the_ray_launcher(launcher: LauncherName | None) -> None:
    with pytest.raises(UsageError, match="ray: got 'auto'; is for --launcher ray"):
        WorkerPlace(launcher=launcher, ray="auto")


def test_a_batch_job_is_of_the_slurm_launcher() -> None:
    with pytest.raises(UsageError, match="launcher: got 'local'; must be slurm with --slurm"):
        run(**{**ASKED, "place": WorkerPlace(launcher=LauncherName.LOCAL), "slurm": "-N2"})
