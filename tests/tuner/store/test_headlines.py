"""Headlines in the store: one of each study, never one that is made of less than is kept."""

import json
import threading
from dataclasses import replace

import pytest
from sqlalchemy import text

from tuner.quantity import Provenance, Quantity
from tuner.results import Headline, headline
from tuner.settings import Settings, Sharding
from tuner.store import Store
from tuner.store.headlines import Headlines
from tuner.study import Question, Study, Terms

SPEED = Quantity(value=9412.1, low=9370.0, high=9455.5, provenance=Provenance.MEASURED)


@pytest.fixture
def headlines(store: Store) -> Headlines:
    return Headlines(store.transactions)


@pytest.fixture
def line(study: Study) -> Headline:
    """One with everything in it."""
    settings = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
    return replace(
        headline(study, None),
        settings=settings,
        words="sharding=full_shard",
        tokens_per_s_per_gpu=SPEED,
        provenance=Provenance.MEASURED,
        why_none="none of <b>these</b> \u202e\U0001f600",
    )


def test_it_is_kept_as_it_is(headlines: Headlines, line: Headline) -> None:
    assert headlines.of([line.study_id]) == {}
    assert headlines.put(line, 7)
    (kept,) = headlines.of([line.study_id, "st-none"]).values()
    assert kept.headline == line
    assert kept.newest_event == 7
    assert kept.made_at.endswith("Z") or "+00:00" in kept.made_at


def test_a_newer_one_takes_its_place_and_an_older_one_does_not(
    headlines: Headlines, line: Headline
) -> None:
    newer = replace(line, probes=9)
    other = replace(line, state="done")
    steps = [(line, 7, True, line), (line, 7, False, line), (newer, 8, True, newer),
             (line, 7, False, newer), (other, 8, True, other), (other, 9, True, other)]  # fmt: skip
    for given, event, written, expected in steps:
        assert headlines.put(given, event) is written
        assert headlines.of([line.study_id])[line.study_id].headline == expected
    assert headlines.of([line.study_id])[line.study_id].newest_event == 9


def test_of_a_study_that_is_gone_none_is_kept(headlines: Headlines, line: Headline) -> None:
    gone = replace(line, study_id="st-gone")
    assert not headlines.put(gone, 1)
    assert headlines.of(["st-gone"]) == {}


def test_they_go_with_their_study(store: Store, headlines: Headlines, line: Headline) -> None:
    headlines.put(line, 1)
    with store.transactions.write() as session:
        session.execute(text("DELETE FROM studies"))
    assert headlines.of([line.study_id]) == {}


def test_many_are_read_in_one_query(
    store: Store, headlines: Headlines, line: Headline, question: Question
) -> None:
    ids = [line.study_id]
    for size in (16, 24):
        workload = replace(question.workload, global_batch_size=size)
        ids.append(store.ask(replace(question, workload=workload), Terms()).id)
    for number, study_id in enumerate(ids):
        headlines.put(replace(line, study_id=study_id, probes=number), number)
    found = headlines.of(ids[1:])
    assert {study_id: kept.headline.probes for study_id, kept in found.items()} == {
        ids[1]: 1,
        ids[2]: 2,
    }
    assert headlines.of([]) == {}


@pytest.mark.parametrize(
    "content", [{}, {"settings": {"of": "another version"}}, [], None, {"study_id": "st-1"}]
)
def test_one_of_another_version_is_none(
    store: Store, headlines: Headlines, line: Headline, content: object
) -> None:
    headlines.put(line, 1)
    with store.transactions.write() as session:
        values = {"content": json.dumps(content)}
        session.execute(text("UPDATE headlines SET content = :content"), values)
    assert headlines.of([line.study_id]) == {}
    assert headlines.put(line, 1)
    assert headlines.of([line.study_id])[line.study_id].headline == line


def test_several_may_keep_it_at_once(headlines: Headlines, line: Headline) -> None:
    lines = [replace(line, probes=number) for number in range(8)]
    threads = [threading.Thread(target=headlines.put, args=(one, one.probes)) for one in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = headlines.of([line.study_id])[line.study_id]
    assert kept.headline == lines[kept.newest_event]
