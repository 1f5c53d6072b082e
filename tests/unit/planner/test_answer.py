from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.configuration import parse_settings
from tuner.core.study import StudyState
from tuner.explain.known import answer
from tuner.planner.knowledge import learn
from tuner.planner.step_times import fair

GIB = 2**30
DDP = parse_settings("sharding=ddp,micro_batch_size=4")
FULL = parse_settings("sharding=full_shard,micro_batch_size=4")


def test_a_candidate_has_the_measured_quantities(lab: SimpleNamespace) -> None:
    steps = [0.8, 0.9, 0.9, 0.9, 1.0, 1.0, 1.1, 1.1, 1.1, 1.2]
    probe = lab.probe(1, DDP, lab.ok({1: steps}, 2 * GIB, overhead=GIB // 2))
    best = answer(lab.study(probes=[probe])).best
    assert best.settings == DDP
    assert best.provenance == "measured"
    tokens = 8 * 128 / 2  # of the global batch, by device
    speed, step = best.tokens_per_s_per_gpu, best.step_time_s
    assert 0.89 < step.low < 0.9 < step.value == 1.0 < 1.1 < step.high < 1.11
    assert speed.value == tokens
    assert speed.low == pytest.approx(tokens / step.high)
    assert speed.high == pytest.approx(tokens / step.low)
    assert best.allocated_gib.value == 2
    assert best.device_gib.value == 2.5
    assert best.limit_gib == 4
    assert best.breakdown_gib == {"parameters": 0.5, "gradients": 0.5}
    assert best.guard.as_dict() == {
        "verdict": "not_checked",
        "versions": {"torch": "2.13.0"},
        "date": "2026-01-01T00:00:00Z",
        "why": "the version of accelerate and transformers is not known",
    }


def test_overhead_counts_and_reserved_memory_does_not(lab: SimpleNamespace) -> None:
    probe = lab.probe(1, DDP, lab.ok(1.0, 2 * GIB, overhead=GIB))
    assert answer(lab.study(probes=[probe], memory_limit_bytes=3 * GIB)).best is not None
    assert answer(lab.study(probes=[probe], memory_limit_bytes=3 * GIB - 1)).best is None


def test_the_default_limit_leaves_headroom(lab: SimpleNamespace) -> None:
    memory = lab.question().cluster.gpu.memory_bytes
    probe = lab.probe(1, DDP, lab.ok(1.0, int(memory * 0.96)))
    assert answer(lab.study(probes=[probe], memory_limit_bytes=None)).best is None
    assert answer(lab.study(probes=[probe], memory_limit_bytes=None, headroom=0.03)).best


def test_a_whole_study(lab: SimpleNamespace) -> None:
    study, _ = lab.Machine(lab.question(), noise=0.02).play(lab.study(max_probes=14, tolerance=0.0))
    found = answer(replace(study, state=StudyState.DONE))
    assert found.state == "done"
    assert found.provenance == "measured"
    assert len(found.alternatives) == 5
    assert found.best not in found.alternatives
    times = [one.step_time_s.value for one in found.alternatives]
    assert times == sorted(times)
    assert found.legal == 46
    assert found.predicted_to_fit == 46
    assert found.probes == {"ok": 14}
    assert found.device_s == pytest.approx(14 * 4.0)
    speeds = [p.tokens_per_s_per_gpu.value for p in found.pareto]
    memory = [p.allocated_gib.value for p in found.pareto]
    assert speeds == sorted(speeds, reverse=True)
    assert memory == sorted(memory, reverse=True)


def test_what_is_predicted_to_fit_follows_the_limit_and_the_probes(lab: SimpleNamespace) -> None:
    tight = lab.study(memory_limit_bytes=200 * lab.MIB)
    before = answer(tight).predicted_to_fit
    assert 0 < before < 46
    oom = lab.probe(1, FULL, lab.oom(900 * lab.MIB, 200 * lab.MIB), limit=200 * lab.MIB)
    assert answer(replace(tight, probes=(oom,))).predicted_to_fit < before


def test_probes_are_counted_by_outcome(lab: SimpleNamespace) -> None:
    probes = [
        lab.probe(1, DDP, lab.ok(1.0, GIB)),
        lab.probe(2, FULL, lab.oom(5 * GIB, 4 * GIB)),
        lab.probe(3, DDP, lab.ok(1.0, GIB), repetition=1),
    ]
    assert answer(lab.study(probes=probes)).probes == {"ok": 2, "oom": 1}


def test_times_are_told_as_of_what_was_chosen_for_them(lab: SimpleNamespace) -> None:
    probes = [
        lab.probe(n, one, lab.ok(1.0 + 0.005 * n, GIB)) for n, one in enumerate((DDP, FULL), 1)
    ]
    found, known = answer(lab.study(probes=probes)), learn(lab.study(probes=probes))
    for one in (found.best, *found.alternatives, *found.pareto):
        assert one.step_time_s == fair(known)[one.settings].step_time_s
        assert one.step_time_s != known.findings[one.settings].step_time_s
