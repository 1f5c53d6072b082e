"""A study's page in parts: what they say, whatever the study, and how large they get."""

from dataclasses import replace

import pytest

from api.pages.answer import answer_of
from api.pages.render import render_part
from api.pages.study import MOST_TROUBLES, MOST_VALUES, PARTS, StudyPage
from tests.unit.pages.html import Element, read_part
from tests.unit.pages.made import GIB, crashed, ok, oom, question, shown, study, whole
from tuner.core.measurement import Fidelity
from tuner.core.study import StudyState, Terms

MOST_BYTES = 300_000
"""Of a page; what is around its parts takes some thousands."""
AROUND_BYTES = 10_000
FOUND = [ok(2.0, 1, 20 * GIB), oom(), ok(1.0, 1, 30 * GIB), crashed()]
HOSTILE = (
    "<script>alert(1)</script>",
    "\"' onmouseover=alert(1) x=",
    "]]><!-- {{ 7*7 }} {% raw %}",
    "x" * 200,
    "\N{HEBREW LETTER ALEF}\N{ARABIC LETTER BEH} abc",
    "\N{LLAMA}\N{FIRE}" * 50,
)


def words(part: str) -> str:
    return " ".join(read_part(part).text.split())


@pytest.fixture(scope="module")
def page() -> StudyPage:
    return shown(study(question(tp_size=[1]), FOUND))


def test_all_parts_are_there_in_order(page: StudyPage) -> None:
    assert tuple(page.parts) == PARTS
    assert all(page.parts.values())


def test_the_answer_comes_first_with_everything_that_stands_behind_it(page: StudyPage) -> None:
    text = words(page.parts["answer"])
    for expected in (
        "Run this",
        "tokens/s per GPU",
        "1.01 s",
        "30.2 GiB",
        "on one GPU, 40% of the limit of 76.0 GiB",
        "measured",
        "Guard: not checked",
        "sharding",
        "Without effect here:",
        "accelerate.yaml",
        "torchrun",
    ):
        assert expected in text, expected


def test_settings_without_any_speed_are_a_table() -> None:
    terms = Terms(fidelity=Fidelity.PREDICTED)
    made = study(question("cpu:2", batch=8), [], terms=terms)
    part = shown(made).parts["scatter"]
    assert "Settings by memory" in part
    assert "<svg" not in part
    assert read_part(part).find("tbody")


@pytest.mark.parametrize("count", [1, 2, 9])
def test_launchers_without_a_file_are_named_and_why(count: int) -> None:
    made = whole(study(question(tp_size=[2]), FOUND))
    cannot = tuple((f"launcher{n}", f"reason {n}") for n in range(count))
    found = replace(answer_of(made.study, made.suggestion, None), cannot=cannot)
    part = read_part(
        render_part("study/answer.html", answer=found, status=shown(made.study).status)
    )
    assert all(name in part.text and why in part.text for name, why in cannot)
    assert len(part.find("details")) == (count > 1), "many are one click away"


def test_tabs_work_without_scripts(page: StudyPage) -> None:
    answer = read_part(page.parts["answer"])
    radios = answer.find("input", type="radio")
    assert [one.get("checked", "no") for one in radios] == ["", *["no"] * (len(radios) - 1)]
    assert len({one["name"] for one in radios}) == 1
    assert len(answer.find(class_="tab")) == len(radios)
    assert {label["for"] for label in answer.find("label")} == {one["id"] for one in radios}
    copied = {button["data-copy"] for button in answer.find("button")}
    assert copied == {one["id"] for one in answer.find("pre")}
    downloads = [link["href"] for link in answer.find("a") if "download" in link.attributes]
    assert downloads[0] == "/tune/st-0123456789ab/export/accelerate"
    assert len(downloads) == len(radios) - 2  # settings and command are not files


def test_sentences_lead_to_probes(page: StudyPage) -> None:
    links = {link["href"] for link in read_part(page.parts["why"]).find("a")}
    assert "/studies/st-0123456789ab/probes/3" in links


def test_the_table_has_each_probe_and_says_how_it_is_sorted(page: StudyPage) -> None:
    part = read_part(page.parts["probes"])
    rows = part.one("tbody").find("tr")
    assert [row.one("a").text for row in rows] == ["#3", "#1", "#2", "#4"]
    assert [row.get("class") for row in rows] == ["is-best", "", "", ""]
    heads = part.one("thead").find("th")
    for row in rows:
        assert len([cell for cell in row.inside if cell.tag in ("td", "th")]) == len(heads)
    assert [one["data-key"] for one in heads if one.get("aria-sort")] == ["speed"]
    assert all(one["scope"] == "col" for one in heads)
    assert "out of memory" in rows[2].text
    assert [one["data-outcome"] for one in part.find(data_outcome="oom")] == ["oom"]


def test_failures_have_their_evidence(page: StudyPage) -> None:
    part = read_part(page.parts["trouble"])
    crash, memory = part.find("details")
    assert "#2 out of memory" in " ".join(memory.text.split())
    for text in ("backward, on rank 3", "3,221,225,472 bytes", "CUDA out of memory"):
        assert text in memory.text
    assert "RuntimeError: no" in crash.text
    assert memory.find("a", href="/studies/st-0123456789ab/probes/2")


def test_cost_and_terms(page: StudyPage) -> None:
    text = words(page.parts["cost"])
    for expected in (
        "4 probes: 1 crashed, 2 ok, 1 out of memory",
        "device-seconds",
        "legal settings",
        "76.0 GiB on one GPU, 5.0% of its memory left free",
        "torch 2.13.0",
    ):
        assert expected in text, expected


def test_ids_are_unique_over_all_parts(page: StudyPage) -> None:
    ids = [one["id"] for one in read_part("".join(page.parts.values())).all() if one.get("id")]
    assert len(ids) == len(set(ids))


def test_what_scrolls_can_be_reached_by_keyboard_and_has_a_name(page: StudyPage) -> None:
    for part in page.parts.values():
        found = read_part(part)
        for one in (*found.find(class_="scroll"), *found.find("pre")):
            assert one["tabindex"] == "0"
            assert one.get("aria-label") or one.get("aria-labelledby")


def test_an_open_study_says_what_runs() -> None:
    made = shown(study(question(), [FOUND[0], None], StudyState.RUNNING))
    status = read_part(made.parts["status"])
    assert made.status.is_open
    assert "Probe #2 is running" in " ".join(status.text.split())
    since = [one["data-since"] for one in status.all() if one.get("data-since")]
    assert since == ["2026-11-21T06:00:00.000+00:00", "2026-11-21T06:01:00.000+00:00"]
    meter = status.one("progress")
    assert (float(meter["value"]), float(meter["max"])) == (1, 5)
    assert made.status.said == "Probe #2 is running; 1 of 5 probes done."
    assert "Best so far" in made.parts["answer"]


def test_a_study_of_which_nothing_is_known() -> None:
    terms = Terms(fidelity=Fidelity.PREDICTED)
    made = shown(study(question(), [], StudyState.QUEUED, reason="", terms=terms))
    assert "Waiting for a worker" in words(made.parts["status"])
    assert "probes" not in words(made.parts["probes"])
    for part in made.parts.values():
        read_part(part)


def test_a_study_without_an_answer_says_why() -> None:
    terms = Terms(fidelity=Fidelity.PREDICTED, memory_limit_bytes=2**20)
    made = shown(study(question(), [], StudyState.FAILED, "nothing fits", terms=terms))
    text = words(made.parts["answer"])
    assert text.startswith("No answer Nothing fits: ")
    assert made.parts["memory"] == ""
    assert "failed" in words(made.parts["status"])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_words_are_shown_as_text(name: str) -> None:
    found = [FOUND[0], crashed(detail=name, log=name), replace(oom(log=name), detail=name)]
    asked = question(name=name.strip()[:200])
    made = shown(study(asked, [*found, None], StudyState.RUNNING, reason=name))
    assert made.head.model == name.strip()[:200]
    everything = read_part("".join(made.parts.values()))
    assert not everything.find("script")
    assert name[:100].strip() in everything.text
    ended = shown(study(asked, found, StudyState.FAILED, reason=name))
    assert name in read_part(ended.parts["status"]).text


def test_a_page_of_500_probes_is_not_too_large() -> None:
    """Every other one fails in some way, with a long log."""
    log = "\n".join("torch.OutOfMemoryError: CUDA out of memory. " * 4 for _ in range(200))
    found = [
        (
            oom(log=log),
            crashed("d" * 1000, log),
            *[ok(1 + n % 90 / 100, 1, (9 + n % 60) * GIB)] * 6,
        )[n % 8]
        for n in range(500)
    ]
    made = shown(study(question("8x8xa100-80gb", 46_080, name="n" * 200), found))
    sizes = {name: len(part.encode()) for name, part in made.parts.items()}
    assert sum(sizes.values()) < MOST_BYTES - AROUND_BYTES, sizes
    assert len(read_part(made.parts["probes"]).one("tbody").find("tr")) == 500
    troubles = read_part(made.parts["trouble"])
    assert len(troubles.find("details")) == MOST_TROUBLES
    assert f"the latest {MOST_TROUBLES} of 126" in " ".join(troubles.text.split())
    knobs = read_part(made.parts["knobs"])
    assert f"Of micro batch size the {MOST_VALUES} best of" in knobs.text


def test_one_element_of_each_part_names_it(page: StudyPage) -> None:
    for part in page.parts.values():
        root: Element = read_part(part)
        section = root.one("section")
        assert root.by_id(section["aria-labelledby"]).tag == "h2"
