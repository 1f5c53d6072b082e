"""``/``: pages, filters, and answers that are kept or computed in time."""

from urllib.parse import parse_qsl

import pytest

from api.answers import Answers
from api.pages import listing
from api.pages.form import all_wrong, read_form, texts_of
from api.pages.listing import STARTS, Wanted, list_studies
from tests.unit.api.studies import MEASURED, WORKLOAD, finish, probe, question_of
from tests.unit.pages.html import Element
from tuner.core.quantity import Provenance
from tuner.core.study import Limits, StudyState

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "\" onmouseover='alert(3)' x=\"",
    "m" * 200,
    "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET} \N{ARABIC LETTER BEH} model",
    "{{ 7 * 7 }} {% for x in y %} &amp; &lt;b&gt;",
    "</title></textarea><!--",
)


class Ticking:
    """A clock that a second passes on each time that it is looked at."""

    def __init__(self, by_s):
        self.now = 0.0
        self.by_s = by_s

    def __call__(self):
        self.now += self.by_s
        return self.now


STILL = Ticking(0.0)


def ask(store, number=0, model="m"):
    workload = {**WORKLOAD, "model_name": model, "global_batch_size": 16 + 2 * number}
    return store.ask(question_of({**MEASURED, "workload": workload}), Limits())


@pytest.fixture
def answers(store):
    return Answers(store)


def test_filters_leave_out_what_is_not_wanted(store, answers):
    first, second = ask(store, 0, "llama"), ask(store, 1, "llama-2")
    store.move(second.id, StudyState.CANCELLED)
    for values, found in (
        ({}, [second, first]),
        ({"model": "llama"}, [first]),
        ({"query": "LLAMA"}, [second, first]),
        ({"query": "llama-"}, [second]),
        ({"state": "cancelled"}, [second]),
        ({"state": "cancelled", "model": "llama"}, []),
    ):
        lines = list_studies(store, answers, Wanted.of(values), STILL).lines
        assert [line.summary.id for line in lines] == [one.id for one in found], values


def test_a_study_is_one_line_with_its_answer(store, answers, page, monkeypatch):
    monkeypatch.setattr(listing, "BUDGET_S", 60.0)
    study = ask(store, model="our model")
    (line,) = list_studies(store, answers, Wanted(), STILL).lines
    assert (line.words, line.speed, line.used_share, line.probes) == ((), None, None, 0)
    assert line.is_open
    assert "data-moving" in page("/").by_id(study.id).attributes
    probe(store, study.id)
    finish(store, study.id)
    (line,) = list_studies(store, answers, Wanted(), STILL).lines
    assert line.headline.provenance is Provenance.MEASURED
    assert (line.probes, line.is_open, line.is_old) == (1, False, False)
    assert line.speed is not None
    assert line.used_share is not None
    assert 0 < line.used_share < 1
    shown = page("/").by_id(study.id)
    assert shown.one("h2").one("a")["href"] == f"/studies/{study.id}"
    for words in ("our model", "cpu:2", "done", "measured", "tokens/s per rank", "286 MiB"):
        assert words in shown.text, words
    assert shown.find("svg", class_="share")
    assert "data-moving" not in shown.attributes


def test_answers_are_computed_only_while_there_is_time(store, answers):
    for number in range(3):
        probe(store, ask(store, number).id)
    slow = list_studies(store, answers, Wanted(), Ticking(0.06))
    assert [line.headline is not None for line in slow.lines] == [True, True, True]
    for number in range(3):
        ask(store, 10 + number)
    late = list_studies(store, Answers(store), Wanted(), Ticking(0.15))
    # What was kept is shown all the same.
    assert [line.headline is not None for line in late.lines] == [True, False, False, *[True] * 3]
    probe(store, late.lines[-1].summary.id)
    old = list_studies(store, answers, Wanted(), Ticking(1.0)).lines[-1]
    assert old.headline is not None
    assert old.is_old


def test_an_empty_list_invites(page):
    shown = page("/")
    starts = [a["href"] for a in shown.one(class_="welcome").find("a")]
    assert starts == ["/new", *(start.href for start in STARTS)]
    assert not shown.find("form", role="search")
    for start in STARTS:
        path, _, query = start.href.partition("?")
        assert path == "/new"
        assert all_wrong(read_form(texts_of(parse_qsl(query)))) == (), start.title


def test_search_filters_and_pages_are_in_the_address(page, store, monkeypatch):
    monkeypatch.setattr(listing, "ON_A_PAGE", 2)
    names = ["größe & <b>co</b>" if number % 2 else "qwen" for number in range(5)]
    asked = [ask(store, number, model=name).id for number, name in enumerate(names)]

    def ids(shown: Element) -> list[str]:
        return [one["id"] for one in shown.find("li", class_="study")]

    first = page("/?query=cpu&state=queued")
    assert first.by_id("find-query")["value"] == "cpu"
    (chosen,) = (o for o in first.by_id("find-state").find("option") if "selected" in o.attributes)
    assert chosen["value"] == "queued"
    second = page(first.one("a", rel="next")["href"])
    assert second.by_id("find-query")["value"] == "cpu"
    last = page(second.one("a", rel="next")["href"])
    assert [ids(first), ids(second), ids(last)] == [asked[:2:-1], asked[2:0:-1], asked[:1]]
    assert not last.find("a", rel="next")
    assert last.one(class_="pager").one("a")["href"] == "/?query=cpu&state=queued"
    href = Wanted.of({"model": names[1]}).href()
    assert ids(page(href)) == [asked[3], asked[1]]
    found = page("/?query=%3Ci%3Enothing%3C%2Fi%3E&state=done&model=x").one(class_="welcome")
    assert "<i>nothing</i>" in found.text
    assert found.one("a")["href"] == "/"
    for query in ("state=asleep", "cursor=x", "query=" + "x" * 201, "model=" + "x" * 201):
        page(f"/?{query}", 422)


def test_hostile_names_and_reasons_are_text(page, store):
    studies = {name: ask(store, n, name) for n, name in enumerate(HOSTILE)}
    ended = ask(store, 20)
    store.move(ended.id, StudyState.FAILED, "for <b>no</b> good reason")
    shown = page("/")
    assert not [one for one in shown.find("script") if "alert" in one.get("src")]
    offered = {option["value"] for option in shown.by_id("find-models").find("option")}
    assert offered == {*HOSTILE, "m"}
    for name, study in studies.items():
        title = shown.by_id(study.id).one("h2").one("bdi")
        assert title.get("title", title.text) == name
        assert title.text.rstrip("…") in name
        again = page(f"/new?like={study.id}")
        assert again.by_id("f-workload-model-name")["value"] == name
    assert not shown.by_id(ended.id).find("b")
