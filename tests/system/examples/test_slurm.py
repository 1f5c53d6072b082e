"""``examples/slurm``: the job by hand everywhere, and under a real Slurm where there is one."""

import shutil
import subprocess

import pytest

from tests.system.examples.conftest import EXAMPLES, LONGER_S, WITHIN_S
from tests.system.slurm.cluster import missing, slurm_cluster
from tests.waiting import until

TRAIN = """\
import os
names = ("STUDY_ID", "SHARDING", "MICRO_BATCH_SIZE", "GRADIENT_ACCUMULATION_STEPS")
print("trained", *(os.environ[f"TUNED_{name}"] for name in names))
"""
OWN = "trained none full_shard 1 8"
"""What the job trains with when nobody answers."""
SRUN = '#!/bin/sh\nshift\nexec "$@"\n'
"""Its options are left out, and one task is run here."""


@pytest.fixture
def job(folder, question):
    """The folder, with a script that says what it trains with."""
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def by_hand(job, run, environment):
    """Runs the job as Slurm would, without it."""
    srun = job / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN)
    srun.chmod(0o755)

    def start(**more):
        place = {"SLURM_SUBMIT_DIR": str(job), "LAUNCH": "python3", "TUNER_WAIT_S": "200"}
        path = {"PATH": f"{srun.parent}:{environment['PATH']}"}
        return run("bash", "train.sbatch", **{**place, **path, **more})

    return start


def test_a_job_trains_with_the_answer(by_hand, service, working):
    working()
    found = by_hand()
    assert found.returncode == 0, found.stderr
    study = service.store.studies()[0]
    trained = found.stdout.splitlines()[-1].split()
    assert trained[:2] == ["trained", study.id]
    assert int(trained[3]) * int(trained[4]) * 2 == 16  # two ranks make the global batch
    assert f"settings of study {study.id}, micro-batches of {trained[3]}" in found.stdout


def test_a_job_trains_with_its_own_settings_otherwise(by_hand, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_text("tuner_wrong")
    for why, tries in {
        "has no answer after {TUNER_WAIT_S} s": [{"TUNER_WAIT_S": f"{s}"} for s in LONGER_S],
        "refused the key (status 401)": [{"TUNER_KEY_FILE": str(wrong)}],
        "failed to create file": [{"TMPDIR": str(tmp_path / "nowhere")}],
    }.items():
        for more in tries:  # until it leaves time to ask
            found = by_hand(**more)
            assert found.returncode == 0, found.stderr
            if why.format(**more) in found.stderr:
                break
        assert why.format(**more) in found.stderr
        assert "no settings from tuner, so the job's own are used" in found.stderr
        assert found.stdout.splitlines()[-1] == OWN


real = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(missing()), reason=missing() or "it is there"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A real one."""
    with slurm_cluster(tmp_path_factory.mktemp("examples-slurm")) as cluster:
        yield cluster


@pytest.fixture
def submit(slurm, job, environment, tmp_path):
    """Submits the job, as a site with the hook has it; the job's log at its end."""
    site = tmp_path / "site"
    site.mkdir()
    text = (slurm.root / "slurm.conf").read_text()
    (site / "slurm.conf").write_text(f"{text}CliFilterPlugins=lua\n")
    shutil.copy(EXAMPLES / "slurm" / "cli_filter.lua", site)

    def start(*options, **more):
        place = {
            "SLURM_CONF": str(site / "slurm.conf"), "LAUNCH": "python3",
            "TUNER_ASK": str(job / "ask-tuner.sh"), "TUNER_ASK_LOG": str(tmp_path / "asked"),
        }  # fmt: skip
        submitted = subprocess.run(
            ["sbatch", "--parsable", *options, "train.sbatch"], cwd=job, text=True, check=False,
            env={**environment, **place, **more}, capture_output=True, timeout=WITHIN_S,
        )  # fmt: skip
        assert submitted.returncode == 0, submitted.stderr
        number = submitted.stdout.strip()
        slurm.wait_for("JobState=COMPLETED", "scontrol", "show", "job", number, seconds=WITHIN_S)
        return (job / f"train-{number}.log").read_text()

    return start


class TestSlurm:
    """Under a real Slurm."""

    pytestmark = real

    def test_a_job_asks_when_it_is_submitted(self, submit, service, tmp_path):
        """Held, it would wait for hours: its question is asked nevertheless."""
        before = len(service.store.studies())
        log = submit("--comment=tuner:question.json", TUNER_WAIT_S="1")
        until(lambda: "is asked" in (tmp_path / "asked").read_text(), WITHIN_S)
        assert len(service.store.studies()) == before + 1
        assert OWN in log
