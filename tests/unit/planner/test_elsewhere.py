"""What probes of other fidelities say to a search: its order changes, and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from types import SimpleNamespace

import pytest

from tuner.client.advance import measurement_of
from tuner.core.configuration import Settings
from tuner.core.measurement import Emulation, Fidelity, Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study
from tuner.dryrun import DryRun
from tuner.explain.known import answer
from tuner.planner import next_probe
from tuner.planner.knowledge import learn
from tuner.planner.search import Search
from tuner.space import enumerate_space

GIB = 2**30


def emulated(probes: Sequence[Probe], number: int = 100) -> tuple[Probe, ...]:
    """The same probes as if they had been emulated."""
    return tuple(
        replace(p, id=number + p.id, request=replace(p.request, fidelity=Fidelity.EMULATED))
        for p in probes
    )


def search_of(study: Study) -> Search:
    return Search(learn(study.at(study.limits.fidelity), study))


def fits_of(study: Study, settings: Settings) -> float:
    search = search_of(study)
    return float(search.belief.fits[search.prior.settings.index(settings)])


class Odd:
    """Without tensor parallelism, predicted to be the fastest, it takes three times as long."""

    def __init__(self, lab: SimpleNamespace, **more: float) -> None:
        self.machine = lab.Machine(lab.question("cpu:4", 96), **more)

    def run(self, request: ProbeRequest, limit: int) -> Measurement:
        found = self.machine.run(request, limit)
        factor = 3.0 if request.settings.tp_size == 1 else 1.0
        times = {n: tuple(factor * s for s in steps) for n, steps in found.step_times_s.items()}
        return replace(found, step_times_s=times)


def some(lab: SimpleNamespace, odd: Odd, step: int = 11, first: int = 1) -> list[Probe]:
    """Every eleventh of the legal settings, run."""
    legal = enumerate_space(odd.machine.question).legal[::step]
    requests = [ProbeRequest(settings=s, fidelity=Fidelity.MEASURED) for s in legal]
    return [
        lab.probe(n, r.settings, odd.run(r, 4096 * lab.MIB)) for n, r in enumerate(requests, first)
    ]


def test_what_ran_out_of_memory_emulated_is_not_asked_for_first(lab: SimpleNamespace) -> None:
    first = next_probe(lab.study()).settings
    limit = 4096 * lab.MIB
    out = emulated([lab.probe(1, first, lab.oom(2 * limit, limit), limit=limit)])
    study = lab.study(probes=out)
    assert next_probe(study).settings != first
    assert fits_of(study, first) < 0.1
    # and yet it is not ruled out
    assert first in learn(study.at(Fidelity.MEASURED), study).candidates()


def test_a_measured_search_starts_where_emulation_was_fastest(lab: SimpleNamespace) -> None:
    odd = Odd(lab)
    study = lab.study(odd.machine.question)
    assert next_probe(study).settings.tp_size == 1
    known = replace(study, probes=emulated(some(lab, odd)))
    first = next_probe(known)
    assert first.settings.tp_size > 1
    assert (first.repetition, first.fidelity) == (0, Fidelity.MEASURED)
    assert answer(known).probes == {}  # nothing of it is counted as measured


def test_emulated_times_are_scaled_by_what_is_measured(lab: SimpleNamespace) -> None:
    """Emulation was 1.4 times as fast throughout; one measured probe tells."""
    odd = Odd(lab)
    probes = some(lab, odd)
    fast = [
        replace(
            p,
            measurement=replace(
                p.measurement,
                step_times_s={
                    n: tuple(s / 1.4 for s in steps)
                    for n, steps in p.measurement.step_times_s.items()
                },
            ),
        )
        for p in probes
    ]
    study = lab.study(odd.machine.question, probes=emulated(fast))
    both = replace(study, probes=(*study.probes, probes[0]))
    ratios = []
    for one in (study, both):
        search = search_of(one)
        settings = probes[5].request.settings
        believed = search.belief.log_seconds[search.prior.settings.index(settings)]
        measured = odd.run(probes[5].request, 4096 * lab.MIB).step_times_s
        (steps,) = measured.values()
        ratios.append(exp(believed) / steps[0])
    assert ratios[0] == pytest.approx(1 / 1.4, rel=0.1)
    assert ratios[0] + 0.1 < ratios[1] < 1.1


def test_the_time_of_another_kind_of_device_says_nothing(lab: SimpleNamespace) -> None:
    odd = Odd(lab)
    other = Emulation(compute_s={}, exposed_s={}, collectives={}, stands_in=True)
    probes = [
        replace(p, measurement=replace(p.measurement, emulation=other)) for p in some(lab, odd)
    ]
    study = lab.study(odd.machine.question, probes=emulated(probes))
    search, plain = search_of(study), search_of(lab.study(odd.machine.question))
    assert search.belief.log_seconds == pytest.approx(plain.belief.log_seconds)
    assert search.belief.log_need != pytest.approx(plain.belief.log_need)


def test_what_was_measured_tells_an_emulated_search_too(lab: SimpleNamespace) -> None:
    odd = Odd(lab)
    study = lab.study(odd.machine.question, fidelity=Fidelity.EMULATED)
    known = replace(study, probes=tuple(some(lab, odd)))
    assert next_probe(study).settings.tp_size == 1
    assert next_probe(known).settings.tp_size > 1


def test_an_answer_names_what_it_is_corrected_by(lab: SimpleNamespace) -> None:
    odd = Odd(lab)
    one = some(lab, odd)[0]
    alone = lab.study(odd.machine.question, probes=[one])
    both = replace(alone, probes=(one, *emulated(some(lab, odd))))
    said = [" ".join(answer(study).explanation) for study in (alone, both)]
    assert "corrected by the probes and by those of other fidelities" not in said[0]
    assert "corrected by the probes and by those of other fidelities" in said[1]


# -- dry runs ---------------------------------------------------------------------------------


def dry_run(lab: SimpleNamespace, study: Study, settings: Settings, found: DryRun) -> Study:
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


def test_a_dry_run_takes_the_place_of_arithmetic(
    lab: SimpleNamespace, dry_run_of: Callable[..., DryRun]
) -> None:
    study = lab.study(lab.question("8xh100-80gb", 64, heads=8), memory_limit_bytes=70 * GIB)
    first = next_probe(study).settings
    size = 100 * GIB / first.micro_batch_size
    shown = dry_run(lab, study, first, dry_run_of(study.question, first, size, size))
    assert fits_of(study, first) > 0.9
    assert fits_of(shown, first) < 0.1
    assert next_probe(shown).settings != first
    before, after = search_of(study), search_of(shown)
    same = [s.settings_class == first.settings_class for s in after.prior.settings]
    changed = after.prior.log_need != before.prior.log_need
    assert changed.tolist() == same
    assert after.prior.log_seconds.tolist() == before.prior.log_seconds.tolist()
    assert (after.allowed == before.allowed).all()  # arithmetic alone rules out


def test_a_class_that_was_refused_is_doubted(
    lab: SimpleNamespace, dry_run_of: Callable[..., DryRun]
) -> None:
    study = lab.study(lab.question("8xh100-80gb", 64, heads=8), memory_limit_bytes=70 * GIB)
    first = next_probe(study).settings
    error = {"type": "NotImplementedError", "message": "no kernel", "operator": "aten::odd"}
    refused = dry_run(lab, study, first, dry_run_of(study.question, first, error=error))
    assert refused.probes[0].measurement.outcome is Outcome.INVALID
    assert next_probe(refused).settings.settings_class != first.settings_class
    assert first in learn(refused.at(Fidelity.MEASURED), refused).candidates()
