"""A study of a script: its worker, and workers that serve."""

from functools import partial

import pytest

from tests.process.workers.scripted import as_torchrun, asking_script, left
from tuner.core.measurement import Outcome
from tuner.core.study import Limits, StudyState
from tuner.explain.known import answer
from workers import executor as script_slot
from workers.executor import WorkerOptions
from workers.serve import Service, Until
from workers.stop import StopRequest
from workers.worker import Worker

BOTH = ("{micro_batch_size}", "{gradient_accumulation_steps}")


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Of workers whose scripts are started by the stand-in."""
    run = partial(script_slot.ScriptRun, as_run=as_torchrun, peer_grace_s=0.5)
    monkeypatch.setattr(script_slot, "ScriptRun", run)
    return WorkerOptions(folder=tmp_path / "probes", lock=tmp_path / "lock", deadline_s=240.0)


def work(store, study_id, options):
    return Worker(store, study_id, stop=StopRequest(), options=options).run()


TRAINS = """
    import sys, time
    from tuner.integrations import report_step
    micro, count = map(int, sys.argv[1:])
    while True:
        time.sleep(0.003 * count)
        report_step(loss=1.0, sequences=micro * count)
"""


def test_a_study_is_answered(store, question, options, tmp_path):
    asked = asking_script(question, tmp_path, whole=TRAINS, arguments=BOTH)
    study = store.ask(asked, Limits(max_probes=2))
    assert work(store, study.id, options) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert [p.measurement and p.measurement.outcome for p in study.probes] == [Outcome.OK] * 2
    found = answer(study)
    assert found.best.settings in {probe.request.settings for probe in study.probes}
    assert str(found.provenance) == "measured"
    assert found.best.guard.verdict == "not_checked"
    assert (
        "the first loss that was reported lies within 0% of that of another" in found.best.guard.why
    )
    ran = [sentence for sentence in found.explanation if sentence.startswith("What ran is")]
    assert len(ran) == 1
    assert "train.py, through torchrun on 2 ranks; its memory is the peak resident set" in ran[0]
    assert not left(tmp_path)


def test_workers_that_serve_pass_over_it(store, question, options, tmp_path, caplog):
    caplog.set_level("INFO", logger="workers")
    study = store.ask(asking_script(question, tmp_path), Limits())
    for until in (Until.DRAINED, Until.ONCE):
        service = Service(store, stop=StopRequest(), until=until, options=options)
        assert service.run() == 0
        assert store.study(study.id).state is StudyState.QUEUED
        assert not store.study(study.id).probes
    assert "the command that asked runs its script" in caplog.text
