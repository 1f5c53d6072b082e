"""Pages of studies, and those that workers look for: on each kind of database."""

from dataclasses import replace

import pytest

from tuner.core.study import Limits, StudyState


@pytest.fixture
def asked(store, question):
    """Twelve studies, in pools of their own or none, in the order in which they were asked."""
    pools = ("", "a", "b")
    return [
        store.ask(replace(question, knobs={"tp_size": (n + 1,)}), Limits(pool=pools[n % 3]))
        for n in range(12)
    ]


def test_pages_have_every_study_once_newest_first(store, asked):
    seen: list[tuple[str, str]] = []
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


def test_workers_find_open_studies_of_their_pools_asked_first_first(store, asked, worker):
    def ids(*pools: str) -> list[str]:
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
