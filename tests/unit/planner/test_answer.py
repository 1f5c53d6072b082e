"""Answers of studies to be measured, before and after probes, and of scripts."""

from dataclasses import replace

import pytest

from tests.models import TINY
from tests.questions import question_about
from tests.unit.made import ok, study_of
from tuner.core.configuration import Sharding, parse_settings
from tuner.core.measurement import Basis, Fidelity
from tuner.core.packing import Packing
from tuner.core.quantity import Provenance
from tuner.core.script import read_script
from tuner.core.study import StudyState
from tuner.explain.known import answer
from tuner.planner import Stop, is_answered
from tuner.planner.knowledge import learned
from tuner.planner.step_times import fair

GIB = 2**30
DDP = parse_settings("sharding=ddp,micro_batch_size=4")
FULL = parse_settings("sharding=full_shard,micro_batch_size=4")


def test_a_candidate_has_the_measured_quantities(lab):
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


def test_overhead_counts_and_reserved_memory_does_not(lab):
    probe = lab.probe(1, DDP, lab.ok(1.0, 2 * GIB, overhead=GIB))
    assert answer(lab.study(probes=[probe], memory_limit_bytes=3 * GIB)).best is not None
    assert answer(lab.study(probes=[probe], memory_limit_bytes=3 * GIB - 1)).best is None


@pytest.mark.parametrize(
    ("share", "limits", "fits"),
    [
        (0.94, {}, True),
        (0.96, {}, False),
        (0.96, {"headroom": 0.03}, True),
        (0.949, {"headroom": 0.05}, True),
        (0.951, {"headroom": 0.05}, False),
    ],
)
def test_headroom_is_kept_of_what_was_measured(lab, share, limits, fits):
    usable = lab.question().cluster.gpu.memory_bytes
    probe = lab.probe(1, DDP, lab.ok(1.0, int(usable * share)))
    found = answer(lab.study(probes=[probe], memory_limit_bytes=None, **limits))
    assert (found.best is not None) is fits


@pytest.mark.parametrize("overhead", [0, 100])
def test_the_answer_fits_with_all_that_its_repetitions_needed(lab, overhead):
    """The limit is kept by the interval's upper end, device memory outside tensors included."""
    limit, overhead = 1000 * lab.MIB, overhead * lab.MIB
    rows = [(DDP, 1.0, 900, 0), (DDP, 1.0, 901, 1), (FULL, 2.0, 800, 0)]
    probes = [
        lab.probe(n, one, lab.ok(seconds, mib * lab.MIB, overhead=overhead), repetition=again)
        for n, (one, seconds, mib, again) in enumerate(rows, start=1)
    ]
    best = answer(lab.study(probes=probes, memory_limit_bytes=limit)).best
    assert best.settings == (FULL if overhead else DDP)
    assert best.allocated_gib.high * GIB + overhead <= limit


def test_a_whole_study(lab):
    study, _ = lab.Machine(lab.question(), noise=0.02).play(lab.study(max_probes=14, tolerance=0.0))
    found = answer(replace(study, state=StudyState.DONE))
    assert found.state == "done"
    assert found.provenance == "measured"
    assert len(found.alternatives) == 5
    assert found.best not in found.alternatives
    times = [one.step_time_s.value for one in found.alternatives]
    assert times == sorted(times)
    assert found.legal == 84
    assert found.predicted_to_fit == 84
    assert found.probes == {"ok": 14}
    assert found.device_s == pytest.approx(14 * 4.0)
    speeds = [p.tokens_per_s_per_gpu.value for p in found.pareto]
    memory = [p.allocated_gib.value for p in found.pareto]
    assert speeds == sorted(speeds, reverse=True)
    assert memory == sorted(memory, reverse=True)


def test_times_are_told_as_of_what_was_chosen_for_them(lab):
    probes = [
        lab.probe(n, one, lab.ok(1.0 + 0.005 * n, GIB)) for n, one in enumerate((DDP, FULL), 1)
    ]
    found, known = answer(lab.study(probes=probes)), learned(lab.study(probes=probes))
    for one in (found.best, *found.alternatives, *found.pareto):
        assert one.step_time_s == fair(known)[one.settings].step_time_s
        assert one.step_time_s != known.findings[one.settings].step_time_s


NOT_FIT = "None of the settings probed was seen to fit"


@pytest.fixture
def question(lab):
    """On GPUs, whose rates the catalogue knows."""
    return lab.question("8xa100-80gb", 64)


def asked(lab, question, **limits):
    study = lab.study(question, **{"memory_limit_bytes": None, **limits})
    return replace(study, state=StudyState.QUEUED)


@pytest.mark.parametrize(
    ("fidelity", "state"),
    [(Fidelity.MEASURED, StudyState.QUEUED), (Fidelity.EMULATED, StudyState.DONE)],
)
def test_without_a_probe_it_is_what_is_predicted(lab, question, fidelity, state):
    study = replace(asked(lab, question, fidelity=fidelity), state=state)
    limits = replace(study.limits, fidelity=Fidelity.PREDICTED)
    found, predicted = answer(study), answer(replace(study, limits=limits))
    assert found.best.as_dict() == predicted.best.as_dict()
    assert [one.settings for one in found.alternatives] == [
        one.settings for one in predicted.alternatives
    ]
    assert found.best.provenance is Provenance.PREDICTED
    assert found.best.basis is Basis.ARITHMETIC
    assert found.probes == {}
    assert found.wall_s == found.device_s == 0
    assert found.state == state
    assert not is_answered(study)
    assert found.explanation[0] == f"Nothing was {fidelity} yet: no probe is done."
    assert f"What follows is predicted, until something is {fidelity} that fits." in (
        found.explanation
    )
    assert not any(NOT_FIT in line for line in found.explanation)


def test_what_ran_out_of_memory_is_not_suggested(lab, question):
    """Nor what needs more; and what was seen is told first."""
    limit = 2 * 2**30
    study = asked(lab, question, memory_limit_bytes=limit)
    before = answer(study).best
    probe = lab.probe(1, before.settings, lab.oom(limit + 1, limit), limit=limit)
    after = answer(replace(study, probes=(probe,)))
    assert after.best.settings != before.settings
    assert after.best.basis is Basis.ARITHMETIC
    assert after.probes == {"oom": 1}
    assert after.wall_s == 1.0
    assert after.explanation[0].startswith(NOT_FIT)
    assert after.explanation[1].startswith("The smallest need known is at least 2.00 GiB")
    assert any(line.startswith("Out of memory: ") for line in after.explanation)
    for one in (after.best, *after.alternatives):
        same = replace(one.settings, micro_batch_size=before.settings.micro_batch_size)
        assert not (
            same.layout == before.settings.layout
            and one.settings.micro_batch_size >= before.settings.micro_batch_size
        )


def test_a_study_in_which_nothing_fits_has_no_answer(lab):
    """Arithmetic expects these to fit; the probes, two thirds of them, say otherwise."""
    question = lab.question(sharding=(Sharding.DDP,), tp_size=(1,))
    machine = lab.Machine(question, memory_factor=1.5)
    study = replace(asked(lab, question), limits=replace(lab.study().limits, max_probes=40))
    smallest = min(map(machine.memory, (p.settings for p in answer(study).alternatives)))
    study = replace(study, limits=replace(study.limits, memory_limit_bytes=smallest * 3 // 5))
    played, stop = machine.play(study)
    assert isinstance(stop, Stop)
    assert stop.nothing_fits
    reason = f"{stop.reason}: {stop.nothing_fits}"
    found = answer(replace(played, state=StudyState.FAILED, reason=reason))
    assert found.best is None
    assert found.alternatives == ()
    assert found.predicted_to_fit == 0
    assert found.explanation[0].startswith(NOT_FIT)
    assert not any("has ended" in line or "predicted to fit" in line for line in found.explanation)


def test_a_probe_that_fits_takes_its_place(lab, question):
    study = asked(lab, question)
    slow = next(one.settings for one in reversed(answer(study).alternatives))
    study = replace(study, probes=(lab.probe(1, slow, lab.ok(50.0, 2**30)),))
    found = answer(study)
    assert found.best.settings == slow
    assert found.best.provenance is Provenance.MEASURED
    assert found.best.basis is None
    assert found.alternatives == ()
    assert is_answered(study)


def test_of_a_script_is_said_what_was_counted(tmp_path):
    (tmp_path / "train.py").write_text("")
    script = read_script("train.py", arguments=("{micro_batch_size}",), folder=tmp_path)
    asked = question_about(TINY, "cpu:2", tokens=32, batch=8, script=script, packing=Packing())

    def ran(loss, count):
        return replace(
            ok(0.1 * count, 20, [count]),
            losses=(loss, loss / 2),
            tracked_accumulation=count,
            optimizer_steps=12,
            expected_optimizer_steps=12,
            hardware={"memory": "peak resident set of the process"},
        )

    found = answer(
        study_of(asked, ("micro_batch_size=4", ran(2.0, 1)), ("micro_batch_size=2", ran(2.1, 2)))
    )
    assert found.best.guard.verdict == "not_checked"
    for words in ("1 backward call in", "12 optimizer steps in 12 reports", "lies within 5%"):
        assert words in found.best.guard.why
    assert any("its memory is the peak resident set" in one for one in found.explanation)
    assert not any("sequence is taken for" in one for one in found.explanation)
