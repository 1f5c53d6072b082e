import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.configuration import Checkpointing, Settings
from tuner.core.framework import framework
from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study
from tuner.explain.known import answer
from tuner.planner import Stop, Wait, next_probe
from tuner.planner.knowledge import learn
from tuner.planner.search import LAST_RESORTS, ExpectedMemory, Search
from tuner.space import enumerate_space

GIB = 2**30


def searches(study: Study) -> list[Probe]:
    return [p for p in study.probes if p.request.repetition == 0]


# -- waiting, and spending the budget ---------------------------------------------------------


@pytest.mark.parametrize("state", [ProbeState.QUEUED, ProbeState.RUNNING])
def test_it_waits_for_a_probe_on_its_way(lab: SimpleNamespace, state: ProbeState) -> None:
    one = enumerate_space(lab.question()).legal[0]
    study = lab.study(probes=[lab.probe(1, one, None, state=state)])
    assert next_probe(study) == Wait()


@pytest.mark.parametrize("most", [1, 2, 5, 6, 10])
def test_a_small_budget_is_spent_to_the_last_probe(lab: SimpleNamespace, most: int) -> None:
    machine = lab.Machine(lab.question(), noise=0.02)
    study, stop = machine.play(lab.study(max_probes=most, tolerance=0.0))
    assert len(study.probes) == most
    assert stop.reason == f"the budget of {most} probe{'' if most == 1 else 's'} is spent"
    assert stop.nothing_fits == ""


def test_earlier_askings_do_not_count(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question())
    study, _ = machine.play(lab.study(max_probes=4, tolerance=0.0))
    more, _ = machine.play(replace(study, probes_before=4))
    assert len(more.probes) == 8
    assert len({p.request.settings for p in searches(more)}) == len(searches(more))


def test_time_is_a_budget_too(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question())
    _, stop = machine.play(lab.study(wall_s=30.0, max_probes=100))
    assert stop.reason == "the budget of 30 s is spent"
    _, stop = machine.play(lab.study(device_s=9.0, max_probes=100))
    assert stop.reason == "the budget of 9 device-seconds is spent"


def test_it_stops_when_nothing_is_expected_to_be_gained(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question("cpu:8", 64), noise=0.01)
    study, stop = machine.play(lab.study(machine.question, max_probes=200))
    assert len(study.probes) < 20
    assert stop.reason == "no probe is expected to gain 1% or more"
    assert isinstance(next_probe(replace(study, probes_before=len(study.probes))), Stop)


def test_a_larger_tolerance_stops_sooner(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question("cpu:4", 96), noise=0.02)
    counts = [
        len(machine.play(lab.study(machine.question, max_probes=200, tolerance=t))[0].probes)
        for t in (0.3, 0.05, 0.001)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_without_a_tolerance_a_small_space_is_exhausted(lab: SimpleNamespace) -> None:
    question = lab.question(tp_size=(1,), sharding=("ddp",))
    study, stop = lab.Machine(question).play(lab.study(question, max_probes=50, tolerance=0.0))
    tried = {p.request.settings for p in study.probes}
    assert tried == set(enumerate_space(question).legal)
    assert stop.reason == "every settings that may fit was probed"


def test_a_space_of_one(lab: SimpleNamespace) -> None:
    question = lab.question(
        tp_size=(1,), sharding=("ddp",), micro_batch_size=(4,), activation_checkpointing=("none",)
    )
    study, _ = lab.Machine(question).play(lab.study(question))
    assert len(study.probes) == 1
    assert answer(study).best is not None


def test_the_answer_is_good(lab: SimpleNamespace) -> None:
    """Within a tenth of the best of all after ten probes of 46, and the best after thirty."""
    machine = lab.Machine(lab.question(), noise=0.01)
    legal = enumerate_space(machine.question).legal
    for seed in range(4):
        for most, allowed in ((10, 0.1), (30, 0.02)):
            study, _ = machine.play(lab.study(max_probes=most, seed=seed))
            best = answer(study).best.settings
            seconds = machine.seconds(best, best.gradient_accumulation_steps)
            assert seconds <= (1 + allowed) * machine.best_seconds(legal, 4 * GIB)


# -- the order --------------------------------------------------------------------------------


def test_the_first_probe_is_what_arithmetic_thinks_fastest(lab: SimpleNamespace) -> None:
    known = learn(lab.study())
    first = next_probe(lab.study()).settings
    prior = Search(known).prior
    assert first.tp_size == 1
    assert not first.cpu_offload
    fastest = prior.log_seconds.min()
    assert prior.log_seconds[prior.settings.index(first)] < fastest + 0.02


def test_the_first_probe_is_expected_to_fit(lab: SimpleNamespace) -> None:
    limit = 256 * lab.MIB
    known = learn(lab.study(memory_limit_bytes=limit))
    search, tight = Search(known), next_probe(lab.study(memory_limit_bytes=limit)).settings
    assert search.belief.fits[search.prior.settings.index(tight)] > 0.8


def test_what_surely_does_not_fit_is_not_tried(lab: SimpleNamespace) -> None:
    limit = 200 * lab.MIB
    study, _ = lab.Machine(lab.question()).play(lab.study(memory_limit_bytes=limit, max_probes=100))
    memory = ExpectedMemory(learn(study))
    assert study.probes
    assert not [p for p in study.probes if memory.cannot_fit(p.request.settings)]


def test_long_accumulation_is_cut_short_and_the_leader_verified(lab: SimpleNamespace) -> None:
    question = lab.question(batch=512, micro_batch_size=(4, 8), activation_checkpointing=("none",))
    study, _ = lab.Machine(question).play(lab.study(question, max_probes=4))
    first, *_, last = study.probes
    assert first.request.accumulation_counts == (2, 4)
    assert last.request.repetition == 1
    assert last.request.accumulation_counts == ()
    suggestion = answer(study)
    assert suggestion.best.settings == last.request.settings
    words = " ".join(suggestion.explanation)
    assert f"were run (probe #{last.id})" in words


def test_a_verification_that_takes_too_long_is_left_out(lab: SimpleNamespace) -> None:
    question = lab.question(batch=512, micro_batch_size=(4,), activation_checkpointing=("none",))
    study, stop = lab.Machine(question).play(lab.study(question, max_probes=50, wall_s=500.0))
    assert stop.reason == "no probe is expected to gain 1% or more"
    assert answer(study).best is not None
    assert all(p.request.repetition == 0 for p in study.probes)


def test_finalists_that_cannot_be_told_apart_are_repeated(lab: SimpleNamespace) -> None:
    legal = enumerate_space(lab.question()).legal
    steps = [0.8, 0.9, 0.9, 0.9, 1.0, 1.0, 1.1, 1.1, 1.1, 1.2]
    close = [lab.ok({s.gradient_accumulation_steps: steps}, GIB) for s in legal[:2]]
    far = [lab.ok(3.0, GIB, count=s.gradient_accumulation_steps) for s in legal[2:6]]
    probes = [
        lab.probe(n, s, m) for n, (s, m) in enumerate(zip(legal[:6], close + far, strict=True), 1)
    ]
    study = lab.study(probes=probes, max_probes=8)
    first = next_probe(study)
    again = lab.probe(7, first.settings, close[0], repetition=1)
    second = next_probe(replace(study, probes=(*study.probes, again)))
    assert (first.repetition, second.repetition) == (1, 1)
    assert {first.settings, second.settings} == set(legal[:2])
    assert next_probe(replace(study, limits=replace(study.limits, max_probes=9))).repetition == 0


def test_no_repeats_are_kept_for_a_budget_of_five(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question(), noise=0.3)
    study, _ = machine.play(lab.study(max_probes=5))
    assert all(p.request.repetition == 0 for p in study.probes)


# -- nothing fits -----------------------------------------------------------------------------


def test_when_nothing_fits_it_says_what_would_be_needed(lab: SimpleNamespace) -> None:
    study, stop = lab.Machine(lab.question()).play(lab.study(memory_limit_bytes=lab.MIB))
    assert len(study.probes) == LAST_RESORTS
    assert stop.reason == "no settings fit"
    assert "the smallest need known is at least" in stop.nothing_fits
    assert "MiB on one device" in stop.nothing_fits
    assert "(probe #" in stop.nothing_fits
    assert answer(study).best is None


def test_when_all_ran_out_of_memory_nothing_fits(lab: SimpleNamespace) -> None:
    question = lab.question(tp_size=(1,), sharding=("ddp",))
    machine = lab.Machine(question, memory_factor=20.0)
    study, stop = machine.play(lab.study(question, memory_limit_bytes=GIB, max_probes=100))
    assert stop.nothing_fits
    # larger micro-batches of a family that ran out are not tried
    assert len(study.probes) < len(enumerate_space(question).legal)


def test_a_spent_budget_does_not_prove_that_nothing_fits(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question(), memory_factor=20.0)
    _, stop = machine.play(lab.study(memory_limit_bytes=GIB, max_probes=2))
    assert stop.nothing_fits == ""
    assert "none of the settings probed gave a result that fits" in stop.reason


def test_failures_of_another_kind_are_not_a_lack_of_memory(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question(), fail=lambda _: Outcome.INVALID)
    study, stop = machine.play(lab.study(max_probes=100))
    assert stop.nothing_fits == ""
    classes = {p.request.settings.settings_class for p in study.probes}
    assert len(classes) == len(study.probes)


def test_that_nothing_fits_is_not_said_where_some_failed_otherwise(lab: SimpleNamespace) -> None:
    """All that is not checkpointed is too large, and all that is crashes."""

    def fail(one: Settings) -> Outcome | None:
        return Outcome.CRASHED if one.activation_checkpointing is Checkpointing.FULL else None

    study = lab.study(memory_limit_bytes=130 * lab.MIB, max_probes=400)
    study, stop = lab.Machine(lab.question(), memory_factor=3.0, fail=fail).play(study)
    ended = {p.measurement.outcome for p in study.probes}
    assert ended == {Outcome.CRASHED, Outcome.OOM}
    assert stop.nothing_fits == ""
    assert stop.reason == (
        "every settings that may fit was probed; none of the settings probed gave a result that"
        " fits"
    )


def test_a_queued_probe_was_not_probed(lab: SimpleNamespace) -> None:
    one, two = enumerate_space(lab.question()).legal[:2]
    done = lab.ok(1.0, 100 * lab.MIB, count=one.gradient_accumulation_steps)
    queued = lab.probe(2, two, None, state=ProbeState.QUEUED)
    study = lab.study(probes=[lab.probe(1, one, done), queued])
    assert "1 of the 46 legal settings were probed, in 1 probe." in answer(study).explanation
    # nor is it one of the last resorts that were tried
    tight = lab.study(memory_limit_bytes=lab.MIB, probes=[queued])
    out = lab.probe(1, one, lab.oom(2 * lab.MIB, lab.MIB), limit=lab.MIB)
    known = learn(replace(tight, probes=(out, queued)))
    assert len(known.repetitions) == LAST_RESORTS
    assert Search(known, confirms=True).propose() is not None


def test_nanotron_is_not_probed(lab: SimpleNamespace) -> None:
    question = replace(lab.question(), framework=framework("nanotron", {"nanotron": "0.4"}, {}))
    assert "nanotron" in next_probe(lab.study(question)).reason


# -- asking again ----------------------------------------------------------------------------


def test_asking_twice_gives_the_same_plan(lab: SimpleNamespace) -> None:
    study, _ = lab.Machine(lab.question()).play(lab.study(max_probes=4))
    more = replace(study, limits=replace(study.limits, max_probes=20))
    assert next_probe(more) == next_probe(more)
    assert isinstance(next_probe(more), ProbeRequest)


def test_a_tighter_limit_makes_the_same_study_go_on(lab: SimpleNamespace) -> None:
    machine = lab.Machine(lab.question())
    study, _ = machine.play(lab.study(max_probes=12))
    needed = sorted(machine.memory(p.request.settings) for p in study.probes)
    tight = replace(
        study,
        limits=replace(study.limits, memory_limit_bytes=needed[2]),
        probes_before=len(study.probes),
    )
    assert answer(tight).best.allocated_gib.value * GIB <= needed[2]
    more, _ = machine.play(tight)
    assert len(more.probes) > len(study.probes)
    assert answer(more).best.allocated_gib.value * GIB <= needed[2]


def test_a_stop_says_why(lab: SimpleNamespace) -> None:
    one = enumerate_space(lab.question()).legal[0]
    probe = lab.probe(1, one, Measurement(outcome=Outcome.CANCELLED))
    stop = next_probe(lab.study(probes=[probe], max_probes=1))
    assert isinstance(stop, Stop)
    assert "none of the settings probed gave a result" in stop.reason


def test_the_planner_runs_without_a_store(lab: SimpleNamespace) -> None:
    code = "import tuner.planner, sys; assert not {'sqlalchemy', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
