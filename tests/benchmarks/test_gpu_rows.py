"""Rows keep what a replay needs, and say what was predicted beside what was seen."""

import json
from dataclasses import replace

import pytest

from tuner.core.cluster import Device
from tuner.core.measurement import Emulation, Exposed, Fidelity, Measurement, Memory, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study, StudyState, Terms
from tuner.planner.knowledge import learn

GIB = 2**30


@pytest.fixture
def rows(benchmark):
    return benchmark("gpu.rows")


@pytest.fixture
def grid(benchmark):
    place = benchmark("gpu.place").Place(device=Device.CUDA, gpu="h200", title="x")
    module = benchmark("gpu.cases")
    return module.cases_of(module.Part.GRID, place)


@pytest.fixture
def tried(benchmark, rows):
    """A grid's case that took so many GiB and seconds."""

    def make(found, gib: float, seconds: float):
        count = found.case.settings.gradient_accumulation_steps
        size = int(gib * GIB)
        measurement = Measurement(
            outcome=Outcome.OK,
            memory=Memory(allocated_bytes=size, allocated_low_bytes=size, reserved_bytes=size,
                          device_bytes=size, overhead_bytes=0, by_phase={}, by_category={},
                          per_rank_bytes=(size,)),
            step_times_s={count: (seconds + 0.5,) * 3},
            emulation=Emulation(compute_s={count: (seconds, seconds + 1, seconds)},
                                exposed_s={count: Exposed(value_s=0.5, low_s=0.4, high_s=0.6)},
                                collectives={count: ()}),
            losses=(1.0,),
            wall_s=9.0,
        )  # fmt: skip
        probed = benchmark("gpu.probing").Probed(measurement=measurement)
        return rows.Tried(found=found, probed=probed, wall_s=10.0)

    return make


def test_a_row_sets_what_is_predicted_beside_what_was_seen(rows, grid, tried) -> None:
    found = rows.row_of(tried(grid[0], 30.0, 2.0), "abc")
    told = found["predicted"]["arithmetic"]
    value = told["allocated_bytes"]["value"]
    assert told["error"] == pytest.approx(value / (30 * GIB) - 1)
    assert found["predicted"]["dry_run"] is None
    assert found["computing"]["measured_s"] == 2.0
    assert 0 < found["computing"]["catalogue_s"] < told["step_time_s"]["value"]
    assert found["case_s"] == 10.0
    assert "losses" not in found["measurement"]  # of a rank alone they mean nothing


def test_what_was_not_run_says_why_and_is_predicted_all_the_same(rows, grid) -> None:
    found = rows.row_of(rows.Tried(found=grid[0], probed=None, why_not="no card"), "abc")
    assert (found["outcome"], found["detail"], found["measurement"]) == ("not_run", "no card", None)
    assert found["predicted"]["arithmetic"]["fits"] is True


def test_the_grid_can_be_replayed_as_the_probes_of_a_study(rows, grid, tried) -> None:
    kept = [tried(one, 10.0 + n, 3.0 - n) for n, one in enumerate(grid[:3])]
    text = json.dumps([rows.row_of(one, "abc") for one in kept])
    table = rows.replay_table(json.loads(text))
    assert list(table) == [one.case.settings for one in grid[:3]]
    case = grid[0].case
    probes = tuple(
        Probe(id=n, request=ProbeRequest(settings=settings, fidelity=Fidelity.EMULATED),
              state=ProbeState.DONE, measurement=measurement)
        for n, (settings, measurement) in enumerate(table.items())
    )  # fmt: skip
    study = Study(id="st", question=case.question, terms=Terms(), state=StudyState.RUNNING)
    known = learn(replace(study, probes=probes))
    assert [f.settings for f in known.fitting] == [one.case.settings for one in grid[2::-1]]
    small = Terms(memory_limit_bytes=21 * GIB // 2)
    known = learn(replace(study, probes=probes, terms=small))
    assert [f.settings for f in known.fitting] == [grid[0].case.settings]
