"""Verdicts in the store: kept for all studies of a structure, and read with them."""

from dataclasses import replace

import pytest
from sqlalchemy import text

from tuner.guard.ruling import Ruling
from tuner.guard.twin import family_of, twin_of
from tuner.guard.verdict import Verdict
from tuner.measurement import Outcome
from tuner.settings import Settings, Sharding
from tuner.store import Store
from tuner.study import Question, Terms


@pytest.fixture
def verdict(question: Question) -> Verdict:
    settings = Settings(sharding=Sharding.FULL_SHARD)
    twin = twin_of(question, settings)
    return Verdict(
        key=twin.key(question.framework.versions),
        family=family_of(question),
        ruling=Ruling.FAILED,
        outcome=Outcome.WRONG_RESULT,
        detail="loss of optimizer step 1 is off",
        structure=twin.structure,
        worst=0.1,
        versions=dict(question.framework.versions),
        notes=("attn_pdrop was set to 0",),
    )


def undated(verdict: Verdict) -> Verdict:
    return replace(verdict, date=None)


def test_a_verdict_is_kept_with_its_date(store: Store, verdict: Verdict) -> None:
    assert store.verdicts() == {}
    store.keep_verdict(verdict)
    (found,) = store.verdicts().values()
    assert undated(found) == verdict
    assert found.date is not None
    assert store.verdicts(verdict.family) == {verdict.key: found}
    assert store.verdicts("another") == {}


def test_a_later_verdict_takes_the_place_unless_nothing_was_checked(
    store: Store, verdict: Verdict
) -> None:
    undecided = replace(verdict, ruling=Ruling.NOT_CHECKED, outcome=Outcome.TIMEOUT)
    passed = replace(verdict, ruling=Ruling.PASSED, outcome=Outcome.OK, detail="")
    for given, kept in ((undecided, undecided), (verdict, verdict), (undecided, verdict),
                        (passed, passed)):  # fmt: skip
        store.keep_verdict(given)
        assert undated(store.verdicts()[verdict.key]) == kept


def test_a_study_is_read_with_its_verdicts(
    store: Store, question: Question, verdict: Verdict
) -> None:
    study = store.ask(question, Terms())
    assert study.guards == {}
    store.keep_verdict(verdict)
    store.keep_verdict(replace(verdict, key="of another model", family="another"))
    assert list(store.study(study.id).guards) == [verdict.key]


def test_a_verdict_of_another_format_is_as_if_it_were_not_there(
    store: Store, verdict: Verdict
) -> None:
    store.keep_verdict(verdict)
    with store.transactions.write() as session:
        session.execute(text("UPDATE guards SET record = '{\"format\": 0}'"))
    assert store.verdicts() == {}
