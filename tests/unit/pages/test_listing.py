"""The list of studies: pages, filters, and answers that are kept or computed in time."""

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import pytest

from api.answers import Answers
from api.pages import listing
from api.pages.form import all_wrong, read_form, texts_of
from api.pages.listing import STARTS, Listing, Wanted, list_studies
from api.pages.study import study_page
from tests.unit.api.studies import MEASURED, WORKLOAD, finish, probe, question_of
from tests.unit.pages import made
from tests.unit.pages.made import stored
from tuner.core.quantity import Provenance
from tuner.core.study import Study, StudyState, Terms
from tuner.errors import UsageError
from tuner.store import Store


class Ticking:
    """A clock that a second passes on each time that it is looked at."""

    def __init__(self, by_s: float) -> None:
        self.now = 0.0
        self.by_s = by_s

    def __call__(self) -> float:
        self.now += self.by_s
        return self.now


STILL = Ticking(0.0)


def _ask(store: Store, number: int = 0, model: str = "m", **changes: Any) -> Study:
    workload = {**WORKLOAD, "model_name": model, "global_batch_size": 16 + 2 * number}
    return store.ask(question_of({**MEASURED, "workload": workload, **changes}), Terms())


@pytest.fixture
def answers(store: Store) -> Answers:
    """The answers of the store's studies."""
    return Answers(store)


@pytest.fixture
def list_now(store: Store, answers: Answers) -> Callable[..., Listing]:
    """Lists with a clock that stands still."""
    return lambda **values: list_studies(store, answers, Wanted.of(values), STILL)


def test_pages_follow_each_other_without_a_gap(
    store: Store, list_now: Callable[..., Listing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "ON_A_PAGE", 3)
    asked = [_ask(store, number).id for number in range(7)]
    seen, cursor, pages = [], "", 0
    while True:
        page = list_now(cursor=cursor)
        seen += [line.summary.id for line in page.lines]
        pages += 1
        if not page.older:
            break
        assert page.older.startswith("/?cursor=")
        cursor = page.older.removeprefix("/?cursor=")
    assert pages == 3
    assert seen == asked[::-1]


def test_filters_are_kept_from_page_to_page(
    store: Store, list_now: Callable[..., Listing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "ON_A_PAGE", 1)
    for number in range(2):
        _ask(store, number, model="größe & co")
    page = list_now(query="&", state="queued", model="größe & co")
    assert len(page.lines) == 1
    assert page.older.startswith("/?query=%26&state=queued&model=gr%C3%B6%C3%9Fe+%26+co&cursor=")
    assert page.newest == "/?query=%26&state=queued&model=gr%C3%B6%C3%9Fe+%26+co"


def test_filters_leave_out_what_is_not_wanted(
    store: Store, list_now: Callable[..., Listing]
) -> None:
    first, second = _ask(store, 0, "llama"), _ask(store, 1, "llama-2")
    store.move(second.id, StudyState.CANCELLED)

    def ids(**values: str) -> list[str]:
        return [line.summary.id for line in list_now(**values).lines]

    assert ids() == [second.id, first.id]
    assert ids(model="llama") == [first.id]
    assert ids(query="LLAMA") == [second.id, first.id]
    assert ids(query="llama-") == [second.id]
    assert ids(state="cancelled") == [second.id]
    assert ids(state="cancelled", model="llama") == []


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"state": "asleep"}, "state"),
        ({"query": "x" * 201}, "query"),
        ({"model": "x" * 201}, "model"),
        ({"cursor": "made up"}, "cursor"),
    ],
)
def test_what_cannot_be_wanted_is_refused(
    list_now: Callable[..., Listing], values: dict[str, str], field: str
) -> None:
    with pytest.raises(UsageError) as error:
        list_now(**values)
    assert error.value.field == field


def test_a_measured_study_is_one_line(store: Store, list_now: Callable[..., Listing]) -> None:
    study = _ask(store)
    probe(store, study.id)
    finish(store, study.id)
    (line,) = list_now().lines
    assert line.headline is not None
    assert line.headline.provenance is Provenance.MEASURED
    assert line.words[0] == str(line.headline.settings.sharding).replace("_", " ")  # type: ignore[union-attr]
    assert (line.probes, line.is_open, line.is_old, line.may_change) == (1, False, False, False)
    assert line.speed is not None
    assert line.used_share is not None
    assert 0 < line.used_share < 1
    assert line.href == f"/studies/{study.id}"


def test_the_memory_is_what_the_page_of_the_study_says(
    store: Store, answers: Answers, list_now: Callable[..., Listing]
) -> None:
    study = stored(store, made.study(made.question(tp_size=[1]), [made.ok(1.0, 1, 30 * 2**30)]))
    (line,) = list_now().lines
    assert line.headline is not None
    assert line.headline.needed_gib.value == pytest.approx(30.25), "with what lies outside"
    assert line.used_share == pytest.approx(30.25 / line.headline.limit_gib)
    page = study_page(answers.whole(store.statuses([study])[study]), ())
    assert "30.2 GiB" in page.parts["answer"]


def test_a_study_without_an_answer_is_a_line_too(
    store: Store, list_now: Callable[..., Listing]
) -> None:
    _ask(store)
    (line,) = list_now().lines
    assert (line.words, line.speed, line.used_share, line.probes) == ((), None, None, 0)
    assert line.is_open


def test_answers_are_computed_only_while_there_is_time(store: Store, answers: Answers) -> None:
    for number in range(3):
        probe(store, _ask(store, number).id)
    slow = list_studies(store, answers, Wanted(), Ticking(0.06))
    assert [line.headline is not None for line in slow.lines] == [True, True, True]
    for number in range(3):
        _ask(store, 10 + number)
    late = list_studies(store, Answers(store), Wanted(), Ticking(0.15))
    assert [line.headline is not None for line in late.lines][:3] == [True, False, False]
    # What was kept is shown all the same.
    assert [line.headline is not None for line in late.lines][3:] == [True, True, True]


def test_what_was_kept_before_something_happened_is_said_to_be_old(
    store: Store, answers: Answers
) -> None:
    study = probe(store, _ask(store).id)
    list_studies(store, answers, Wanted(), STILL)
    assert store.summaries([study.id])
    probe(store, study.id)
    (line,) = list_studies(store, answers, Wanted(), Ticking(1.0)).lines
    assert line.headline is not None
    assert line.is_old


def test_nobody_waits_for_another_who_computes(store: Store, answers: Answers) -> None:
    _ask(store)
    taken, done = threading.Event(), threading.Event()

    def compute() -> None:
        with answers.computing():
            taken.set()
            done.wait(60)

    other = threading.Thread(target=compute)
    other.start()
    assert taken.wait(60)
    try:
        (line,) = list_studies(store, answers, Wanted(), STILL).lines
    finally:
        done.set()
        other.join()
    assert line.headline is None


def test_models_of_the_page_are_offered(store: Store, list_now: Callable[..., Listing]) -> None:
    for number, model in enumerate(("b", "a", "b")):
        _ask(store, number, model)
    assert list_now().models == ["a", "b"]


def test_starts_fill_in_the_form() -> None:
    for start in STARTS:
        path, _, query = start.href.partition("?")
        assert path == "/new"
        assert all_wrong(read_form(texts_of(parse_qsl(query)))) == (), start.title
