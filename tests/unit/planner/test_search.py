"""A search learns from failures, from probes of other fidelities, and with each sampler."""

from dataclasses import replace

import pytest

from tuner.client.advance import measurement_of
from tuner.core.configuration import Checkpointing
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, SamplerName
from tuner.explain.known import answer
from tuner.planner import next_probe
from tuner.planner.knowledge import learned
from tuner.planner.search import Search, trials_of
from tuner.search.engine import replayed
from tuner.search.sampler import parameters_of
from tuner.search.trials import Result
from tuner.space import enumerate_space

DEADLINE_S = 600.0
HUNG = Measurement(outcome=Outcome.TIMEOUT, wall_s=DEADLINE_S, device_s=2 * DEADLINE_S)


def hangs(lab, study, does):
    """The study played through on a machine on which some settings hang until the deadline."""

    class Machine(lab.Machine):
        def run(self, request, limit):
            return HUNG if does(request.settings) else super().run(request, limit)

    played, _ = Machine(study.question).play(study)
    return played


def timeouts(study):
    found = [p for p in study.probes if p.measurement]
    return [p for p in found if p.measurement.outcome is Outcome.TIMEOUT]


def test_a_timeout_is_a_lower_bound_of_the_step(lab):
    one, two, three = enumerate_space(lab.question(batch=512)).legal[:3]
    probes = [lab.probe(n, s, HUNG) for n, s in enumerate((one, two), start=1)]
    short = replace(probes[1].request, accumulation_counts=(2, 4))
    probes[1] = replace(probes[1], request=short)
    probes.append(lab.probe(3, three, replace(HUNG, wall_s=0.0)))
    found = trials_of(learned(lab.study(lab.question(batch=512), probes=probes)))
    assert [t.result for t in found] == [Result.TIMED_OUT] * 3
    # at least six steps at each count, and some of the time for starting
    assert [t.seconds for t in found] == [DEADLINE_S / 8, DEADLINE_S / 16, None]
    assert [t.need_bytes for t in found] == [None] * 3


@pytest.mark.parametrize(("cluster", "batch"), [("cpu:2", 8), ("cpu:4", 96)])
@pytest.mark.parametrize(
    "does",
    [lambda s: s.activation_checkpointing is Checkpointing.NONE, lambda s: s.tp_size == 1],
    ids=["unchecked", "tp_size=1"],
)
def test_a_study_is_answered_though_what_looks_fastest_hangs(lab, cluster, batch, does):
    study = hangs(lab, lab.study(lab.question(cluster, batch), max_probes=20), does)
    best = answer(study).best
    assert not does(best.settings)
    assert len(timeouts(study)) <= 15
    machine = lab.Machine(study.question)
    legal = [s for s in enumerate_space(study.question).legal if not does(s)]
    seconds = machine.seconds(best.settings, best.settings.gradient_accumulation_steps)
    assert seconds <= 1.1 * machine.best_seconds(legal, 4096 * lab.MIB)


GIB = 2**30


def emulated(probes, number=100):
    """The same probes as if they had been emulated."""
    return tuple(
        replace(p, id=number + p.id, request=replace(p.request, fidelity=Fidelity.EMULATED))
        for p in probes
    )


def search_of(study):
    return Search(learned(study))


def fits_of(study, settings):
    search = search_of(study)
    return float(search.belief.fits[search.prior.settings.index(settings)])


class Odd:
    """Without tensor parallelism, predicted to be the fastest, it takes three times as long."""

    def __init__(self, lab, **more):
        self.machine = lab.Machine(lab.question("cpu:4", 96), **more)

    def run(self, request, limit):
        found = self.machine.run(request, limit)
        factor = 3.0 if request.settings.tp_size == 1 else 1.0
        times = {n: tuple(factor * s for s in steps) for n, steps in found.step_times_s.items()}
        return replace(found, step_times_s=times)


def some(lab, odd, step=11, first=1):
    """Every eleventh of the legal settings, run."""
    legal = enumerate_space(odd.machine.question).legal[::step]
    requests = [ProbeRequest(settings=s, fidelity=Fidelity.MEASURED) for s in legal]
    return [
        lab.probe(n, r.settings, odd.run(r, 4096 * lab.MIB)) for n, r in enumerate(requests, first)
    ]


def test_what_ran_out_of_memory_emulated_is_not_asked_for_first(lab):
    first = next_probe(lab.study()).settings
    limit = 4096 * lab.MIB
    out = emulated([lab.probe(1, first, lab.oom(2 * limit, limit), limit=limit)])
    study = lab.study(probes=out)
    assert next_probe(study).settings != first
    assert fits_of(study, first) < 0.1
    # and yet it is not ruled out
    assert first in learned(study, Fidelity.MEASURED).candidates()


def test_a_measured_search_starts_where_emulation_was_fastest(lab):
    odd = Odd(lab)
    study = lab.study(odd.machine.question)
    assert next_probe(study).settings.tp_size == 1
    known = replace(study, probes=emulated(some(lab, odd)))
    first = next_probe(known)
    assert first.settings.tp_size > 1
    assert (first.repetition, first.fidelity) == (0, Fidelity.MEASURED)
    assert answer(known).probes == {}  # nothing of it is counted as measured


def dry_run(lab, study, settings, found):
    """The study after a dry run of the settings' class."""
    probe = Probe(
        id=len(study.probes) + 1,
        request=ProbeRequest(settings=settings, fidelity=Fidelity.PREDICTED),
        state=ProbeState.DONE,
        measurement=measurement_of(study.question, settings, found),
        finished_at="2026-01-01T00:00:00Z",
    )
    return replace(
        study,
        probes=(*study.probes, probe),
        dry_runs={**study.dry_runs, found.key: found} if found.profile else study.dry_runs,
    )


def test_a_dry_run_takes_the_place_of_arithmetic(lab, dry_run_of):
    study = lab.study(lab.question("8xh100-80gb", 64, heads=8), memory_limit_bytes=70 * GIB)
    first = next_probe(study).settings
    size = 100 * GIB / first.micro_batch_size
    shown = dry_run(lab, study, first, dry_run_of(study.question, first, size, size))
    assert fits_of(study, first) > 0.9
    assert fits_of(shown, first) < 0.1
    assert next_probe(shown).settings != first
    before, after = search_of(study), search_of(shown)
    same = [s.layout == first.layout for s in after.prior.settings]
    changed = after.prior.log_need != before.prior.log_need
    assert changed.tolist() == same
    assert after.prior.log_seconds.tolist() == before.prior.log_seconds.tolist()
    assert (after.allowed == before.allowed).all()  # arithmetic alone rules out


def fails(settings):
    full = settings.activation_checkpointing is Checkpointing.FULL
    return Outcome.CRASHED if full and settings.micro_batch_size == 2 else None


@pytest.mark.parametrize("name", [n for n in SamplerName if n is not SamplerName.GP])
def test_the_answer_is_the_best_feasible_trial(lab, name):
    question = lab.question(batch=32)
    machine = lab.Machine(question, noise=0.01, fail=fails)
    needs = sorted(machine.memory(one) for one in enumerate_space(question).legal)
    limit = needs[len(needs) // 2]
    study = lab.study(question, sampler=name, max_probes=12, memory_limit_bytes=limit)
    played, _ = machine.play(study)
    known = learned(played)
    search = Search(known)
    best = replayed(search.prior, search.trials).best_trial
    assert best.value == known.fitting[0].seconds
    index = parameters_of(search.prior.settings).index_of(best.params)
    assert index is not None
    assert search.prior.settings[index] == known.fitting[0].settings
    assert machine.play(study)[0] == played
