"""What is made of studies: kept while nothing happens, and no more of it than may be."""

from dataclasses import replace

import pytest

from api.study_cache import FRESH_S, Kept, Turn
from tests.api.conftest import Clock
from tuner.store.standing import Standing
from tuner.study import StudyState


@pytest.fixture
def standing() -> Standing:
    return Standing(
        id="st-1",
        identity="1",
        state=StudyState.RUNNING,
        reason="",
        revision=0,
        terms={},
        asked_at="",
        newest_event=7,
    )


def test_it_is_made_once_until_something_happens(standing: Standing, clock: Clock) -> None:
    made: list[int] = []
    kept = Kept(lambda one: made.append(one.newest_event) or len(made), Turn(), most=2, clock=clock)
    assert [kept.of(standing), kept.of(standing)] == [1, 1]
    assert kept.of(replace(standing, newest_event=8)) == 2
    assert kept.of(standing) == 2  # one who saw it earlier gets no older one
    clock.now += FRESH_S + 1
    assert kept.of(standing) == 3
    assert made == [7, 8, 7]


def test_those_asked_for_last_are_kept(standing: Standing, clock: Clock) -> None:
    made: list[str] = []
    kept = Kept(lambda one: made.append(one.id) or one.id, Turn(), most=2, clock=clock)
    one, two, three = (replace(standing, id=f"st-{n}") for n in (1, 2, 3))
    for wanted in (one, two, one, three, one, two):
        kept.of(wanted)
    assert len(kept) == 2
    assert made == ["st-1", "st-2", "st-3", "st-2"]


def test_what_cannot_be_made_is_tried_again(standing: Standing) -> None:
    def fail(one: Standing) -> str:
        raise ValueError(one.id)

    kept = Kept(fail, Turn(), most=2)
    for _ in range(2):
        with pytest.raises(ValueError, match="st-1"):
            kept.of(standing)
    assert len(kept) == 0
