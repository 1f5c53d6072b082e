"""What an answer of one fidelity says of the probes of the same question at the other."""

from collections.abc import Iterator

from tuner.measurement import Fidelity, Outcome
from tuner.planner.estimates import Forecast, forecast
from tuner.planner.knowledge import Knowledge, learn
from tuner.planner.words import describe, probes_text, seconds_text
from tuner.sizes import size_text
from tuner.study import Study


def measured_too(study: Study, known: Forecast) -> Iterator[str]:
    """For a predicted answer: what was measured, and how the prediction compares with it."""
    measured = study.at(Fidelity.MEASURED)
    done = [p for p in measured.probes if p.measurement]
    if not done:
        return
    counted = "1 probe" if len(done) == 1 else f"{len(done)} probes"
    yield f"{counted} of this question measured too; --fidelity measured answers from these."
    fitting = learn(measured).fitting
    found = known.estimates.get(fitting[0].settings) if fitting else None
    if found is not None:
        finding = fitting[0]
        yield (
            f"The fastest measured that fits, {describe(finding.settings)}, took"
            f" {seconds_text(finding.seconds)} and needed {size_text(finding.needed_bytes)} (probe"
            f" {probes_text(p.id for p in finding.probes)}); predicted of it are"
            f" {_seconds(found.step_time.value)} and {size_text(found.expected_bytes)}."
        )


def predicted_too(study: Study, known: Knowledge) -> Iterator[str]:
    """For a measured answer: what dry runs say of its best settings."""
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
            f" (probe #{found.probe.id}); measured are {size_text(fitting[0].needed_bytes)}."
        )


def _seconds(value: float | None) -> str:
    return "no time" if value is None else seconds_text(value)
