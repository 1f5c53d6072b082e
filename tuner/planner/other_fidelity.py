"""What an answer of one fidelity says of the probes of the same question at the others."""

from collections.abc import Iterator

from tuner.measurement import PROBED, Fidelity, Outcome
from tuner.planner.estimates import Estimate, Forecast, forecast
from tuner.planner.knowledge import Knowledge, learn
from tuner.planner.words import describe, probes_text, seconds_text
from tuner.sizes import size_text
from tuner.study import Study


def probed_too(study: Study, known: Forecast) -> Iterator[str]:
    """For a predicted answer: what was measured or emulated, and how predictions compare."""
    for fidelity in PROBED:
        yield from _probes_of(study, fidelity)
        fitting = learn(study.at(fidelity)).fitting if _counted(study, fidelity) else ()
        found = known.estimates.get(fitting[0].settings) if fitting else None
        if found is not None:
            finding = fitting[0]
            yield (
                f"The fastest {fidelity} that fits, {describe(finding.settings)}, took"
                f" {seconds_text(finding.seconds)} and needed {size_text(finding.needed_bytes)}"
                f" (probe {probes_text(p.id for p in finding.probes)}); without it,"
                f" {_seconds(found)} and {size_text(found.expected_bytes)} are predicted of it."
            )


def others_too(study: Study, known: Knowledge) -> Iterator[str]:
    """For a measured or emulated answer: what the other one, and dry runs, say."""
    mine = study.terms.fidelity
    for fidelity in PROBED:
        if fidelity is not mine:
            yield from _probes_of(study, fidelity)
    dry_runs = [
        p
        for p in study.at(Fidelity.PREDICTED).probes
        if p.measurement and p.measurement.outcome is Outcome.OK
    ]
    if not dry_runs:
        return
    counted = "1 class" if len(dry_runs) == 1 else f"{len(dry_runs)} classes"
    yield f"{counted} of settings were dry-run too; --fidelity predicted answers from these."
    fitting = known.fitting
    found = forecast(study).estimates.get(fitting[0].settings) if fitting else None
    if found is not None and found.probe is not None:
        yield (
            f"Of {describe(found.settings)} a dry run predicts {size_text(found.expected_bytes)}"
            f" (probe #{found.probe.id}); {mine} are {size_text(fitting[0].needed_bytes)}."
        )


def _probes_of(study: Study, fidelity: Fidelity) -> Iterator[str]:
    if counted := _counted(study, fidelity):
        probes = "1 probe" if counted == 1 else f"{counted} probes"
        yield f"{probes} of this question {fidelity} too; --fidelity {fidelity} answers from these."


def _counted(study: Study, fidelity: Fidelity) -> int:
    return sum(1 for p in study.at(fidelity).probes if p.measurement)


def _seconds(found: Estimate) -> str:
    """The step time as predicted before it was corrected."""
    value = found.step_time.value
    return "no time" if value is None else seconds_text(value / found.factor)
