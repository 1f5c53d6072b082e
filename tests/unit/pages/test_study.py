"""A study's page in parts: what they hold, whatever the study, and how large they get."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from api.pages.charts import OUTSIDE
from api.pages.study import MOST_TROUBLES, answer_of, head_of, status_of, study_page
from tests.questions import question_about
from tests.unit.pages.html import Element, read_part
from tests.unit.pages.made import GIB, crashed, moments, ok, oom, question, shown, study, whole
from tuner.client.answered import with_launch
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.evaluation import Guard
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity
from tuner.core.packing import Packing
from tuner.core.study import Limits, ProbeState, StudyState
from tuner.explain.known import best_known
from tuner.results.summary import summary_of
from tuner.space import enumerate_space
from tuner.store import Moments
from tuner.store.workers import Silence

MOST_BYTES = 300_000
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


def words(part):
    return " ".join((part if isinstance(part, Element) else read_part(part)).text.split())


def part(page, name):
    return read_part(page.body).one(data_part=name)


@pytest.fixture(scope="module")
def page():
    return shown(study(question(tp_size=[1]), FOUND))


def answer(made, needed_gib=None):
    found = best_known(made)
    return answer_of(made, found and with_launch(found, made.question), needed_gib)


def test_a_knob_at_its_default_is_shown_where_another_value_was_weighed():
    made = study(question(tp_size=[1]), FOUND)
    found = best_known(made)
    weighed = {"knob": "sync_each_batch", "of_answer": True, "probes": (1, 2), "step": None}
    told = replace(found, facts=(*found.facts, {"kind": "knob_predicted", "changes": [weighed]}))
    assert dict(answer_of(made, told, None).chosen)["sync_each_batch"] == "true"


def test_what_to_run_and_what_to_copy():
    found = answer(study(question(tp_size=[1]), FOUND), 30.25)
    assert (found.title, found.note, found.why_none) == ("Run this", "", "")
    assert found.best is not None
    assert (found.per, found.share) == ("GPU", 30.25 / 76)
    assert {"sharding", "micro_batch_size"} <= dict(found.chosen).keys()
    assert "sync_each_batch" in dict(found.chosen), "the second best has another value"
    assert "fused_loss" in dict(found.usual), "it is at its default"
    assert "tp_recompute_allgather" not in {**dict(found.chosen), **dict(found.usual)}, "inactive"
    tabs = {tab.id: tab for tab in found.tabs}
    assert list(tabs)[-2:] == ["settings", "launch"]
    assert tabs["accelerate"].about == "accelerate.yaml"
    assert tabs["accelerate"].download == "/tune/st-0123456789ab/export/accelerate"
    assert "num_processes: 8" in tabs["accelerate"].text
    assert tabs["launch"].text.startswith("torchrun --standalone --nproc-per-node 8")
    other = answer(study(question(tp_size=[2]), [ok(2.0, 1, 20 * GIB)]))
    assert "accelerate" not in [tab.id for tab in other.tabs]
    assert "tp_size=2" in dict(other.cannot)["accelerate"]


def test_an_answer_that_is_not_the_fastest_mark_says_why():
    found = [ok(1.0, 1, 60 * GIB), ok(1.001, 1, 20 * GIB), ok(2.0, 1, 9 * GIB)]
    note = answer(study(question(tp_size=[1]), found)).note
    assert note.startswith("Tied with ")
    assert note.endswith("this one needs 40.0 GiB less.")
    suggestion = best_known(study(question(), FOUND))
    busy = replace(suggestion, facts=({"kind": "other_load"},), explanation=("Cores were taken.",))
    assert answer_of(study(question(), FOUND), busy, None).note == "Cores were taken."


def test_an_adapter_is_named_and_its_code_is_beside_the_file_of_its_framework():
    whole = question(sharding=["ddp"])
    adapted = replace(
        whole,
        workload=replace(
            whole.workload, adapter=Adapter(method=AdapterMethod.QLORA), packing=Packing()
        ),
        framework=framework("trainer"),
    )
    made = study(adapted, [ok(2.0, 1, 20 * GIB)])
    assert {"qlora of rank 16", "packing varlen"} <= set(head_of(made).facts)
    assert not {"qlora of rank 16", "packing varlen"} & set(head_of(study(whole, FOUND)).facts)
    first, *others = answer(made).tabs
    assert first.id == "trainer"
    (code,) = [pasted for _, pasted in first.beside if pasted]
    assert "load_in_4bit=True" in code
    assert "get_peft_model" in code
    assert "accelerate" in [tab.id for tab in others]
    assert "get_peft_model" in words(part(shown(made), "answer"))
    assert summary_of(made, best_known(made)).trains == ("qlora of rank 16", "packing varlen")


def test_what_is_not_sure_is_not_dressed_as_measured():
    opened = answer(study(question(), [ok(2.0, 1, 20 * GIB), None], StudyState.RUNNING))
    assert (opened.title, bool(opened.note)) == ("Best so far", True)
    made = study(question(), [oom(), oom()])
    found = answer(made)
    assert (found.title, bool(found.why_none)) == ("Predicted", True)
    running = answer_of(replace(made, state=StudyState.RUNNING), best_known(made), None)
    assert (running.title, running.why_none, bool(running.note)) == ("Predicted", "", True)
    limits = Limits(fidelity=Fidelity.PREDICTED, memory_limit_bytes=2**20)
    none = answer(study(question(), [], limits=limits))
    assert (none.title, none.best, none.tabs, none.share) == ("Nothing fits", None, (), None)
    assert (none.state, none.nothing_fits) == ("nothing fits", True)
    assert none.why_none
    assert all(href.startswith(f"/new?like={made.id}&") for _, href in none.ways)
    asked = question_about("llama-3.1-8b", "8xrtx-4090", tokens=8192, batch=32)
    lora = replace(asked.workload, adapter=Adapter(method=AdapterMethod.LORA))
    asked = replace(asked, workload=lora, framework=framework("trainer"))  # which shards none
    held = Limits(fidelity=Fidelity.PREDICTED)
    nothing = study(asked, [], limits=held)
    assert "an adapter on 4-bit weights" in words(part(shown(nothing), "answer"))
    hrefs = [href for _, href in answer(nothing).ways]
    assert any("framework.name=accelerate" in href for href in hrefs), hrefs
    assert "--" not in words(part(shown(study(question(), [], limits=limits)), "answer"))
    limits = Limits(fidelity=Fidelity.PREDICTED)
    calm = study(question(), [], limits=limits)
    note, title = answer(calm).note, answer(calm).title
    assert title == "Predicted: try this"
    assert note.count("Nothing was measured: ask with fidelity measured on 8x") == 1
    page = shown(calm)
    counts = [words(part(page, name)).count("Nothing was measured") for name in ("answer", "why")]
    assert counts == [1, 0]
    early = answer_of(study(question(), [], StudyState.QUEUED, limits=limits), None, None)
    assert early.title == "Nothing is known yet"


def test_the_result_of_the_guard_is_told_as_it_is():
    made = study(question(), [ok(2.0, 1, 20 * GIB)])
    suggestion = best_known(made)
    assert suggestion.best is not None
    marks = {}
    for verdict, why in (("passed", ""), ("not_checked", "no replica"), ("failed", "loss differs")):
        best = replace(suggestion.best, guard=Guard(verdict=verdict, why=why))
        found = answer_of(made, replace(suggestion, best=best), None)
        assert why in found.guard
        marks[verdict] = found.guard_mark
    assert marks == {"passed": "passed", "not_checked": "unknown", "failed": "failed"}


def test_figures_of_each_part(page):
    for name, expected in {
        "answer": (
            "Run this",
            "1.01 s",
            "8 GPUs: ",
            "80% intervals",
            "30.2 GiB",
            "40% of 76.0 GiB",
            "measured",
        ),
        "pair": ("parameters", "optimizer", OUTSIDE, "limit 76.0 GiB", "Best so far"),
        "scatter": ("the answer", "memory needed, GiB", "limit 76.0 GiB", "out of memory"),
        "changes": ("change one knob", "predicted"),
        "cost": ("4 probes", "1 out of memory", "76.0 GiB on one GPU, 5.0%", "torch 2.13.0"),
    }.items():
        text = words(part(page, name))
        for one in expected:
            assert one in text, (name, one)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_words_are_shown_as_text(name):
    found = [FOUND[0], crashed(detail=name, log=name), replace(oom(log=name), detail=name)]
    asked = question(name=name.strip()[:200])
    made = shown(study(asked, [*found, None], StudyState.RUNNING, reason=name))
    assert made.head.model == name.strip()[:200]
    everything = read_part(made.body)
    assert not everything.find("script")
    assert name[:100].strip() in everything.text
    ended = shown(study(asked, found, StudyState.FAILED, reason=name))
    assert name in read_part(ended.body).text


def test_a_page_of_500_probes_is_not_too_large():
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
    made = shown(study(question("8x8xa100-80gb", 23_040, name="n" * 200), found))
    assert len(made.body.encode()) < MOST_BYTES - AROUND_BYTES
    assert len(part(made, "probes").one("tbody").find("tr")) == 500
    assert len(part(made, "trouble").find("details")) == MOST_TROUBLES + 1


def test_knobs_that_count_are_bars_where_enough_ran_and_words_where_none_does():
    legal = enumerate_space(question()).legal

    def told(count, seconds_of):
        step = len(legal) // count  # as the study takes its configurations
        found = [ok(seconds_of(legal[n * step], n), 1, 9 * GIB) for n in range(count)]
        return part(shown(study(question(), found)), "pair").find(id="importance")

    def by_sharding(one, n):
        return (1 if one.sharding == "full_shard" else 3) * (1 + n % 3 / 100)

    assert told(7, by_sharding) == []
    (bars,) = told(40, by_sharding)
    first = bars.find("li")[0]
    assert first.one("code").text == "sharding"
    share = first.one("span").text
    assert first.find("rect")[1]["width"].split(".")[0] == share.rstrip("%"), share
    assert "in the 40 configurations that were measured" in words(bars)
    (none,) = told(40, lambda one, n: 1 + n * 37 % 40 / 400)
    assert none.find("li") == []
    assert "no knob alone explains more" in words(none)


def test_what_runs_and_since_when():
    made = study(question(), [ok(1.0, 1, GIB), None], StudyState.RUNNING)
    found = status_of(made, moments(made))
    (running,) = found.running
    assert (running.id, running.since) == (2, "2026-11-21T06:01:00.000+00:00")
    assert found.latest == (1,), "the one that runs has not ended"
    assert "#2" in found.said
    assert (found.is_open, found.ended) == (True, "")
    assert (found.budgets[0].spent, found.budgets[0].most) == (1, 5)
    (unknown,) = status_of(made, Moments()).running
    assert unknown.since == "", "no event tells when it began"
    told = part(shown(made), "status")
    since = [one["data-since"] for one in told.all() if one.get("data-since")]
    assert since == ["2026-11-21T06:00:00.000+00:00", running.since]
    assert (told.one("progress")["value"], told.one("progress")["max"]) == ("1", "5")
    assert "#1 ok" in words(told), "the figures of each probe as it comes"


def test_a_worker_that_is_not_heard_of_is_told():
    made = study(question(), [ok(1.0, 1, GIB), None, None], StudyState.RUNNING)
    silence = Silence(since=datetime(2026, 11, 21, 6, 0, 30, tzinfo=UTC))
    silent = replace(moments(made), silent={2: silence})
    said = status_of(made, silent).said
    assert said.startswith("Probe #2 (its worker has not been heard of), Probe #3 are running")
    first, second = (
        words(one) for one in part(study_page(whole(made), silent), "status").find("li")[:2]
    )
    assert "was running: its worker has not been heard of for" in first
    assert "it is given up at 06:01:30 UTC" in first
    assert "is running, for" in second


def test_dry_runs_are_not_counted_as_probes():
    made = study(question(), [ok(1.0, 1, GIB)], StudyState.RUNNING)
    wanted = replace(made.probes[0].request, fidelity=Fidelity.PREDICTED)
    both = replace(made, probes=(replace(made.probes[0], id=9, request=wanted), *made.probes))
    assert status_of(both, Moments()).budgets[0].words == "1 of 4 probes, and 1 dry run"
    probes = (replace(both.probes[0], id=-1), *made.probes)
    shown_both = part(shown(replace(both, probes=probes)), "probes")
    assert "All 2 probes and dry runs" in words(shown_both)
    assert {one["id"] for one in shown_both.find("tr") if one.get("id")} == {"p1", "pd1"}
    assert {one["href"] for one in shown_both.find("a")} >= {"?probe=1", "?probe=d1"}
    more = (*both.probes, replace(made.probes[0], id=7))
    over = replace(both, limits=Limits(max_probes=1), probes=more)
    assert status_of(over, Moments()).budgets[0].words == "2 probes, and 1 dry run", "not 2 of 1"
    again = replace(made, probes=(*made.probes, replace(made.probes[0], id=7)), probes_before=1)
    assert status_of(again, Moments()).budgets[0].words == "1 of 4 probes of this request"


def test_what_is_waited_for_and_the_end():
    one = replace(study(question(), [ok(1.0, 1, GIB)], StudyState.RUNNING), reason="")
    spent = replace(one, limits=Limits(max_probes=1))
    queued = replace(one.probes[0], id=2, state=ProbeState.QUEUED, measurement=None)
    for made, expected in (
        (one, "Choosing"),
        (replace(one, state=StudyState.QUEUED), "Waiting for a worker"),
        (spent, "Checking that the best"),
        (replace(one, reason="waiting for st-1 on this machine"), "Waiting for st-1 on this"),
        (replace(one, probes=(*one.probes, queued)), "Probe #2 waits"),
    ):
        assert status_of(made, Moments()).said.startswith(expected)
    made = study(question(), [ok(1.0, 1, GIB)], reason="nothing more is worth it")
    found = status_of(made, moments(made))
    assert found.said.startswith("Done: nothing more is worth it")
    assert (found.ended, found.running) == ("2026-11-21T11:33:20.000+00:00", ())
    assert status_of(made, Moments()).ended == ""
