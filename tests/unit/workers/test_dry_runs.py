"""Predicted studies at a worker, with a stand-in for the program that needs torch."""

import platform
from dataclasses import replace
from math import inf

import pytest

from tests.unit.workers.fakes import FakeDryRunner
from tuner.client import advance
from tuner.client.advance import advance_from_cache, kept_dry_run, plan_here
from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Limits, ProbeState, StudyState
from tuner.explain.known import answer
from workers.executor import WorkerOptions
from workers.worker import INTERRUPTED, Worker

PREDICTED = Limits(fidelity=Fidelity.PREDICTED, max_probes=3)


@pytest.fixture
def question(question):
    """On GPUs that are not here."""
    return replace(question, cluster=parse_cluster("2xa100-80gb"))


@pytest.fixture
def work(store, tmp_path, stop):
    """Run a worker whose dry-run program does as it is told."""

    def run(study_id, does="ok", times=inf, **more):
        runner = FakeDryRunner(does, times, stop.move)
        known = {"folder": tmp_path / "probes", "lock": tmp_path / "probes.lock"}
        options = WorkerOptions(**{**known, "dry_runner": lambda: runner, **more})
        return Worker(store, study_id, stop=stop, options=options).run()

    return run


def outcomes(study):
    return [probe.measurement and probe.measurement.outcome for probe in study.probes]


def test_a_predicted_study_is_worked_off(store, question, work):
    """On a machine that is not the cluster, and while another study's probe is timed on it."""
    study = store.ask(question, PREDICTED)
    assert work(study.id) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert set(outcomes(study)) == {Outcome.OK}
    assert {p.measurement.dry_run for p in study.probes if p.measurement} == set(study.dry_runs)
    assert answer(study).best is not None


def test_what_is_kept_needs_no_program(store, question, work):
    study = store.ask(question, PREDICTED)
    assert work(study.id) == 0
    workload = replace(question.workload, global_batch_size=8)
    other = store.ask(replace(question, workload=workload), PREDICTED)
    assert work(other.id, "die") == 0
    assert set(outcomes(store.study(other.id))) == {Outcome.OK}


def test_a_refused_class_is_closed_with_its_operator(store, question, work):
    study = store.ask(question, PREDICTED)
    assert work(study.id, "error", 2) == 0
    study = store.study(study.id)
    assert outcomes(study)[0] is Outcome.INVALID
    assert "aten::odd" in study.probes[0].measurement.detail
    assert Outcome.OK in outcomes(study)
    found = answer(study)
    assert found.best.settings.layout != study.probes[0].request.settings.layout
    assert any("aten::odd" in sentence for sentence in found.explanation)


def test_what_a_busy_machine_did_not_end_is_an_outcome_and_not_kept(store, question, work):
    study = store.ask(question, PREDICTED)
    assert work(study.id, "busy", 2) == 0
    study = store.study(study.id)
    assert outcomes(study)[0] is Outcome.TIMEOUT
    key = plan_here(question, study.probes[0].request.settings).key
    assert store.dry_runs([key]) == {}


def test_what_took_too_long_is_not_waited_for_again_on_this_machine(
    store, question, work, monkeypatch
):
    study = store.ask(question, PREDICTED)
    assert work(study.id, "late", 2) == 0
    first = store.study(study.id).probes[0]
    assert outcomes(store.study(study.id))[0] is Outcome.TIMEOUT
    assert "aten.odd in backward" in first.measurement.detail
    assert kept_dry_run(store, question, first.request) is not None
    workload = replace(question.workload, global_batch_size=8)
    other = store.ask(replace(question, workload=workload), PREDICTED)
    assert outcomes(advance_from_cache(store, other))[0] is Outcome.TIMEOUT
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    assert kept_dry_run(store, question, first.request) is None


def test_another_machine_puts_its_dry_run_in_the_place_of_one_that_took_too_long(
    store, question, work, monkeypatch
):
    study = store.ask(question, PREDICTED)
    assert work(study.id, "late", 2) == 0
    key = plan_here(question, store.study(study.id).probes[0].request.settings).key
    assert store.dry_runs([key])[key].is_late
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    workload = replace(question.workload, global_batch_size=8)
    other = store.ask(replace(question, workload=workload), PREDICTED)
    assert work(other.id) == 0
    assert store.dry_runs([key])[key].error == ""


def test_a_program_that_always_dies_leaves_arithmetic(store, question, work):
    study = store.ask(question, PREDICTED)
    assert work(study.id, "die") == 0
    study = store.study(study.id)
    assert outcomes(study) == [Outcome.CRASHED]
    assert study.state is StudyState.DONE
    assert answer(study).best is not None
    assert "the stand-in died" in study.probes[0].measurement.detail
    assert store.dry_runs([plan_here(question, p.request.settings).key for p in study.probes]) == {}


def test_a_stop_gives_the_dry_run_back(store, question, work, stop):
    study = store.ask(question, PREDICTED)
    running = lambda: any(p.state is ProbeState.RUNNING for p in store.study(study.id).probes)  # noqa: E731
    stop.when = lambda: "enough" if running() else ""
    assert work(study.id, "hang") == INTERRUPTED
    study = store.study(study.id)
    assert study.state is StudyState.QUEUED
    assert [probe.state for probe in study.probes] == [ProbeState.QUEUED]


def test_a_spent_budget_of_time_ends_a_dry_run(store, question, work):
    study = store.ask(question, replace(PREDICTED, wall_s=1.0))
    assert work(study.id, "hang") == 0
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.DONE, "the budget of 1 s is spent")
    assert answer(study).best is not None


def test_without_torch_the_answer_is_arithmetic(store, question, work, monkeypatch):
    monkeypatch.setattr(advance, "dry_run_versions", dict)
    study = store.ask(question, PREDICTED)
    assert work(study.id, "die") == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert study.reason == "torch is not installed here, which a dry run needs"
    found = answer(study)
    assert str(found.best.basis) == "arithmetic"
    assert any("torch is not installed here" in sentence for sentence in found.explanation)


def test_kept_dry_runs_are_entered_without_a_worker(store, question, work):
    study = store.ask(question, PREDICTED)
    assert advance_from_cache(store, study) == study
    assert work(study.id) == 0
    done = store.study(study.id)
    workload = replace(question.workload, global_batch_size=8)
    other = advance_from_cache(store, store.ask(replace(question, workload=workload), PREDICTED))
    assert {p.measurement.dry_run for p in other.probes if p.measurement} <= set(done.dry_runs)
    assert all(p.state is ProbeState.DONE for p in other.probes)
    assert other.probes
