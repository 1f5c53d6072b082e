"""``/compare`` over HTTP."""

import pytest
from fastapi import FastAPI

from tests.unit.api.browsers import Browser
from tests.unit.api.studies import MEASURED, WORKLOAD, probe, question_of
from tests.unit.pages.html import Element, read_page
from tuner.core.study import Terms
from tuner.store import Store

HOSTILE = ("<img src=x onerror=alert(1)>", "\N{HEBREW LETTER ALEF}" * 40, "m" * 200, "\N{LLAMA}")


@pytest.fixture
def browser(app: FastAPI) -> Browser:
    """A person on this machine."""
    return Browser(app, address="127.0.0.1")


@pytest.fixture
def ids(store: Store) -> list[str]:
    """Four studies with hostile names, two of which have an answer."""
    found = []
    for number, name in enumerate(HOSTILE):
        workload = {**WORKLOAD, "model_name": name, "global_batch_size": 16 + 16 * number}
        study = store.ask(question_of({**MEASURED, "workload": workload}), Terms())
        if number % 2:
            probe(store, study.id)
        found.append(study.id)
    return found


def _page(browser: Browser, path: str) -> Element:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return read_page(answer.text)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_studies_stand_side_by_side(browser: Browser, ids: list[str], count: int) -> None:
    page = _page(browser, f"/compare?ids={','.join(ids[:count])}")
    table = page.find("table")[0]
    heads = table.find("th", scope="col")
    assert [head.one("a")["href"] for head in heads] == [f"/studies/{one}" for one in ids[:count]]
    for head, name in zip(heads, HOSTILE, strict=False):
        shown = head.find("bdi")[0]
        assert shown.get("title", shown.text) == name
    rows = [row for row in table.find("tr") if row.find("td") and row.find("th", scope="row")]
    assert all(len(row.find("td")) == count for row in rows)


def test_what_differs_is_marked_not_by_colour_alone(browser: Browser, ids: list[str]) -> None:
    page = _page(browser, f"/compare?ids={ids[1]}&ids={ids[3]}")
    for row in page.find("tr", class_="differs"):
        assert "≠" in row.text
        assert "differs: " in row.text
    same = page.find("tr", class_="same")
    assert same
    assert not any("≠" in row.text for row in same)
    (batch,) = [row for row in page.find("tr", class_="differs") if "global batch" in row.text]
    assert [cell.one("bdi").text for cell in batch.find("td")] == ["32 sequences", "64 sequences"]


@pytest.mark.parametrize("count", [0, 1])
def test_with_fewer_others_can_be_chosen(browser: Browser, ids: list[str], count: int) -> None:
    page = _page(browser, f"/compare?ids={','.join(ids[:count])}")
    boxes = page.by_id("compare").find("input", type="checkbox", name="ids")
    assert sorted(box["value"] for box in boxes) == sorted(ids)
    assert [box["value"] for box in boxes if "checked" in box.attributes] == ids[:count]


def test_what_was_ticked_stays_while_one_searches(browser: Browser, ids: list[str]) -> None:
    page = _page(browser, f"/compare?ids={ids[0]}&query=%F0%9F%A6%99")
    boxes = page.by_id("compare").find("input", type="checkbox", name="ids")
    assert [box["value"] for box in boxes] == [ids[0], ids[3]]
    assert "No study matches" in _page(browser, "/compare?query=nothing").text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("ids=x", 422),
        ("ids=st-000000000000,st-000000000001", 404),
        ("ids=" + ",".join(f"st-00000000000{n}" for n in range(5)), 422),
    ],
)
def test_what_there_is_not_is_told(browser: Browser, query: str, status: int) -> None:
    answer = browser.get(f"/compare?{query}")
    assert answer.status_code == status
    assert "text/html" in answer.headers["content-type"]
