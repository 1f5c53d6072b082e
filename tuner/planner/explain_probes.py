"""Says which probes failed, and how much was seen, naming the probes."""

from collections.abc import Iterator, Sequence

from tuner.core.answer import Guard
from tuner.core.measurement import PROBED, Fidelity, Measurement, Outcome
from tuner.core.study import Probe, Question, Study
from tuner.core.words import MOST_NAMED, describe, probes_text, seconds_text
from tuner.planner.estimates import Estimate, Forecast, forecast
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge, learned, outcome_of
from tuner.planner.verdicts import NO_REPLICA_OF_A_SCRIPT
from tuner.text import count_text, size_text

_TOLD_ELSEWHERE = frozenset({Outcome.OK, Outcome.OOM, Outcome.STOPPED_EARLY})


def out_of_memory(known: Knowledge) -> Iterator[str]:
    """Says which configurations ran out of memory, and what they would have needed."""
    ran_out = [p for p in finished(known) if p.measurement and p.measurement.outcome is Outcome.OOM]
    if ran_out:
        named = "; ".join(_oom_text(probe) for probe in ran_out[:MOST_NAMED])
        yield f"Out of memory: {named}{_rest(ran_out)}."


def failures(known: Knowledge) -> Iterator[str]:
    """Says which probes ended otherwise without a result, and why."""
    failed = [
        probe
        for probe in finished(known)
        if probe.measurement and probe.measurement.outcome not in _TOLD_ELSEWHERE
    ]
    if failed:
        named = "; ".join(_failure_text(probe) for probe in failed[:MOST_NAMED])
        yield f"Without a result: {named}{_rest(failed)}."


def stopped_early(known: Knowledge) -> Iterator[str]:
    """Says which probes were stopped because they were slower than the fastest known could be."""
    slow = [
        p
        for p in finished(known)
        if p.measurement and p.measurement.outcome is Outcome.STOPPED_EARLY
    ]
    if slow:
        named = "; ".join(_slow_text(known, probe) for probe in slow[:MOST_NAMED])
        yield f"Ended early, slower than the fastest could be: {named}{_rest(slow)}."


def coverage(known: Knowledge) -> Iterator[str]:
    """How much of the space was probed."""
    tried = known.tried
    probed = sum(1 for s in known.space.legal if s in tried)
    total, count = len(known.space.legal), len(finished(known))
    probes = "1 probe" if count == 1 else f"{count} probes"
    yield f"{probed} of the {total} legal settings were probed, in {probes}."


def finished(known: Knowledge) -> list[Probe]:
    """Probes that have an outcome, oldest first; what was withdrawn by another asking has none."""
    found = (p for p in known.study.probes if outcome_of(p) not in (None, Outcome.CANCELLED))
    return sorted(found, key=lambda p: p.id)


def _oom_text(probe: Probe) -> str:
    oom = probe.measurement.oom if probe.measurement else None
    where = f" in {oom.phase}, needing at least {size_text(oom.needed_bytes)}" if oom else ""
    return f"{describe(probe.request.settings)}{where} (probe #{probe.id})"


def _slow_text(known: Knowledge, probe: Probe) -> str:
    settings = probe.request.settings
    slow = known.slow.get(settings)
    seconds = slow.step_time.value if slow else None
    taken = f", about {seconds_text(seconds)} for a step" if seconds is not None else ""
    return f"{describe(settings)}{taken} (probe #{probe.id})"


def _failure_text(probe: Probe) -> str:
    assert probe.measurement is not None
    detail = f", {probe.measurement.detail}" if probe.measurement.detail else ""
    settings = describe(probe.request.settings)
    return f"{settings} ended as {probe.measurement.outcome}{detail} (probe #{probe.id})"


def _rest(probes: list[Probe]) -> str:
    return f"; and {len(probes) - MOST_NAMED} more" if len(probes) > MOST_NAMED else ""


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


def what_ran(known: Knowledge, best: Finding) -> Iterator[str]:
    """Says which script ran and how, and its memory; nothing of the probe program's step."""
    script, found = known.study.question.script, best.probes[-1].measurement
    if script is None or found is None:
        return
    memory = found.hardware.get("memory", "as the script's process has it")
    yield (
        f"What ran is {script.path}, through {script.launch} on"
        f" {known.study.question.cluster.world_size} ranks; its memory is the {memory}, and its"
        " step the time from one report to the next, with loading data."
    )


def script_guard(study: Study, finding: Finding) -> Guard:
    """Says what was seen of a script's steps: it is no check that they train the same."""
    last = finding.probes[-1]
    found = last.measurement
    if found is None:
        return Guard(why=NO_REPLICA_OF_A_SCRIPT)
    seen = "; ".join(
        (NO_REPLICA_OF_A_SCRIPT, *_scripts_counted(finding, found), *_losses(study, finding))
    )
    return Guard(versions=dict(found.versions), date=last.finished_at, why=seen)


def _scripts_counted(finding: Finding, found: Measurement) -> Iterator[str]:
    asked = finding.settings.gradient_accumulation_steps
    if not found.tracked_accumulation:
        yield "backward passes could not be counted"
        return
    yield (
        f"counted: {count_text(found.tracked_accumulation, 'backward call')} in an optimizer step,"
        f" with gradient_accumulation_steps={asked};"
        f" {count_text(found.optimizer_steps, 'optimizer step')} in"
        f" {count_text(found.expected_optimizer_steps, 'report')}"
    )


def _losses(study: Study, finding: Finding) -> Iterator[str]:
    """How far the first losses of settings are apart: batches in another order differ too."""
    firsts = {
        probe.request.settings: probe.measurement.losses[0]
        for probe in study.probes
        if probe.measurement and probe.measurement.outcome is Outcome.OK
        if probe.measurement.losses
    }
    mine = firsts.get(finding.settings)
    others = [loss for settings, loss in firsts.items() if settings != finding.settings]
    if mine is None or not others:
        yield "losses could not be compared: they were reported of no two settings"
        return
    apart = max(abs(loss - mine) / max(abs(mine), 1e-12) for loss in others)
    many = "that of another settings" if len(others) == 1 else f"those of {len(others)} others"
    yield f"the first loss that was reported lies within {100 * apart:.2g}% of {many}"
