"""What is answered, in the form that programs read."""

from dataclasses import replace
from typing import Any

import pytest

from tuner.client.cases import Policy
from tuner.core.quantity import UNKNOWN
from tuner.cost.memory.device import WORKSPACE_BYTES, WORKSPACES
from tuner.cost.prediction import Prediction, predict

QUANTITY = {"value", "low", "high", "provenance"}
ADDED = {
    "fits",
    "memory",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "provenance",
    "reason",
    "trains_wrongly",
    "notes",
    "canonical",
}
MEMORY = {
    "allocated_gib",
    "reserved_gib",
    "device_gib",
    "limit_gib",
    "breakdown",
    "by_phase",
    "context_gib",
    "communicator_gib",
    "basis",
}
UNCOVERED = {"cluster": "8xb300"}


@pytest.mark.parametrize("changes", [{}, UNCOVERED])
def test_the_form_is_the_same_whatever_is_known(lab: Any, desk: Any, changes: Any) -> None:
    case = lab.case(id="mine", **changes)
    [answer] = desk.answer(case)
    assert {name: answer[name] for name in case} == case
    assert set(answer) == set(case) | ADDED
    assert set(answer["memory"]) == MEMORY
    for name in ("allocated_gib", "reserved_gib", "device_gib"):
        assert set(answer["memory"][name]) == QUANTITY
    assert set(answer["step_time_s"]) == set(answer["tokens_per_s_per_gpu"]) == QUANTITY


def test_a_prediction(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case())
    memory = answer["memory"]
    assert answer["fits"] is True
    assert answer["provenance"] == "predicted"
    assert answer["reason"] == ""
    assert memory["basis"] == "arithmetic"
    assert sum(memory["breakdown"].values()) == pytest.approx(memory["allocated_gib"]["value"])
    assert memory["limit_gib"] == pytest.approx(0.95 * 80, rel=0.01)
    assert answer["canonical"]["gradient_accumulation_steps"] == 2


def test_memory_that_is_not_covered_is_unknown_with_the_reason(
    lab: Any, desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted(*given: Any, **options: Any) -> Prediction:
        return replace(predict(*given, **options), needed_bytes=UNKNOWN, fits=False, why="odd")

    monkeypatch.setattr("tuner.client.cases.answers.predict", predicted)
    [answer] = desk.answer(lab.case())
    assert (answer["fits"], answer["provenance"], answer["reason"]) == (None, "unknown", "odd")
    assert answer["memory"]["limit_gib"] is None
    assert answer["canonical"]["gradient_accumulation_steps"] == 2


def test_a_dry_run_decides_memory(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case(), policy=Policy.ALL)
    memory = answer["memory"]
    assert memory["basis"] == "dry_run"
    beside = 2 * WORKSPACE_BYTES / 2**30
    total = pytest.approx(2 / 1024 + beside)  # a MiB a sequence
    assert memory["allocated_gib"]["value"] == total
    assert memory["breakdown"] == {
        "activations": pytest.approx(2 / 1024),
        WORKSPACES: pytest.approx(beside),
    }
    assert memory["by_phase"] == dict.fromkeys(("forward", "loss", "backward", "optimizer"), total)


@pytest.mark.parametrize(
    ("changes", "fits"), [({"memory_limit_gib": 0.001}, False), ({"memory_limit_gib": 60}, True)]
)
def test_the_limit_decides(lab: Any, desk: Any, changes: Any, fits: bool) -> None:
    [answer] = desk.answer(lab.case(**changes))
    assert answer["fits"] is fits
    assert bool(answer["reason"]) is not fits
    assert answer["memory"]["limit_gib"] == pytest.approx(changes["memory_limit_gib"])


@pytest.mark.parametrize("headroom", [0, 0.5])
def test_headroom_is_left_free(lab: Any, desk: Any, headroom: float) -> None:
    whole, less = desk.answer(lab.case(headroom=0), lab.case(headroom=headroom))
    limits = [answer["memory"]["limit_gib"] for answer in (whole, less)]
    assert limits[1] == pytest.approx(limits[0] * (1 - headroom))


def test_a_gpu_without_rates_has_memory_and_no_speed(lab: Any, desk: Any) -> None:
    cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "mine", "memory_bytes": 2**36}}
    [answer] = desk.answer(lab.case(cluster=cluster))
    assert answer["fits"] is True
    assert answer["memory"]["allocated_gib"]["provenance"] == "predicted"
    assert answer["step_time_s"] == dict.fromkeys(QUANTITY - {"provenance"}) | {
        "provenance": "unknown"
    }
    assert answer["provenance"] == "unknown"
    assert "mine" in answer["reason"]


def test_cpu_ranks_have_memory_and_no_speed(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case(cluster="cpu:2"))
    assert answer["memory"]["allocated_gib"]["value"] > 0
    assert answer["step_time_s"]["provenance"] == "unknown"
    assert answer["provenance"] == "predicted"
    assert answer["reason"]


def test_what_is_not_covered_is_unknown_with_the_reason(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case(**UNCOVERED))
    assert answer["provenance"] == "unknown"
    assert "b300" in answer["reason"]
    assert answer["fits"] is None
    assert answer["memory"]["allocated_gib"]["value"] is None
    assert answer["canonical"] is None
    assert "error" not in answer


def test_a_failed_dry_run_is_unknown_with_the_reason(lab: Any) -> None:
    desk = lab.desk(runner=lab.runner(fails="aten::nonzero"))
    [answer] = desk.answer(lab.case(), policy=Policy.AUTO)
    assert (answer["provenance"], answer["fits"]) == ("unknown", None)
    assert "aten::nonzero" in answer["reason"]
    assert answer["step_time_s"]["value"] is None
    assert answer["canonical"]["sharding"] == "full_shard"


def test_notes_tell_of_dead_knobs(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case(cluster="a100-80gb"))
    assert answer["settings"]["sharding"] == "full_shard"
    assert answer["canonical"]["sharding"] == "ddp"
    assert len(answer["notes"]) == 1
    assert "full_shard" in answer["notes"][0]


def test_notes_of_a_dry_run_are_told(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case(), policy=Policy.ALL)
    assert answer["notes"] == ["of the dry run: it is made up"]


def test_what_does_not_fit_at_an_unknown_speed_says_both(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case(cluster="cpu:2", memory_limit_gib=0.0001))
    assert answer["fits"] is False
    assert "needs" in answer["reason"]
    assert "CPU" in answer["reason"]


def test_a_script_may_need_more(lab: Any, desk: Any) -> None:
    plain, keeping = desk.answer(lab.case(), lab.case(script={"keeps_outputs": True}))
    sizes = [answer["memory"]["allocated_gib"]["value"] for answer in (plain, keeping)]
    assert sizes[0] < sizes[1]


def test_an_error_is_all_that_is_added(lab: Any, desk: Any) -> None:
    case = lab.case(settings={"tp_size": 3})
    [answer] = desk.answer(case)
    assert {name: answer[name] for name in case} == case
    assert set(answer) - set(case) == {"error"}
    assert set(answer["error"]) == {"field", "message", "errors"}
    assert answer["error"]["field"] == "settings.tp_size"
    assert answer["error"]["message"].startswith("got 3; must divide heads (4)")


def test_a_limit_is_echoed_as_it_was_given(lab: Any, desk: Any) -> None:
    [answer] = desk.answer(lab.case(memory_limit_gib=79.99999))
    assert answer["memory"]["limit_gib"] == answer["memory_limit_gib"] == 79.99999


def test_padding_of_experts_is_told(lab: Any, desk: Any) -> None:
    mixtral = {"model": "mixtral-8x7b", "sequence_length": 2048, "global_batch_size": 512}
    [answer] = desk.answer(lab.case(workload=mixtral, cluster="8x8xh100-80gb"))
    (note,) = [note for note in answer["notes"] if "packed experts" in note]
    assert "each of the 64 ranks that shard has room for 1 of 8, which is 8 times" in note
    [alone] = desk.answer(lab.case(workload=mixtral, cluster="8xh100-80gb"))
    assert not any("packed experts" in note for note in alone["notes"])
