"""What is said of a user's own script: what ran, what its memory is, and what was checked of it."""

from collections.abc import Iterator

from tuner.measurement import Measurement, Outcome
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge
from tuner.planner.verdicts import NO_TWIN_OF_A_SCRIPT
from tuner.study import Study
from tuner.suggestion import Guard
from tuner.units import count_text


def what_ran(known: Knowledge, best: Finding) -> Iterator[str]:
    """Which script ran and how, and what its memory is; nothing of the probe program's step."""
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
    """What was seen of a script's steps: it is no check that they train the same."""
    last = finding.probes[-1]
    found = last.measurement
    if found is None:
        return Guard(why=NO_TWIN_OF_A_SCRIPT)
    seen = "; ".join((NO_TWIN_OF_A_SCRIPT, *_counted(finding, found), *_losses(study, finding)))
    return Guard(versions=dict(found.versions), date=last.finished_at, why=seen)


def _counted(finding: Finding, found: Measurement) -> Iterator[str]:
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
