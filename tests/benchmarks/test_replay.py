"""A replay reveals a row only when it is probed, and predicts from what it may know."""

from dataclasses import replace

import pytest

from tuner.core.framework import Framework, FrameworkName
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import (
    Limits,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
)
from tuner.cost.constants import default_costs
from tuner.planner.similar import past_of
from tuner.search.trials import Result

pytestmark = pytest.mark.long


@pytest.fixture
def replay(benchmark):
    return benchmark("replay")


@pytest.fixture
def rows(benchmark):
    runs = benchmark("sweep").nanotron_runs()
    return [run for run in runs if run.name == "8B, 8 GPUs"]


@pytest.fixture
def case(replay, rows):
    return replay.case_of("8B, 8 GPUs", rows, default_costs(), rules=True)


def test_candidates_are_the_distinct_settings(replay, rows) -> None:
    doubled = [*rows, replace(rows[0], step_time_s=1e-3, ok=True)]
    case = replay.case_of("w", doubled, default_costs(), rules=True)
    assert len(case.runs) == len(set(case.prior.settings)) == len({run.settings for run in rows})
    assert case.runs[0] == rows[0]


def test_the_best_is_the_best_of_all_rows_of_a_workload(replay, rows) -> None:
    fast = replace(rows[0], step_time_s=1e-3, ok=True)
    case = replay.case_of("w", [*rows, fast], default_costs(), rules=True)
    assert case.best_tokens_per_s == fast.tokens_per_s


def test_a_probe_reveals_its_row_and_costs_one(replay, case) -> None:
    search = replay.Replay(case, length=3)
    failed = next(i for i, run in enumerate(case.runs) if not run.ok)
    best = max(
        (i for i, r in enumerate(case.runs) if r.ok), key=lambda i: case.runs[i].tokens_per_s
    )
    assert search.probe(failed).result is Result.FAILED
    assert search.regrets == [1.0]
    assert search.probe(best).seconds == case.runs[best].step_time_s
    assert search.regrets == pytest.approx([1.0, 0.0])
    other = next(i for i in range(len(case.runs)) if i not in (failed, best))
    search.probe(other)
    assert search.regrets[-1] == pytest.approx(0.0)
    assert not search.going


def test_nothing_is_probed_twice_or_beyond_the_length(replay, case) -> None:
    search = replay.Replay(case, length=2)
    search.probe(0)
    with pytest.raises(ValueError, match="cannot be probed"):
        search.probe(0)
    search.probe(1)
    with pytest.raises(ValueError, match="cannot be probed"):
        search.probe(2)


def test_what_the_rules_refuse_is_not_legal_where_they_hold(replay, rows, case) -> None:
    assert not case.legal.all()
    assert not any(run.ok for run, legal in zip(case.runs, case.legal, strict=True) if not legal)
    assert replay.case_of("w", rows, default_costs(), rules=False).legal.all()


def test_a_past_is_what_the_product_makes_of_such_a_study(benchmark, replay) -> None:
    """One that probed all that is legal, of which what is too large ran out of memory."""
    rows = [run for run in benchmark("sweep").nanotron_runs() if run.name == "1B, 16 GPUs"]
    case = replay.case_of("1B, 16 GPUs", rows, default_costs(), rules=True)
    first = case.runs[0]
    question = Question(
        workload=first.workload,
        cluster=first.cluster,
        framework=Framework(name=FrameworkName.NANOTRON),
    )
    probes = []
    for place, run in enumerate(case.runs):
        if not case.legal[place]:
            continue
        found = Measurement(outcome=Outcome.CRASHED)
        if run.ok:
            count = run.settings.gradient_accumulation_steps
            found = Measurement(outcome=Outcome.OK, step_times_s={count: (run.step_time_s,)})
        elif case.prior.log_need[place] > case.prior.log_limit:
            found = Measurement(outcome=Outcome.OOM)
        request = ProbeRequest(settings=run.settings, fidelity=Fidelity.MEASURED)
        probes.append(Probe(id=place, request=request, state=ProbeState.DONE, measurement=found))
    study = Study(id="st-0", question=question, limits=Limits(), state=StudyState.DONE)
    product = past_of(replace(study, past=(replace(study, probes=tuple(probes)),)))
    assert product is not None
    replayed = replay.past_of([case])
    assert (replayed.ran == 0).any()
    assert replayed.size < len(probes)  # what ran out of memory is left out
    for name in replayed.__slots__:
        assert getattr(replayed, name) == pytest.approx(getattr(product, name), nan_ok=True), name
