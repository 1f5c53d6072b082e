"""A replay reveals a row only when it is probed, and predicts from what it may know."""

from dataclasses import replace
from math import isinf, log

import numpy as np
import pytest

from tuner.core.framework import Framework, FrameworkName
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import (
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
    Terms,
)
from tuner.cost.constants import default_costs
from tuner.planner.similar import past_of
from tuner.search.trials import Result


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


def test_a_search_that_ended_keeps_its_regret(replay, case) -> None:
    search = replay.Replay(case, length=5)
    assert search.curve(2) == [1.0, 1.0]
    search.probe(next(i for i, run in enumerate(case.runs) if run.ok))
    assert search.curve(4) == search.regrets * 4


def test_rows_of_another_global_batch_are_left_out(replay, rows) -> None:
    other = replace(rows[0], workload=replace(rows[0].workload, global_batch_size=512))
    found = replay.workloads([*rows, other], least=5)
    assert {run.workload.global_batch_size for run in found["8B, 8 GPUs"]} == {256}
    assert len(found["8B, 8 GPUs"]) == len(rows)


def test_workloads_of_too_few_successes_are_left_out(replay, rows) -> None:
    ran = sum(run.ok for run in rows)
    assert replay.workloads(rows, least=ran)
    assert not replay.workloads(rows, least=ran + 1)


def test_memory_is_told_as_far_off_as_the_first_stage_is(replay, rows, case) -> None:
    index = next(i for i, run in enumerate(case.runs) if run.memory_gib)
    doubled = [replace(r, memory_gib=2 * r.memory_gib) if r.memory_gib else r for r in rows]
    other = replay.case_of("w", doubled, default_costs(), rules=True)
    assert other.need_off[index] - case.need_off[index] == pytest.approx(log(2))
    need, told = case.trial(index).need_bytes, other.trial(index).need_bytes
    assert told == pytest.approx(2 * need)
    assert need == pytest.approx(np.exp(case.prior.log_need[index] + case.need_off[index]))


def test_what_the_rules_refuse_is_not_legal_where_they_hold(replay, rows, case) -> None:
    assert not case.legal.all()
    assert not any(run.ok for run, legal in zip(case.runs, case.legal, strict=True) if not legal)
    assert replay.case_of("w", rows, default_costs(), rules=False).legal.all()


def test_without_memory_figures_everything_is_taken_to_fit(replay, benchmark) -> None:
    runs = benchmark("sweep").vtrain_runs()
    own = [run for run in runs if run.name == runs[0].name]
    case = replay.case_of("w", own, default_costs(), rules=False)
    assert isinf(case.prior.log_limit)
    assert case.trial(0).need_bytes is None


def test_a_part_is_of_the_same_candidates(replay, case) -> None:
    rows = np.array([i for i, run in enumerate(case.runs) if run.ok][:3])
    part = case.take(rows)
    assert part.prior.settings == [case.prior.settings[i] for i in rows]
    assert part.prior.log_seconds.tolist() == case.prior.log_seconds[rows].tolist()
    assert part.best_tokens_per_s == max(case.runs[i].tokens_per_s for i in rows)


def test_a_past_holds_what_other_workloads_are_off_by(replay, case) -> None:
    past = replay.past_of([case, case])
    n = past.size // 2
    assert past.study.tolist() == [0.0] * n + [1.0] * n
    legal_and_ran = [i for i, run in enumerate(case.runs) if run.ok and case.legal[i]]
    assert int(past.ran[:n].sum()) == len(legal_and_ran)
    assert np.isnan(past.log_excess[:n]).tolist() == (past.ran[:n] == 0).tolist()
    off = log(case.runs[legal_and_ran[0]].step_time_s) - case.prior.log_seconds[legal_and_ran[0]]
    assert past.log_excess[:n][past.ran[:n] == 1][0] == pytest.approx(off)


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
    study = Study(id="st-0", question=question, terms=Terms(), state=StudyState.DONE)
    product = past_of(replace(study, past=(replace(study, probes=tuple(probes)),)))
    assert product is not None
    replayed = replay.past_of([case])
    assert (replayed.ran == 0).any()
    assert replayed.size < len(probes)  # what ran out of memory is left out
    for name in replayed.__slots__:
        assert getattr(replayed, name) == pytest.approx(getattr(product, name), nan_ok=True), name
