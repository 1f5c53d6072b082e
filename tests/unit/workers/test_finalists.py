"""A worker has the finalists' replicas trained before a study is done."""

from dataclasses import replace

import pytest

from tests.unit.workers.fakes import FakeLauncher
from tuner.core.configuration import Sharding
from tuner.core.framework import installed_versions
from tuner.core.measurement import CheckState, Outcome
from tuner.core.study import Limits, StudyState
from tuner.errors import ProbeError
from tuner.explain.known import answer
from tuner.guard.check import GuardCheck
from workers import worker as worker_module
from workers.devices import Device
from workers.executor import WorkerOptions
from workers.launchers.site import LocalSite
from workers.worker import Worker


class FakeGuard:
    """Finds what it is told of each sharding, and remembers what it was asked."""

    def __init__(self, outcomes, most, stop):
        self.outcomes, self.most, self.stop = outcomes, most, stop
        self.asked = []

    def __call__(self, **given):
        return self

    def train(self, asked, *, deadline_s):
        self.asked += asked
        yield from map(self._verdict, asked[: self.most])
        if self.most is not None:
            raise ProbeError("there is no place for the ranks' files")

    def _verdict(self, one):
        self.stop.move(5.0)
        outcome = self.outcomes.get(one.settings.sharding, Outcome.OK)
        results = {Outcome.OK: CheckState.PASSED, Outcome.WRONG_RESULT: CheckState.FAILED}
        return GuardCheck(
            key=one.key(installed_versions()),
            family=one.family,
            result=results.get(outcome, CheckState.NOT_CHECKED),
            outcome=outcome,
            detail="" if outcome is Outcome.OK else f"as planted: {outcome}",
            settings=one.settings.as_dict(),
            ranks=one.cluster.world_size,
            precision=str(one.workload.precision),
            versions=installed_versions(),
        )


@pytest.fixture
def guarded(store, question, tmp_path, stop, monkeypatch):
    """Work off a study with a guard that finds ``outcomes``: the study, and the guard."""

    def run(outcomes, limits, most=None):
        guard = FakeGuard(outcomes, most, stop)
        monkeypatch.setattr(worker_module.ReplicaTrainer, "train", guard.train)
        site = LocalSite(launcher=FakeLauncher(), find_devices=lambda: (Device(name="here/cpu"),))
        options = WorkerOptions(
            folder=tmp_path / "probes", lock=tmp_path / "probes.lock", site=site
        )
        narrow = replace(question, knobs={"sharding": ("ddp", "full_shard"), "tp_size": (1,)})
        study = store.ask(narrow, limits)
        assert Worker(store, study.id, stop=stop, options=options).run() == 0
        return store.study(study.id), guard

    return run


def test_a_study_ends_with_the_verdict_on_its_answer(guarded):
    study, guard = guarded({}, Limits(max_probes=3))
    assert study.state is StudyState.DONE
    best = answer(study).best
    assert best.guard.verdict == "passed"
    assert best.guard.date is not None
    precisions = {str(one.workload.precision) for one in guard.asked}
    assert precisions == {"fp32", "bf16"}  # the workload's own too
    assert len({one.key for one in guard.asked}) == len(guard.asked)
    assert study.guard_s > 0
    assert answer(study).wall_s >= study.guard_s


def test_what_trains_wrongly_is_not_suggested(guarded):
    study, guard = guarded({"ddp": Outcome.WRONG_RESULT}, Limits(max_probes=12))
    assert study.state is StudyState.DONE
    found = answer(study)
    assert found.best.settings.sharding is Sharding.FULL_SHARD
    assert found.best.guard.verdict == "passed"
    assert all(one.settings.sharding is Sharding.FULL_SHARD for one in found.alternatives)
    assert any("as planted: wrong_result" in line for line in found.explanation)
    shardings = [one.settings.sharding for one in guard.asked]
    assert set(shardings) == {Sharding.DDP, Sharding.FULL_SHARD}


@pytest.mark.parametrize("most", [0, 1])
def test_replicas_that_cannot_be_run_here_fail_no_study(guarded, store, most):
    study, guard = guarded({}, Limits(max_probes=3), most)
    assert study.state is StudyState.DONE
    best = answer(study).best
    assert best.guard.verdict == "not_checked"
    assert best.guard.why == (
        "its small replica could not be trained: there is no place for the ranks' files"
    )
    assert len({one.key for one in guard.asked}) == len(guard.asked)  # none was asked for again
    kept = [verdict.result for verdict in store.checks().values()]
    assert kept.count(CheckState.PASSED) == most
