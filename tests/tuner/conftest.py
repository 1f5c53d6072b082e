"""Dry runs made by hand."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tuner.dryrun import DryRun, plan_dry_runs
from tuner.settings import Settings
from tuner.study import Question

VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
"""Of the packages that the dry runs are said to have been made with."""


def trace(request: Mapping[str, Any], one_bytes: float, more_bytes: float) -> dict[str, Any]:
    """What the dry-run program says of a model whose peak is the same at every depth."""
    peaks = [one_bytes + more_bytes * (size - 1) for size in request["micro_batch_sizes"]]
    line = {"bytes": peaks, "categories": {"activations": peaks}}
    call = {"op": "all_gather", "axis": "dp", "phase": "forward", "overlap": "prefetched"}
    steps = [
        {
            "accumulation": count,
            "segments": [
                {"micro_batch": 0, "phase": "backward", "part": "before", "lines": [line]},
                {"micro_batch": 0, "phase": "optimizer", "part": "after", "lines": [line]},
            ],
            "collectives": [{**call, "count": count, "bytes": [64.0 * count for _ in peaks]}],
        }
        for count in request["accumulation_counts"]
    ]
    return {
        "format": 2,
        "device": request["spec"]["device"],
        "layers": request["spec"]["model"]["num_hidden_layers"],
        "micro_batch_sizes": request["micro_batch_sizes"],
        "steps": steps,
        "block_bytes": 0,
        "notes": [],
        "versions": VERSIONS,
        "seconds": 1.0,
    }


def make_dry_run(
    question: Question,
    settings: Settings,
    one_bytes: float = 2.0**30,
    more_bytes: float = 0.0,
    *,
    error: dict[str, str] | None = None,
    versions: dict[str, str] | None = None,
) -> DryRun:
    """A dry run of the settings' class: bytes at one sequence, and for each one more."""
    plan = plan_dry_runs(
        question.workload, question.cluster, question.framework, settings, versions or VERSIONS
    )
    answers = [
        {"id": request["id"], "error": error}
        if error
        else {"id": request["id"], "trace": trace(request, one_bytes, more_bytes)}
        for request in plan.requests
    ]
    return DryRun.from_answers(plan, answers, "2026-01-01T00:00:00+00:00")


@pytest.fixture(scope="session")
def dry_run_of() -> Callable[..., DryRun]:
    """Makes dry runs; see :func:`make_dry_run`."""
    return make_dry_run
