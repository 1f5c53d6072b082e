"""What is kept of a dry run."""

import json
import platform
from dataclasses import replace

import pytest

from tests.records import VERSIONS
from tests.unit.dryrun.traces import linear_moments, trace
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.workload import Workload
from tuner.dryrun import DryRun, plan_dry_runs
from tuner.dryrun.profile import LIMIT_S
from tuner.model import published_model as read


def plan():
    workload = Workload(model=read("llama-3.1-8b"), sequence_length=1024, global_batch_size=8)
    settings = parse_settings("sharding=full_shard")
    stack = framework("torch", installed=VERSIONS)
    return plan_dry_runs(workload, parse_cluster("8xh100-80gb"), stack, settings, VERSIONS)


def answers():
    depths = (request["spec"]["model"]["num_hidden_layers"] for request in plan().requests)
    traces = [trace(depth, linear_moments) for depth in depths]
    named = zip(plan().requests, traces, strict=True)
    return [{"id": request["id"], "trace": one} for request, one in named]


def test_answers_in_any_order_become_a_profile():
    found = DryRun.from_answers(plan(), answers()[::-1], "2026-01-01T00:00:00+00:00")
    assert found.error == ""
    assert found.profile.layers == 32
    assert found.profile is found.profile
    assert found.versions == {"torch": "2.13.0"}


def test_a_model_that_was_run_whole_is_its_own_profile():
    low, high = (request["id"] for request in plan().requests)
    whole = trace(32, linear_moments)
    found = DryRun.from_answers(plan(), [{"id": low, "trace": None}, {"id": high, "trace": whole}])
    assert (found.error, found.depths, found.profile.depths) == ("", (32,), (32,))


def test_a_record_survives_json():
    found = DryRun.from_answers(plan(), answers(), "2026-01-01T00:00:00+00:00")
    again = DryRun.from_dict(json.loads(json.dumps(found.as_dict())))
    assert again == found
    assert again.profile.peak(3, 2) == found.profile.peak(3, 2)


def failed(**fields):
    error = {"type": "Error", "message": "", "rule": "", "operator": "", "phase": "", **fields}
    return [answers()[0], {"id": plan().requests[1]["id"], "error": error}]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (failed(message="too\nmany words"), "Error: too many words"),
        (failed(operator="aten.nonzero", phase="forward"), "Error (at aten.nonzero in forward)"),
        (failed(type="TimeLimit", message="took 60 s"), "TimeLimit: took 60 s"),
        (answers()[:1], "Crashed: no answer came"),
    ],
)
def test_what_went_wrong_is_kept(given, error):
    found = DryRun.from_answers(plan(), given)
    assert (found.error, found.profile, found.traces) == (error, None, ())
    assert DryRun.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_traces_that_cannot_be_combined_are_an_error():
    wrong = answers()
    wrong[1]["trace"] = trace(9, linear_moments) | {"layers": 4}
    found = DryRun.from_answers(plan(), wrong)
    assert found.error.startswith("the dry runs cannot be combined")
    assert found.profile is None
    assert found.is_kept


def test_only_what_the_stack_refused_is_kept():
    for fields, is_kept in [
        ({"type": "NotImplementedError", "operator": "aten.odd"}, True),
        ({"type": "ValueError", "rule": "stack"}, True),
        (
            {"type": "TimeLimit", "rule": "time_limit", "operator": "aten.odd", "limit_s": LIMIT_S},
            True,
        ),
        ({"type": "TimeLimit", "rule": "time_limit", "operator": "aten.odd"}, False),
        ({"type": "Crashed", "operator": "aten.odd"}, False),
        ({"type": "MemoryError"}, False),
        ({"type": "OSError", "message": "no space left on device"}, False),
        ({"type": "RuntimeError", "message": "can't start new thread"}, False),
        ({"type": "none", "message": "no answer came"}, False),
    ]:
        found = DryRun.from_answers(plan(), failed(**fields))
        assert found.error.startswith(fields["type"])
        assert (found.is_kept, found.holds_here) == (is_kept, is_kept)


def test_what_took_too_long_holds_for_its_machine_and_limit(monkeypatch):
    late = failed(type="TimeLimit", rule="time_limit", limit_s=LIMIT_S)
    found = DryRun.from_dict(DryRun.from_answers(plan(), late).as_dict())
    assert found.is_kept
    less, more = (replace(found, limit_s=LIMIT_S * x) for x in (0.5, 2.0))
    assert (less.holds_here, found.holds_here, more.holds_here) == (False, True, True)
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert not found.holds_here


def test_a_record_of_before_refusals_were_told_apart_is_read():
    """Its error may have been an accident."""
    values = DryRun.from_answers(plan(), failed(rule="stack")).as_dict()
    for name in ("is_refusal", "limit_s", "machine"):
        del values[name]
    assert not DryRun.from_dict(values).holds_here
