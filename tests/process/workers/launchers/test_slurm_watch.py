"""What is made of Slurm's answers; its commands are stood in for by a script."""

import logging
import os
import time
from math import inf

import pytest

from tuner.errors import ProbeError
from workers.launchers import slurm
from workers.launchers.slurm import LEAVE_S, NodeState, NoJobError, Watch, job_state
from workers.stop import StopRequest

COMMAND = """#!/bin/sh
if [ "$1" = show ]; then printf 'n1\\nn2\\nn3\\n'; exit; fi
case "$*" in *--all*) ;; *) exit;; esac  # its partition is hidden
cat "{folder}/$(basename "$0").out"; cat "{folder}/$(basename "$0").err" >&2
test ! -s "{folder}/$(basename "$0").err"
"""


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Have the commands answer: ``answers(squeue="...", sinfo="...", squeue_err="...")``."""
    for name in ("squeue", "sinfo", "scontrol"):
        command = tmp_path / name
        command.write_text(COMMAND.format(folder=tmp_path))
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def answer(squeue="", sinfo="", squeue_err="", sinfo_err=""):
        for name, text in (("squeue", squeue), ("sinfo", sinfo)):
            (tmp_path / f"{name}.out").write_text(text)
        for name, text in (("squeue", squeue_err), ("sinfo", sinfo_err)):
            (tmp_path / f"{name}.err").write_text(text)

    return answer


def job(state="RUNNING", left_s=3600.0):
    return f"7|{state}|{time.time() + left_s:.0f}|n[1-3]|None\n"


NODES = "n2|allocated|10.0.0.2\nn1|mixed|10.0.0.1\nn1|mixed|10.0.0.1\nn3|idle*|10.0.0.3\n"


def test_a_job(answers):
    answers("7|PENDING|N/A||Resources|with a bar\n")
    found = job_state("7")
    assert (found.state, found.ends_at, found.nodes) == ("PENDING", inf, "")
    assert found.reason == "Resources|with a bar"
    assert found.is_over, "for whoever is inside: it was queued again"
    answers(job())
    assert not job_state("7").is_over
    answers(job("NODE_FAIL"))
    assert job_state("7").is_over


def test_of_an_array_it_is_the_job_itself_that_counts(answers):
    """The last job of an array has the array's number, by which squeue tells all of them."""
    answers(f"9|PENDING|N/A||JobHeldUser\n{job()}8|RUNNING|N/A|n9|None\n")
    assert (job_state("7").state, job_state("7").nodes) == ("RUNNING", "n[1-3]")


def test_a_job_that_is_not_known_any_more(answers):
    answers(squeue_err="slurm_load_jobs error: Invalid job id specified\n")
    with pytest.raises(NoJobError, match="Slurm knows no job 7 any more"):
        job_state("7")
    answers("77|RUNNING|N/A|n1|None\n")
    with pytest.raises(NoJobError, match="Slurm knows no job 7 any more"):
        job_state("7")


def test_a_controller_that_does_not_answer(answers, monkeypatch, tmp_path):
    answers(squeue_err="slurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(ProbeError, match=r"Slurm does not answer: .*Unable to contact"):
        job_state("7")
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slurm, "TIMEOUT_S", 0.2)
    with pytest.raises(ProbeError, match="Slurm does not answer: squeue took 0 s"):
        job_state("7")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ProbeError, match="No such file"):
        job_state("7")


@pytest.mark.parametrize(
    ("state", "lost"),
    [("down*", True), ("down", True), ("fail", True), ("powering_down", True), ("unknown", True)]
    + [(up, False) for up in ("mixed*", "idle", "draining", "failing", "completing")],
)
def test_which_nodes_are_lost(state, lost):
    assert NodeState(name="n", state=state, address="").is_lost is lost


def test_a_node_that_goes_down_stays_lost(answers, caplog):
    answers(job(), NODES)
    stop = StopRequest()
    watch = Watch("7", stop)
    assert [node.name for node in watch.nodes] == ["n1", "n2", "n3"]
    answers(job(), NODES.replace("allocated", "down*"))
    with caplog.at_level(logging.WARNING):
        watch.look()
    assert watch.lost(("n1", "n2")) == ("n2",)
    assert "node n2 of Slurm job 7 is down*" in caplog.text
    answers(job(), NODES)
    watch.look()
    assert watch.lost(("n1", "n2", "n3")) == ("n2",)
    answers(job(), NODES.replace("n3|idle*|10.0.0.3\n", ""))
    watch.look()
    assert [node.name for node in watch.nodes] == ["n1"]
    assert "node n3 is not of Slurm job 7 any more" in caplog.text
    assert stop.wait(0) == "", "that is for whoever runs something there"


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "SUSPENDED"])
def test_a_job_that_is_over_ends_the_worker(answers, state):
    answers(job(), NODES)
    watch = Watch("7", stop := StopRequest())
    answers(job(state), NODES)
    watch.look()
    assert stop.wait(0) == watch.end_if_over() == f"Slurm job 7 is {state}"
    with pytest.raises(ProbeError, match=state):
        Watch("7", StopRequest())


def test_the_worker_leaves_before_the_time_is_over(answers):
    answers(job(left_s=LEAVE_S + 1000), NODES)
    watch = Watch("7", stop := StopRequest())
    assert 900 < watch.left_s < 1001
    watch.look()
    assert stop.wait(0) == ""
    answers(job(left_s=LEAVE_S - 1), NODES)
    watch.look()
    assert stop.wait(0) == "the time of Slurm job 7 is nearly over"


def test_trouble_of_the_controller_ends_nothing_and_is_told_once(answers, caplog):
    answers(job(), NODES)
    watch = Watch("7", stop := StopRequest())
    answers(squeue_err="Unable to contact slurm controller\n")
    for _ in range(3):
        watch.look()
    assert stop.wait(0) == ""
    assert len(watch.nodes) == 3
    assert caplog.text.count("Unable to contact") == 1
