"""``/``: pages, filters, and answers that are kept or computed in time."""

import csv
from urllib.parse import parse_qsl

import pytest

from api.answers import Answers
from api.pages import listing
from api.pages.form import all_wrong, read_form, texts_of
from api.pages.listing import COLUMNS, STARTS, Wanted, csv_of, list_studies
from tests.unit.api.studies import MEASURED, WORKLOAD, finish, probe, question_of
from tests.unit.pages.made import crashed
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
    store.label(first.id, {"urgent": "", "name": "größer"})
    store.label(second.id, {}, notes="asked by hand")
    for values, found in (
        ({}, [second, first]),
        ({"query": "LLAMA"}, [second, first]),
        ({"query": "llama-"}, [second]),
        ({"query": "urgent"}, [first]),
        ({"query": "größer"}, [first]),
        ({"query": "by hand"}, [second]),
        ({"state": "cancelled"}, [second]),
        ({"state": "cancelled", "query": "urgent"}, []),
    ):
        listing = list_studies(store, answers, Wanted.of(values), STILL)
        assert [line.summary.id for line in listing.lines] == [one.id for one in found], values
        assert listing.total == len(found)


def test_a_list_is_sorted_by_any_column(store, answers):
    for number, (model, speed) in enumerate((("b", 5.0), ("a", None), ("c", 7.0))):
        study = ask(store, number, model)
        line = {"tokens_per_s": speed, "needed_share": speed and speed / 10}
        store.keep_summary(study.id, {}, 99, **line)
    for sort, models in (
        ("", "cab"), ("-asked", "cab"), ("asked", "bac"), ("model", "abc"), ("-model", "cba"),
        ("batch", "bac"), ("-batch", "cab"), ("speed", "bca"), ("-speed", "cba"),
        ("-memory", "cba"), ("state", "cab"),
    ):  # fmt: skip
        lines = list_studies(store, answers, Wanted.of({"sort": sort}), STILL).lines
        assert "".join(line.summary.model_name for line in lines) == models, sort
    for column in COLUMNS:
        assert len(list_studies(store, answers, Wanted(sort=column.key), STILL).lines) == 3


def test_a_study_is_one_line_with_its_answer(store, answers, page, monkeypatch):
    monkeypatch.setattr(listing, "BUDGET_S", 60.0)
    study = ask(store, model="our model")
    (line,) = list_studies(store, answers, Wanted(), STILL).lines
    assert (line.words, line.speed, line.share, line.name) == ((), None, None, "")
    assert line.is_open
    assert "data-moving" in page("/").by_id(study.id).attributes
    probe(store, study.id)
    finish(store, study.id)
    store.label(study.id, {"name": "the first", "job": "7", "urgent": ""})
    (line,) = list_studies(store, answers, Wanted(), STILL).lines
    assert line.answer.provenance is Provenance.MEASURED
    assert (line.state, line.is_open, line.is_old) == ("done", False, False)
    assert line.speed is not None
    assert line.share is not None
    assert 0 < line.share < 1
    shown = page("/").by_id(study.id)
    assert shown.one("th").one("a")["href"] == f"/studies/{study.id}"
    for words in ("the first", "our model", "cpu:2", "done", "measured", "286 MiB", "full",
                  "accelerate", "urgent", "job=7", "16", "32"):  # fmt: skip
        assert words in shown.text, words
    assert shown.find("svg", class_="share")
    assert "data-moving" not in shown.attributes


def test_a_study_without_an_answer_is_not_listed_as_done(store, answers):
    study = ask(store)
    probe(store, study.id, crashed())
    finish(store, study.id)
    (line,) = list_studies(store, answers, Wanted(), Ticking(60.0)).lines
    assert (line.state, line.answer) == ("no answer", None), "which outcomes tell without it"
    (line,) = list_studies(store, answers, Wanted(), STILL).lines
    assert line.state == "no answer"
    store.ask(study.question, Limits())
    (line,) = list_studies(store, answers, Wanted(), Ticking(60.0)).lines
    assert line.state == "queued", "the line of its former end is still kept"


def test_answers_are_computed_only_while_there_is_time(store, answers):
    for number in range(3):
        probe(store, ask(store, number).id)
    slow = list_studies(store, answers, Wanted(), Ticking(0.06))
    assert [line.answer is not None for line in slow.lines] == [True, True, True]
    for number in range(3):
        ask(store, 10 + number)
    late = list_studies(store, Answers(store), Wanted(), Ticking(0.15))
    # What was kept is shown all the same.
    assert [line.answer is not None for line in late.lines] == [True, False, False, *[True] * 3]
    probe(store, late.lines[-1].summary.id)
    old = list_studies(store, answers, Wanted(), Ticking(1.0)).lines[-1]
    assert old.answer is not None
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

    def ids(shown):
        return [one["id"] for one in shown.find("tr", class_="study")]

    first = page("/?query=cpu&state=queued")
    assert first.by_id("find-query")["value"] == "cpu"
    (chosen,) = (o for o in first.by_id("find-state").find("option") if "selected" in o.attributes)
    assert chosen["value"] == "queued"
    second = page(first.one("a", rel="next")["href"])
    assert second.by_id("find-query")["value"] == "cpu"
    last = page(second.one("a", rel="next")["href"])
    assert [ids(first), ids(second), ids(last)] == [asked[:2:-1], asked[2:0:-1], asked[:1]]
    assert not last.find("a", rel="next")
    assert last.one("a", rel="prev")["href"] == "/?query=cpu&state=queued&page=2"
    href = Wanted.of({"query": names[1]}).href()
    assert ids(page(href)) == [asked[3], asked[1]]
    assert page("/?page=9").one(class_="welcome").one("a")["href"] == "/"
    found = page("/?query=%3Ci%3Enothing%3C%2Fi%3E&state=done").one(class_="welcome")
    assert "<i>nothing</i>" in found.text
    assert found.one("a")["href"] == "/"
    for query in ("state=asleep", "page=x", "page=0", "sort=x", "query=" + "x" * 201):
        page(f"/?{query}", 422)


def test_a_list_is_comma_separated_values(store, browser):
    study = ask(store, model="=cmd()")
    store.label(study.id, {"name": "a, b"})
    probe(store, study.id)
    list_studies(store, Answers(store), Wanted(), STILL)
    answer = browser.get("/?csv=true&state=running")
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    (row,) = csv.DictReader(answer.text.splitlines())
    assert (row["study"], row["name"], row["model"]) == (study.id, "a, b", "'=cmd()")
    assert float(row["tokens_per_s_per_rank"]) > 0
    assert list(csv_of(store, Wanted(query="nothing")))[1:] == []


def test_hostile_names_and_reasons_are_text(page, store):
    studies = {name: ask(store, n, name) for n, name in enumerate(HOSTILE)}
    ended = ask(store, 20)
    store.move(ended.id, StudyState.FAILED, "for <b>no</b> good reason")
    shown = page("/")
    assert not [one for one in shown.find("script") if "alert" in one.get("src")]
    for name, study in studies.items():
        title = shown.by_id(study.id).one("th").one("bdi")
        assert title.get("title", title.text) == name
        assert title.text.rstrip("…") in name
        again = page(f"/new?like={study.id}")
        assert again.by_id("f-workload-model-name")["value"] == name
    assert not shown.by_id(ended.id).find("b")
