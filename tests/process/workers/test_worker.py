"""Workers as processes of their own, with stand-in ranks: signals, a closed pipe, a kill."""

import os
import signal
from dataclasses import replace

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Limits, ProbeState, StudyState
from workers.devices import Device
from workers.executor import WorkerOptions
from workers.launchers.site import LocalSite
from workers.stop import INTERRUPTED, StopRequest
from workers.worker import Worker

HANG = {"*": ["ready", "hang"]}
GPUS = ("GPU-a", "GPU-b", "GPU-c")


@pytest.fixture(params=[3, pytest.param(1, marks=pytest.mark.long)])
def study(request, store, question, monkeypatch, tmp_path):
    """Of two ranks that talk, or of three probes at once on GPUs that are made up."""
    monkeypatch.setenv("STAND_IN_LEASE_S", "600")  # ranks would bear a long silence
    if request.param == 1:
        return store.ask(question, Limits(max_probes=2))
    monkeypatch.setenv("STAND_IN_GPUS", ",".join(GPUS))
    monkeypatch.setattr("workers.executor.check_machine", lambda *_: False)
    workload = replace(question.workload, global_batch_size=64)
    eight = replace(question, workload=workload, cluster=parse_cluster("8xa100-80gb"))
    return store.ask(eight, Limits(fidelity=Fidelity.EMULATED, tolerance=0.0, max_probes=4))


def ready(tmp_path):
    """All ranks hang: two of one probe, or one each of three."""
    try:
        found = list((tmp_path / "probes").glob("*/*/ready-*"))
    except FileNotFoundError:  # a folder that ended ranks have left, removed during the look
        return False
    return len(found) == (3 if "STAND_IN_GPUS" in os.environ else 2)


@pytest.mark.parametrize("end", [signal.SIGTERM, None])
def test_a_request_to_stop_hands_all_probes_back(
    store, study, start_worker, tmp_path, eventually, alive, end
):
    read, write = os.pipe()
    worker = start_worker(study.id, HANG, read)
    os.close(read)
    eventually(lambda: ready(tmp_path))
    if end is None:
        os.close(write)  # the command that started it is gone
    else:
        worker.send_signal(end)
    assert worker.wait(60) == INTERRUPTED
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.QUEUED, "interrupted")
    assert {probe.state for probe in study.probes} == {ProbeState.QUEUED}
    assert not alive(str(tmp_path))
    assert not list((tmp_path / "probes").iterdir())
    if end is not None:
        os.close(write)


def test_a_kill_leaves_no_process_and_the_next_worker_goes_on(
    store, study, start_worker, stand_in_argv, tmp_path, eventually, alive
):
    worker = start_worker(study.id, HANG)
    eventually(lambda: ready(tmp_path))
    assert len(alive(str(tmp_path))) > 1
    worker.kill()
    worker.wait()
    eventually(lambda: not alive(str(tmp_path)))
    devices = (*(Device(name=gpu, visible=gpu) for gpu in GPUS), Device(name="here/cpu"))
    options = WorkerOptions(
        folder=tmp_path / "probes",
        lock=tmp_path / "probes.lock",
        argv=lambda out: stand_in_argv(out, {"*": ["ok"]}),
        site=LocalSite(find_devices=lambda: devices),
        guards=False,
    )
    assert Worker(store, study.id, stop=StopRequest(), options=options).run() == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert {probe.measurement.outcome for probe in study.probes} == {Outcome.OK}
    assert not list((tmp_path / "probes").iterdir())
