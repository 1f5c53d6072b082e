import json

import pytest

from tuner.core.answer import Candidate, Suggestion
from tuner.core.configuration import InactiveKnob, Settings
from tuner.core.evaluation import GIB, Guard
from tuner.core.measurement import Basis
from tuner.core.quantity import UNKNOWN, Provenance, Quantity


def quantity(value, provenance=Provenance.MEASURED):
    return Quantity(value=value, low=value / 2, high=value * 2, provenance=provenance)


def candidate(**changes):
    fields = {
        "settings": Settings(micro_batch_size=2),
        "fits": True,
        "allocated_bytes": quantity(1.0).scaled(GIB),
        "needed_bytes": quantity(1.5).scaled(GIB),
        "reserved_bytes": quantity(2.0).scaled(GIB),
        "device_bytes": quantity(3.0).scaled(GIB),
        "limit_bytes": 4 * GIB,
        "breakdown": {"parameters": GIB / 2},
        "tokens_per_s_per_gpu": quantity(100.0),
        "step_time_s": quantity(0.5),
        "guard": Guard(versions={"torch": "2.13.0"}, date="2026-01-01T00:00:00Z"),
    }
    return Candidate(**{**fields, **changes})


def suggestion(**changes):
    fields = {
        "study_id": "st-1",
        "state": "done",
        "workload": {"sequence_length": 128},
        "cluster": {"nodes": 1},
        "framework": {"name": "torch"},
        "best": candidate(),
    }
    return Suggestion(**{**fields, **changes})


MORE = {
    "dead_knobs": (InactiveKnob(knob="pp_size", why="pp_size is 1: so it is"),),
    "legal": 46,
    "predicted_to_fit": 40,
    "probes": {"ok": 3},
    "wall_s": 9.0,
    "device_s": 18.0,
    "explanation": ("Because.",),
}
Q = {"value": 1.0, "low": 0.5, "high": 2.0, "provenance": "measured"}


def test_the_json_object_is_the_promised_one():
    one = candidate()
    values = suggestion(alternatives=(one,), pareto=(one,), **MORE).as_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert list(values) == [
        "study_id", "state", "workload", "cluster", "framework", "best", "alternatives",
        "pareto", "dead_knobs", "inactive_knobs", "space", "probes", "cost", "explanation",
        "facts", "launch",
    ]  # fmt: skip
    assert values["best"] == {
        "settings": Settings(micro_batch_size=2).as_dict(),
        "provenance": "measured",
        "fits": True,
        "memory": {
            "allocated_gib": Q,
            "needed_gib": quantity(1.5).as_dict(),
            "reserved_gib": quantity(2.0).as_dict(),
            "device_gib": quantity(3.0).as_dict(),
            "limit_gib": 4.0,
            "breakdown": {"parameters": 0.5},
        },
        "tokens_per_s_per_gpu": quantity(100.0).as_dict(),
        "step_time_s": quantity(0.5).as_dict(),
        "guard": {
            "verdict": "not_checked",
            "versions": {"torch": "2.13.0"},
            "date": "2026-01-01T00:00:00Z",
            "why": "",
        },
    }
    assert values["alternatives"] == [values["best"]]
    assert values["pareto"] == [
        {
            "settings": Settings(micro_batch_size=2).as_dict(),
            "memory": {"allocated_gib": Q},
            "tokens_per_s_per_gpu": quantity(100.0).as_dict(),
        }
    ]
    assert (
        values["inactive_knobs"]
        == values["dead_knobs"]
        == [{"knob": "pp_size", "why": "pp_size is 1: so it is"}]
    )
    assert values["space"] == {"legal": 46, "predicted_to_fit": 40}
    assert values["cost"] == {"wall_s": 9.0, "gpu_s": 18.0}
    assert values["launch"] == {"argv": [], "files": {}, "script_sets": [], "beside": {}}


def test_a_fused_loss_is_told_with_what_computes_it():
    fused = candidate(settings=Settings(fused_loss=True))
    for kernel in ("liger", "chunked", ""):
        values = suggestion(best=fused, loss_kernel=kernel).as_dict()
        assert values["best"].get("loss_kernel", "") == kernel
        read = Suggestion.from_dict(values)
        assert (read.best, read.loss_kernel) == (fused, kernel)


@pytest.mark.parametrize(
    ("memory", "speed", "expected"),
    [
        (quantity(1.0), quantity(1.0), "measured"),
        (quantity(1.0, Provenance.EMULATED), quantity(1.0, Provenance.PREDICTED), "predicted"),
        (quantity(1.0, Provenance.PREDICTED), quantity(1.0), "predicted"),
        (quantity(1.0), UNKNOWN, "unknown"),
    ],
)
def test_provenance_is_the_weakest(memory, speed, expected):
    found = suggestion(best=candidate(allocated_bytes=memory, step_time_s=speed))
    assert found.provenance == found.best.provenance == expected


def test_what_was_sent_is_read_again():
    predicted = candidate(
        allocated_bytes=quantity(1.0, Provenance.PREDICTED).scaled(GIB),
        step_time_s=UNKNOWN,
        basis=Basis.DRY_RUN,
        by_phase={"backward": GIB},
    )
    whole = suggestion(
        alternatives=(candidate(), predicted),
        **MORE,
        facts=({"kind": "no_other"},),
        launch={"argv": ["a"], "files": {"b": "c"}, "script_sets": ["d=1"], "beside": {"b": ["e"]}},
    )
    assert Suggestion.from_dict(json.loads(json.dumps(whole.as_dict()))) == whole
    none = suggestion(best=None)
    assert Suggestion.from_dict(none.as_dict()) == none
