"""A study's answer as its page shows it."""

import json
from dataclasses import replace

from api.pages.answer import ShownAnswer, answer_of
from tests.unit.pages.made import GIB, ok, oom, question, study
from tuner.client.launch import with_launch
from tuner.core.evaluation import Guard
from tuner.core.measurement import Fidelity
from tuner.core.study import Study, StudyState, Terms
from tuner.explain.known import best_known


def answer(made: Study, needed_gib: float | None = None) -> ShownAnswer:
    found = best_known(made)
    return answer_of(made, found and with_launch(found, made.question), needed_gib)


def test_what_to_run() -> None:
    found = answer(study(question(), [ok(2.0, 1, 20 * GIB), ok(1.0, 1, 30 * GIB)]), 30.25)
    assert (found.title, found.note, found.why_none) == ("Run this", "", "")
    assert found.best is not None
    assert found.per == "GPU"
    assert found.share == 30.25 / 76
    assert dict(found.inactive) == {"pp_size": "1"}
    assert {"sharding", "tp_size", "micro_batch_size"} <= dict(found.active).keys()


def test_what_to_copy() -> None:
    found = answer(study(question(tp_size=[1]), [ok(2.0, 1, 20 * GIB)]))
    assert found.best is not None
    tabs = {tab.id: tab for tab in found.tabs}
    files = ["accelerate", "trainer", "trainer-flags", "torch", "torchrun", "torchtitan"]
    assert list(tabs) == [*files, "sbatch", "kubernetes", "settings", "launch"]
    assert tabs["accelerate"].about == "accelerate.yaml"
    assert tabs["accelerate"].download == "/tune/st-0123456789ab/export/accelerate"
    assert "num_processes: 8" in tabs["accelerate"].text
    assert json.loads(tabs["settings"].text) == found.best.settings.as_dict()
    assert tabs["launch"].text.startswith("torchrun --standalone --nproc-per-node 8")
    assert [name for name, _ in found.cannot] == ["nanotron", "deepspeed"]


def test_a_file_that_cannot_say_the_settings_is_told_with_the_reason() -> None:
    found = answer(study(question(tp_size=[2]), [ok(2.0, 1, 20 * GIB)]))
    anything = ["torch", "torchrun", "sbatch", "kubernetes"]
    assert [tab.id for tab in found.tabs] == [*anything, "settings", "launch"]
    assert "tp_size=2" in dict(found.cannot)["accelerate"]


def test_while_it_is_open_something_better_may_come() -> None:
    found = answer(study(question(), [ok(2.0, 1, 20 * GIB), None], StudyState.RUNNING))
    assert found.title == "Best so far"
    assert "not at its end" in found.note


def test_what_is_predicted_is_not_dressed_as_measured() -> None:
    made = study(question(), [oom(), oom()])
    found = answer(made)
    assert found.title == "Predicted"
    assert "What is suggested is predicted." in found.why_none
    opened = answer_of(replace(made, state=StudyState.RUNNING), best_known(made), None)
    assert opened.title == "Predicted"
    assert opened.note == "This is predicted: nothing that fits was measured yet."
    assert opened.why_none == ""


def test_nothing_fits() -> None:
    terms = Terms(fidelity=Fidelity.PREDICTED, memory_limit_bytes=2**20)
    found = answer(study(question(), [], terms=terms))
    assert (found.title, found.best, found.tabs) == ("No answer", None, ())
    assert found.why_none.startswith("nothing fits")
    assert found.share is None


def test_nothing_is_known_yet() -> None:
    terms = Terms(fidelity=Fidelity.PREDICTED)
    made = study(question(), [], StudyState.QUEUED, terms=terms)
    found = answer_of(made, None, None)
    assert found.title == "Nothing is known yet"
    assert "first dry run" in found.why_none


def test_the_verdict_of_the_guard_is_told_as_it_is() -> None:
    made = study(question(), [ok(2.0, 1, 20 * GIB)])
    suggestion = best_known(made)
    assert suggestion is not None
    assert suggestion.best is not None
    said = {}
    for verdict, why in (("passed", ""), ("not_checked", "no twin"), ("failed", "loss differs")):
        best = replace(suggestion.best, guard=Guard(verdict=verdict, why=why))
        found = answer_of(made, replace(suggestion, best=best), None)
        said[found.guard_mark] = found.guard
    assert said == {
        "passed": "a small replica of this configuration trains what one process trains",
        "unknown": "not checked: no twin",
        "failed": "failed: loss differs",
    }
