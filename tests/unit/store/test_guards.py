"""Verdicts in the store: kept for all studies of a structure, and read with them."""

from dataclasses import replace

import pytest

from tuner.core.configuration import Settings, Sharding, parse_settings
from tuner.core.measurement import CheckState, Fidelity, Measurement, Outcome
from tuner.core.study import Limits, ProbeRequest
from tuner.guard.check import GuardCheck
from tuner.guard.faults import wrong_of
from tuner.guard.replica import family_of, replica_of
from tuner.store import WorkerIdentity


@pytest.fixture
def verdict(question):
    settings = Settings(sharding=Sharding.FULL_SHARD)
    replica = replica_of(question, settings)
    return GuardCheck(
        key=replica.key(question.framework.versions),
        family=family_of(question),
        result=CheckState.FAILED,
        outcome=Outcome.WRONG_RESULT,
        detail="loss of optimizer step 1 is off",
        structure=replica.structure,
        worst=0.1,
        versions=dict(question.framework.versions),
        notes=("attn_pdrop was set to 0",),
    )


def undated(verdict):
    return replace(verdict, date=None)


def test_a_verdict_is_kept_with_its_date(store, verdict):
    assert store.checks() == {}
    store.keep_check(verdict)
    (found,) = store.checks().values()
    assert undated(found) == verdict
    assert found.date is not None
    assert store.checks(verdict.family) == {verdict.key: found}
    assert store.checks("another") == {}


def test_a_later_verdict_takes_the_place_unless_nothing_was_checked(store, verdict):
    undecided = replace(verdict, result=CheckState.NOT_CHECKED, outcome=Outcome.TIMEOUT)
    passed = replace(verdict, result=CheckState.PASSED, outcome=Outcome.OK, detail="")
    for given, kept in ((undecided, undecided), (verdict, verdict), (undecided, verdict),
                        (passed, passed)):  # fmt: skip
        store.keep_check(given)
        assert undated(store.checks()[verdict.key]) == kept


def test_a_study_is_read_with_its_verdicts(store, question, verdict):
    study = store.ask(question, Limits())
    assert study.guards == {}
    store.keep_check(verdict)
    store.keep_check(replace(verdict, key="of another model", family="another"))
    assert list(store.study(study.id).guards) == [verdict.key]


def miscounted(store, question):
    """A study whose probe stepped too often, and whose other one did not; its id."""
    study = store.ask(question, Limits())
    wrong = Measurement(
        outcome=Outcome.WRONG_RESULT,
        detail="the optimizer stepped 4 times instead of 2",
        optimizer_steps=4,
        expected_optimizer_steps=2,
    )
    accumulates = "micro_batch_size=1,gradient_accumulation_steps=2,sync_each_batch=true"
    for sharding, found in (("ddp", wrong), ("full_shard", Measurement(outcome=Outcome.OK))):
        settings = parse_settings(f"sharding={sharding},{accumulates}")
        request = ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED)
        assert store.enter_probe(study.id, store.study(study.id).revision, request, None)
        claim = store.claim(study.id, WorkerIdentity.of_this_process())
        assert claim is not None
        assert store.record(claim, found)
    return study.id


def test_what_a_probe_found_wrong_is_kept_for_other_studies(store, question):
    study_id = miscounted(store, question)
    (kept,) = store.checks().values()
    assert (kept.study, kept.knob, kept.result) == (study_id, "sync_each_batch", CheckState.FAILED)
    workload = replace(question.workload, sequence_length=question.workload.sequence_length * 2)
    other = store.ask(replace(question, workload=workload), Limits())
    found = {v.settings["sharding"]: v.result for v in other.guards.values()}
    assert found == {"ddp": CheckState.FAILED, "full_shard": CheckState.PASSED}
    ddp, full = (
        parse_settings(f"sharding={one},gradient_accumulation_steps=2")
        for one in ("ddp", "full_shard")
    )
    assert wrong_of(other, [ddp, full]).keys() == {ddp}


def test_a_verdict_on_another_model_that_failed_is_read_too(store, question, verdict):
    settings = Settings(sharding=Sharding.FULL_SHARD, gradient_accumulation_steps=3).as_dict()
    failed = replace(verdict, key="theirs", family="another", settings=settings, ranks=2)
    beside = replace(failed, key="beside", result=CheckState.PASSED, outcome=Outcome.OK)
    elsewhere = replace(failed, key="elsewhere", versions={**failed.versions, "torch": "1.0.0"})
    for one in (failed, beside, elsewhere):
        store.keep_check(one)
    assert store.guards(question).keys() == {"theirs", "beside"}
