"""What comes out of the store is what went in, in few queries."""

from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Limits, ProbeState, StudyState
from tuner.errors import StoreError, UnknownNameError, UsageError
from tuner.store.tables import MeasurementRow, StudyRow


def test_a_study_is_found_by_a_beginning_of_its_id(store, study):
    for given in (study.id, study.id[:6], study.id[3:], study.id.upper()):
        assert store.study(given).id == study.id


def test_an_unknown_study_is_refused_with_the_nearest(store, study):
    wrong = study.id[:-1] + "-"
    with pytest.raises(UnknownNameError, match=f"study: .*did you mean {study.id}"):
        store.study(wrong)
    other = "st-" + study.id[3:].translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))
    with pytest.raises(UsageError, match="tuner studies list"):
        store.study(other)
    for given in ("", "st-", "%", "st-_"):
        with pytest.raises(UsageError, match="study: "):
            store.study(given)


def test_a_beginning_that_several_have_is_refused(store, question):
    for tp_size in range(1, 18):  # of 17 ids two begin with the same digit
        store.ask(replace(question, knobs={"tp_size": (tp_size,)}), Limits())
    digits = Counter(summary.id[3] for summary in store.studies())
    several = digits.most_common(1)[0][0]
    with pytest.raises(UsageError, match="several begin so: st-"):
        store.study(several)
    for given in ("st", "st-"):
        with pytest.raises(UsageError, match=r"several begin so: (st-\w+, ){5}\.\.\.$"):
            store.study(given)


def test_studies_are_listed_newest_first_with_their_outcomes(store, claim, question, found):
    store.record(claim, found)
    other = store.ask(replace(question, knobs={"tp_size": (1,)}), Limits())
    newest, older = store.studies()
    assert (newest.id, newest.probes) == (other.id, {})
    assert (older.id, older.probes) == (claim.study_id, {Outcome.OK: 1})
    assert (older.model_name, older.cluster_name) == ("stories15m", "cpu:2")
    assert older.state is StudyState.RUNNING
    assert len(store.studies(limit=1)) == 1
    store.ask(question, Limits())
    assert store.studies()[0].id == claim.study_id


def test_a_measurement_comes_back_as_it_was(store, claim, found, requests):
    assert store.record(claim, found)
    [probe] = store.study(claim.study_id).probes
    assert probe.measurement == found
    assert (probe.id, probe.state, probe.memory_limit_bytes) == (
        claim.probe.id,
        ProbeState.DONE,
        1000,
    )
    assert probe.request == requests(1)[0]
    assert probe.finished_at is not None


def test_the_figures_of_a_measurement_can_be_queried(store, claim, found):
    store.record(claim, found)
    with Session(store.transactions.engine) as session:
        row = session.scalars(select(MeasurementRow)).one()
    assert (row.allocated_bytes, row.reserved_bytes, row.device_bytes) == (300, 400, 500)
    # The median of the largest count that was run, 2 of 4 micro-batches: half of a step's tokens.
    assert row.step_time_s == 2.0
    assert row.tokens_per_s == 128 * 8 * 2 / 4 / 2.0
    assert (row.wall_s, row.device_s) == (12.5, 25.0)


def test_what_cannot_be_json_or_text_elsewhere_is_kept(store, claim):
    odd = Measurement(
        outcome=Outcome.NON_FINITE,
        detail="two\nlines and \0 and \udcff",
        losses=(float("inf"),),
        log_tails={0: "nul \0, not unicode \udcff"},
    )
    assert store.record(claim, odd)
    assert store.study(claim.study_id).probes[0].measurement == odd
    assert store.events(claim.study_id)[-1].data["detail"] == "two lines and and ?"


def test_reading_takes_as_many_queries_whatever_is_stored(
    store, study, requests, worker, found, count_statements
):
    def reading():
        numbers = []
        for read in (lambda: store.study(study.id), store.studies, lambda: store.events(study.id)):
            statements = count_statements()
            read()
            numbers.append(len([s for s in statements if s.startswith("SELECT")]))
        return numbers

    empty = reading()
    for number, request in enumerate(requests(6)):
        assert store.enter_probe(study.id, study.revision + number, request, None)
    for _ in range(4):
        claim = store.claim(study.id, worker)
        assert claim is not None
        store.record(claim, found)
    # of a study: also verdicts (its own model's, those that failed, those that passed), lost
    # attempts, a calibration, and similar studies (there are none)
    assert empty == [8, 2, 1]
    assert reading() == [9, 3, 1]  # that it runs: whether its worker is silent


def test_a_study_of_a_version_that_cannot_be_read_is_an_error(store, study):
    with Session(store.transactions.writer) as session, session.begin():
        session.execute(update(StudyRow).values(question={"workload": {}}))
    with pytest.raises(StoreError, match=f"study {study.id} cannot be read"):
        store.study(study.id)
    assert len(store.studies()) == 1
