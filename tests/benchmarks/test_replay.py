"""A replay reveals a row only when it is probed, and predicts from what it may know."""

from dataclasses import replace

import pytest

from tuner.core.framework import Framework, FrameworkName
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Question, Study, StudyState
from tuner.cost.constants import experts_of
from tuner.planner.similar import past_of

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
    return replay.case_of("8B, 8 GPUs", rows, experts_of(FrameworkName.NANOTRON), rules=True)


def test_a_past_is_what_the_product_makes_of_such_a_study(benchmark, replay):
    """One that probed all that is legal, of which what is too large ran out of memory."""
    rows = [run for run in benchmark("sweep").nanotron_runs() if run.name == "1B, 16 GPUs"]
    case = replay.case_of("1B, 16 GPUs", rows, experts_of(FrameworkName.NANOTRON), rules=True)
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
    product = past_of((replace(study, probes=tuple(probes)),), study.calibration)
    assert product is not None
    replayed = replay.past_of([case])
    assert (replayed.ran == 0).any()
    assert replayed.size < len(probes)  # what ran out of memory is left out
    for name in replayed.__slots__:
        assert getattr(replayed, name) == pytest.approx(getattr(product, name), nan_ok=True), name
