"""Says what more probes might gain and cost, and when the tuning has paid for itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf, log
from statistics import median

from tuner.core.configuration import Settings
from tuner.core.study import OPEN, Study
from tuner.core.words import (
    describe,
    devices_text,
    rough_duration_text,
    seconds_text,
    share_text,
)
from tuner.planner.expected_speed import SpeedOutlook
from tuner.planner.explain_probes import finished
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge
from tuner.planner.ranking import complexity
from tuner.planner.spending import cost, devices_held
from tuner.planner.step_times import StepTimeChange, change_between, change_of, compared_settings

# Probes whose gain is told.
MORE = 3
# Gain in speed below which none is expected.
NOTHING = 0.001
# Length of the job that is told as an example.
JOB_S = 86_400.0
# What one would launch without tuning, in short.
RULE = (
    "the least model parallelism, then the fewest knobs off their default, then the largest"
    " micro-batch, of what is expected to fit"
)


def more_probes(known: Knowledge, outlook: SpeedOutlook) -> Iterator[str]:
    """Says what a few more probes may gain, what they cost, and which is the first."""
    left = _left(outlook)
    proposed = outlook.search.expect() if left else None
    if proposed is None:
        yield "Nothing is left that may fit and was not probed: more probes cannot gain."
    elif not known.fitting:
        settings = "1 settings" if left == 1 else f"{left} settings"
        yield (
            f"{settings} that may fit, {outlook.grounds}, were not probed; the next would be"
            f" {describe(proposed.settings)}."
        )
    else:
        yield _gain_text(known, outlook, min(MORE, left), proposed.settings)
        yield from why_ended(known.study)


def why_ended(study: Study) -> Iterator[str]:
    """Why nothing more is probed, of a study that is at its end."""
    if study.state not in OPEN and study.reason:
        yield f"The study has ended: {study.reason}."


def _left(outlook: SpeedOutlook) -> int:
    """How many settings may be probed and may fit."""
    from tuner.search.gain import HOPEFUL

    search = outlook.search
    return int((search.allowed & (search.belief.fits >= HOPEFUL)).sum())


def _gain_text(known: Knowledge, outlook: SpeedOutlook, count: int, first: Settings) -> str:
    from tuner.search.gain import gain_of_more

    search, best = outlook.search, log(known.fitting[0].seconds)
    mean, most = gain_of_more(search.belief, best, search.allowed, count)
    each_s = median(p.measurement.wall_s for p in finished(known) if p.measurement)
    study = known.study
    devices = devices_text(study.question.cluster, devices_held(study))
    if most < NOTHING:
        gain = f"are expected to gain nothing (less than {share_text(NOTHING)})"
    else:
        gain = f"could gain up to {share_text(most)} in speed ({share_text(mean)} on average)"
        gain += " over the fastest known"
    return (
        f"{count} more {'probe' if count == 1 else 'probes'}, about"
        f" {rough_duration_text(count * each_s)} on {devices}, {gain}, {outlook.grounds}; the first"
        f" would be {describe(first)}."
    )


# -- when the tuning has paid for itself ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How long a step takes with what one would launch without tuning."""

    change: StepTimeChange
    """From the answer to it."""
    text: str
    """The same in words, with where it is known from."""


def rule_of_thumb(outlook: SpeedOutlook) -> Settings | None:
    """Picks what one would launch without tuning, of what is known or expected to fit.

    The least model parallelism, then the fewest knobs off their default, then the largest
    micro-batch. ``None`` when nothing is expected to fit.
    """
    return min(
        outlook.expected,
        key=lambda s: (s.model_parallel_size, complexity(s), -s.micro_batch_size, str(s)),
        default=None,
    )


def paid_for_itself(known: Knowledge, best: Finding, outlook: SpeedOutlook) -> Iterator[str]:
    """Says what the tuning has cost, and after how many steps it has saved that."""
    spent = cost(known.study)
    wall_s = spent.wall_s
    said = f"{rough_duration_text(wall_s)} and {spent.device_s:,.0f} device-seconds so far"
    settings = rule_of_thumb(outlook)
    if settings is None or not wall_s:
        return
    if settings == best.settings:
        yield f"The rule of thumb, {RULE}, leads to the same settings: tuning, {said}, confirms it."
        return
    rule = _rule(known, best, settings, outlook)
    yield (
        f"The rule of thumb, {RULE}, leads to {describe(settings)}, which takes {rule.text}."
        f" {_break_even(wall_s, said, best.seconds, rule.change)}"
    )


def _rule(known: Knowledge, best: Finding, settings: Settings, outlook: SpeedOutlook) -> Rule:
    compared = compared_settings(known)
    found = compared.get(settings)
    if found is not None:
        change, seconds, source = (
            change_between(compared[best.settings], found),
            found.seconds,
            found.source,
        )
    else:
        believed = outlook.seconds(settings)
        assert believed.value is not None
        change, seconds = change_of(best.step_time, believed), believed.value
        source = outlook.grounds
    return Rule(change=change, text=f"{seconds_text(seconds)} for a step ({change}; {source})")


def _break_even(wall_s: float, cost: str, seconds: float, change: StepTimeChange) -> str:
    """After how many steps of the answer, each ``seconds`` long, the tuning has paid."""
    if change.ratio <= 1:
        return f"That is no slower, so the tuning, {cost}, has saved no time."
    steps, soonest, latest = (
        wall_s / (seconds * (ratio - 1)) if ratio > 1 else inf
        for ratio in (change.ratio, change.high, change.low)
    )
    return (
        f"Against that the tuning, {cost}, has paid for itself after {_steps(steps)},"
        f" {rough_duration_text(steps * seconds)} of training (80% interval {_steps(soonest)} to"
        f" {_steps(latest)}){_saved(wall_s, change)}."
    )


def _steps(count: float) -> str:
    return "never" if count == inf else f"{max(ceil(count), 1):,} steps"


def _saved(wall_s: float, change: StepTimeChange) -> str:
    """How much shorter a long job is, or longer where it does not run long enough to save."""
    saved, low, high = (
        JOB_S * (ratio - 1) - wall_s for ratio in (change.ratio, change.low, change.high)
    )
    ends = f"{_shorter(low)} to {_shorter(high)}"
    if saved < 0 and high < 0:
        ends = f"{rough_duration_text(-high)} to {rough_duration_text(-low)}"
    return (
        f"; a job that takes {rough_duration_text(JOB_S)} with the answer is"
        f" {rough_duration_text(abs(saved))} {'shorter' if saved >= 0 else 'longer'} for it"
        f" (80% interval {ends}), what tuning took deducted"
    )


def _shorter(seconds: float) -> str:
    """Seconds that are saved; a loss is called one."""
    told = rough_duration_text(abs(seconds))
    return told if seconds >= 0 else f"{told} longer"
