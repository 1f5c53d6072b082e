"""Pages of studies, and those that workers look for: on each kind of database."""

from dataclasses import replace

import pytest

from tuner.core.study import MOST_LABELS, Limits, StudyState
from tuner.errors import UsageError
from tuner.store import EventKind


@pytest.fixture
def asked(store, question):
    """Twelve studies, in pools of their own or none, in the order in which they were asked."""
    pools = ("", "a", "b")
    return [
        store.ask(replace(question, knobs={"tp_size": (n + 1,)}), Limits(pool=pools[n % 3]))
        for n in range(12)
    ]


def test_pages_have_every_study_once_newest_first(store, asked):
    seen = []
    while page := store.studies(before=seen[-1] if seen else None, limit=5):
        assert len(page) <= 5
        seen += [(one.asked_at, one.id) for one in page]
    assert len(seen) == 12
    assert seen == sorted(seen, reverse=True)
    assert {study_id for _, study_id in seen} == {study.id for study in asked}
    assert [one.id for one in store.studies()] == [study_id for _, study_id in seen]


def test_pages_of_studies_with_some_words(store, asked):
    assert len(store.studies(query="STORIES")) == 12
    assert len(store.studies(query="cpu:2")) == 12
    assert [one.id for one in store.studies(query=asked[4].id)] == [asked[4].id]
    for none in ("%", "_pu", "llama"):
        assert store.studies(query=none) == []


def test_studies_are_chosen_and_sorted_by_the_state_that_is_shown(
    store, asked, requests, worker, run_out
):
    left, gone_on = asked[2], asked[5]
    for study in (left, gone_on):
        assert store.enter_probe(study.id, study.revision, requests(1)[0])
        assert store.claim(study.id, worker)
        if study is left:
            run_out()
    assert store.move(asked[8].id, StudyState.CANCELLED)

    def found(**wanted):
        return [one.id for one in store.studies(**wanted)]

    assert found(state=StudyState.RUNNING) == [gone_on.id]
    assert store.count_studies(state=StudyState.RUNNING) == 1
    queued = found(state=StudyState.QUEUED)
    assert left.id in queued
    assert len(queued) == store.count_studies(state=StudyState.QUEUED) == 10
    states = [one.state for one in store.studies(order="state")]
    assert states == sorted(states)
    assert [one.state for one in store.studies(order="-state")] == sorted(states, reverse=True)


def test_pages_of_studies_with_labels(store, asked):
    first, second = asked[0], asked[1]
    store.label(first.id, {"job": "17", "user": 'a"b%'})
    store.label(second.id, {"job": "18", "urgent": ""})

    def found(**labels):
        return [one.id for one in store.studies(labels=labels)]

    assert found(job="17") == [first.id]
    assert found(job=None) == [second.id, first.id]
    assert found(user='a"b%', job="17") == [first.id]
    assert found(urgent="") == found(urgent=None) == [second.id]
    assert found(user="a") == found(job="18", user='a"b%') == found(other=None) == []
    assert store.studies(labels={"job": "18"})[0].labels == {"job": "18", "urgent": ""}


def test_labels_are_put_beside_others_and_taken_off_and_told_once(store, asked):
    study = store.ask(asked[0].question, asked[0].limits, {"job": "17", "user": "ada"})
    assert study.labels == {"job": "17", "user": "ada"}
    store.label(study.id, {"job": "18", "user": None})
    store.label(study.id, {"job": "18", "nothing": None})
    assert store.study(study.id).labels == {"job": "18"}
    told = [e.data for e in store.events(study.id) if e.kind is EventKind.LABELS]
    assert told == [{"labels": {"job": "18"}}]
    assert store.status(study.id).revision == study.revision  # plans that are made stay good
    assert store.ask(study.question, study.limits).labels == {"job": "18"}


def test_bad_labels_are_refused_and_change_nothing(store, asked):
    for labels in ({"": "x"}, {"a b": "x"}, {"a": "two\nlines"}, {"a": "x" * 201}, {"a": 1}):
        with pytest.raises(UsageError, match="must be a"):
            store.label(asked[0].id, labels)
        with pytest.raises(UsageError, match="must be a"):
            store.ask(asked[0].question, asked[0].limits, labels)
    many = {f"n{number}": "" for number in range(MOST_LABELS)}
    store.label(asked[0].id, many)
    with pytest.raises(UsageError, match="up to 32"):
        store.label(asked[0].id, {"one-more": ""})
    assert store.study(asked[0].id).labels == many
    assert store.study(asked[0].id).revision == asked[0].revision


def test_workers_find_open_studies_of_their_pools_asked_first_first(store, asked, worker):
    def ids(*pools):
        return [one.id for one in store.open_studies(pools)]

    assert ids() == [study.id for study in asked[::3]]
    assert ids("a") == [study.id for n, study in enumerate(asked) if n % 3 != 2]
    assert ids("a", "b") == [study.id for study in asked]
    assert store.move(asked[0].id, StudyState.RUNNING, worker=worker)
    store.move(asked[3].id, StudyState.CANCELLED)
    assert store.open_studies()[0] == store.status(asked[0].id)
    assert store.open_studies()[0].state is StudyState.RUNNING
    assert ids() == [asked[n].id for n in (0, 6, 9)]
    store.ask(asked[3].question, Limits())
    assert ids()[-1] == asked[3].id


# Events
