"""The planner is timed on a study that goes on as a worker's does."""

import pytest

from tuner.core.measurement import Outcome


@pytest.fixture
def speed(benchmark, monkeypatch):
    module = benchmark("plan_speed")
    monkeypatch.setattr(module, "CALLS", 1)
    monkeypatch.setattr(module, "PROBES", 12)
    return module


def test_its_space_is_as_large_as_is_said(speed) -> None:
    assert len(speed.enumerate_space(speed.question()).legal) > 5000


def test_each_call_has_one_probe_more(speed, monkeypatch) -> None:
    seen = []
    real = speed.next_probe

    def next_probe(study):
        seen.append(len(study.probes))
        return real(study)

    monkeypatch.setattr(speed, "next_probe", next_probe)
    machine = speed.Machine(speed.question())
    asked = list(speed.calls(machine))
    assert seen == [12, 13]
    for call in asked:
        call()
    assert seen == [12, 13, 12, 13]
    outcomes = {p.measurement.outcome for p in speed.study_with_probes(machine).probes}
    assert outcomes == {Outcome.OK, Outcome.OOM}


def test_what_is_timed_first_finds_no_predictions(speed) -> None:
    found = speed._line("one", 0, [lambda: None] * 3)
    assert found["calls"] == 2
    assert speed.prior._prior.cache_info().currsize == 0
    assert speed.forecast._by_arithmetic.cache_info().currsize == 0
    assert found["settings"] > 5000
