"""What an answer says of probes beside it: when its own were, and what others found.

Others are those of the same question at other fidelities, and those of other questions.
"""

from collections.abc import Iterator, Sequence

from tuner.measurement import PROBED, Fidelity, Outcome
from tuner.planner.estimate import Estimate
from tuner.planner.estimates import Forecast, forecast
from tuner.planner.knowledge import Knowledge, learned
from tuner.planner.words import MOST_NAMED, describe, probes_text, seconds_text
from tuner.sizes import size_text
from tuner.study import Question, Study


def probed_too(study: Study, known: Forecast) -> Iterator[str]:
    """For a predicted answer: what was measured or emulated, and how predictions compare."""
    for fidelity in PROBED:
        yield from _probes_of(study, fidelity)
        fitting = learned(study, fidelity).fitting if _counted(study, fidelity) else ()
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
    """For a measured or emulated answer: when it was, and what the other one, and dry runs, say."""
    mine = study.terms.fidelity
    if known.findings and (when := ran_text(study.at(mine))):
        yield f"This was {mine} {when}."
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
    one = len(dry_runs) == 1
    counted = "1 class of settings was" if one else f"{len(dry_runs)} classes of settings were"
    yield f"{counted} dry-run too; --fidelity predicted answers from these."
    fitting = known.fitting
    found = forecast(study).estimates.get(fitting[0].settings) if fitting else None
    if found is not None and found.probe is not None:
        yield (
            f"Of {describe(found.settings)} a dry run predicts {size_text(found.expected_bytes)}"
            f" (probe #{found.probe.id}); {mine} are {size_text(fitting[0].needed_bytes)}."
        )


def earlier_texts(question: Question, studies: Sequence[Study]) -> str:
    """Other studies as evidence for a question: some by name, and how many more."""
    named = "; ".join(_earlier_text(question, study) for study in studies[:MOST_NAMED])
    return named + (f"; and {len(studies) - MOST_NAMED} more" if len(studies) > MOST_NAMED else "")


def _earlier_text(question: Question, study: Study) -> str:
    """``st-1 (llama on 8xh100-80gb, ...: 5 settings measured ...)``; an optimizer or a format of
    reduction is named where it differs."""
    workload, mine = study.question.workload, question.workload
    differs = f", {workload.optimizer}" if workload.optimizer is not mine.optimizer else ""
    if workload.reduce_dtype is not mine.reduce_dtype:
        differs += f", gradients reduced in {workload.reduce_dtype}"
    counts = []
    for fidelity in PROBED:
        found = study.at(fidelity).probes
        ran = {p.request.settings for p in found if p.measurement and p.measurement.step_times_s}
        counts += [f"{len(ran)} settings {fidelity}"] if ran else []
    return (
        f"{study.id} ({workload.model.name} on {study.question.cluster.name}, global batch"
        f" {workload.global_batch_size}, sequence {workload.sequence_length}{differs}:"
        f" {' and '.join(counts) or 'nothing ran'} {ran_text(study)})"
    )


def ran_text(study: Study) -> str:
    """``on 2026-01-01 with torch 2.13.0``: when probes were done, first to last, and with what.

    Empty where none was done.
    """
    days = sorted({p.finished_at[:10] for p in study.probes if p.finished_at})
    if not days:
        return ""
    versions = study.question.framework.versions
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    return f"{when} with {named}" if named else when


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
