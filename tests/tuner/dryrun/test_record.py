"""What is kept of a dry run."""

import json
from typing import Any

import pytest

from tests.tuner.dryrun.traces import linear_moments, trace
from tuner.catalog.models import read
from tuner.cluster import parse_cluster
from tuner.dryrun import DryRun, DryRunPlan, plan_dry_runs
from tuner.framework import framework
from tuner.settings import parse_settings
from tuner.workload import Workload

VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}


def plan() -> DryRunPlan:
    workload = Workload(model=read("llama-3.1-8b"), sequence_length=1024, global_batch_size=8)
    settings = parse_settings("sharding=full_shard")
    stack = framework("torch", installed=VERSIONS)
    return plan_dry_runs(workload, parse_cluster("8xh100-80gb"), stack, settings, VERSIONS)


def answers() -> list[dict[str, Any]]:
    depths = (request["spec"]["model"]["num_hidden_layers"] for request in plan().requests)
    traces = [trace(depth, linear_moments) for depth in depths]
    named = zip(plan().requests, traces, strict=True)
    return [{"id": request["id"], "trace": one} for request, one in named]


def test_answers_in_any_order_become_a_profile() -> None:
    found = DryRun.from_answers(plan(), answers()[::-1], "2026-01-01T00:00:00+00:00")
    assert found.error == ""
    assert found.profile is not None
    assert found.profile.layers == 32
    assert found.profile is found.profile
    assert found.versions == {"torch": "2.13.0"}


def test_a_record_survives_json() -> None:
    found = DryRun.from_answers(plan(), answers(), "2026-01-01T00:00:00+00:00")
    again = DryRun.from_dict(json.loads(json.dumps(found.as_dict())))
    assert again == found
    assert again.profile is not None
    assert found.profile is not None
    assert again.profile.as_dict() == found.profile.as_dict()


def test_a_record_of_another_format_is_refused() -> None:
    values = DryRun.from_answers(plan(), answers()).as_dict()
    with pytest.raises(ValueError, match="format"):
        DryRun.from_dict({**values, "format": 99})


def failed(**fields: str) -> list[dict[str, Any]]:
    error = {"type": "Error", "message": "", "rule": "", "operator": "", "phase": "", **fields}
    return [answers()[0], {"id": plan().requests[1]["id"], "error": error}]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (failed(message="too\nmany words"), "Error: too many words"),
        (failed(operator="aten.nonzero", phase="forward"), "Error (at aten.nonzero in forward)"),
        (failed(type="TimeLimit", message="took 60 s"), "TimeLimit: took 60 s"),
        (answers()[:1], "none: no answer came"),
    ],
)
def test_what_went_wrong_is_kept(given: list[dict[str, Any]], error: str) -> None:
    found = DryRun.from_answers(plan(), given)
    assert (found.error, found.profile, found.traces) == (error, None, ())
    assert DryRun.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_traces_that_cannot_be_combined_are_an_error() -> None:
    wrong = answers()
    wrong[1]["trace"] = trace(9, linear_moments) | {"layers": 4}
    found = DryRun.from_answers(plan(), wrong)
    assert found.error.startswith("the dry runs cannot be combined")
    assert found.profile is None
