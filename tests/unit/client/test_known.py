"""Whether a study needs probes, and what it answers until then; dry runs are made by hand."""

import pytest

from tests.unit.api.studies import PREDICTED, classes_of, question_of
from tuner.client import advance
from tuner.client.advance import advance_from_cache, conclude, is_answered
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, StudyState
from tuner.dryrun import dry_run_versions
from tuner.explain.known import best_known
from tuner.planner.dry_runs import as_predicted
from tuner.store import open_store

TERMS = Limits(fidelity=Fidelity.PREDICTED, max_probes=3, max_dry_runs=6)
GIB = 2.0**30


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened


@pytest.fixture
def keep(store, dry_run_of):
    """Keeps dry runs of all classes of the predicted question."""

    def kept(versions=None):
        question = question_of(PREDICTED)
        found = versions or dry_run_versions()
        for settings in classes_of(question):
            store.keep_dry_run(dry_run_of(question, settings, GIB, GIB, versions=found))

    return kept


def test_dry_runs_of_the_workers_versions_are_looked_up(store, keep, monkeypatch):
    """What is installed here does not matter where others make the dry runs."""
    theirs = {**dry_run_versions(), "torch": "2.12.0"}
    keep(theirs)
    study = store.ask(question_of(PREDICTED), TERMS)
    assert advance_from_cache(store, study, dry_run_versions(), as_predicted).probes == ()
    monkeypatch.setattr(advance, "dry_run_versions", dict)
    assert len(advance_from_cache(store, study, theirs, as_predicted).probes) >= 1


def test_a_measured_study_keeps_its_terms_while_dry_runs_are_entered(store, keep):
    keep()
    study = store.ask(question_of(PREDICTED), Limits(max_probes=7))
    foreseen = advance_from_cache(store, study, dry_run_versions(), as_predicted)
    assert foreseen.limits == study.limits
    assert {p.request.fidelity for p in foreseen.probes} == {Fidelity.PREDICTED}
    assert as_predicted(foreseen).limits.fidelity is Fidelity.PREDICTED
    found = best_known(foreseen)
    assert found.provenance == "predicted"
    assert found.probes == {}  # none of its own


def test_what_is_missing_here_ends_no_study_of_others(store, monkeypatch):
    monkeypatch.setattr(advance, "dry_run_versions", dict)
    study = store.ask(question_of(PREDICTED), TERMS)
    assert advance.end_of(study, here=False) is None
    assert advance.conclude(store, study, here=False) is None
    assert store.study(study.id).state is StudyState.QUEUED
    assert advance.end_of(study) is not None


def test_a_study_is_answered_on_its_own_terms_only(store, keep):
    keep()
    question = question_of(PREDICTED)
    closed = conclude(store, advance_from_cache(store, store.ask(question, TERMS)))
    assert closed is not None
    assert is_answered(closed, TERMS)
    assert is_answered(closed, TERMS, here=False)
    assert not is_answered(closed, Limits(fidelity=Fidelity.PREDICTED))
