"""Why the answer is the answer: sentences that name the probes and predictions behind them.

- :mod:`~tuner.planner.explain_best`: why this one, and what was second.
- :mod:`~tuner.planner.explain_knobs`: which knob mattered how much.
- :mod:`~tuner.planner.explain_worth`: what more probes may gain, and when tuning has paid.
- :mod:`~tuner.planner.explain_failures`: what failed, and how much was seen.
"""

from collections.abc import Iterator

from tuner.planner.explain_best import allocator, extrapolation, runner_up, tie, why_this
from tuner.planner.explain_failures import (
    coverage,
    failures,
    finished,
    out_of_memory,
    stopped_early,
)
from tuner.planner.explain_knobs import knob_effects
from tuner.planner.explain_worth import more_probes, paid_for_itself
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge
from tuner.planner.other_fidelity import earlier_texts
from tuner.planner.ranking import Choice
from tuner.planner.scripts import what_ran
from tuner.planner.speed_outlook import SpeedOutlook
from tuner.planner.verdicts import wrong_ones


def explain(known: Knowledge, choice: Choice[Finding]) -> tuple[str, ...]:
    """Sentences for people on an answer that was probed, most important first."""
    outlook = SpeedOutlook(known)
    wrong = wrong_ones(known.wrong)
    sentences = *_of_best(known, choice, outlook), *what_failed(known), *wrong
    return (*sentences, *what_is_left(known, outlook))


def what_failed(known: Knowledge) -> Iterator[str]:
    """Which probes came to nothing."""
    yield from out_of_memory(known)
    yield from stopped_early(known)
    yield from failures(known)


def what_is_left(known: Knowledge, outlook: SpeedOutlook | None = None) -> Iterator[str]:
    """What more probes may gain, and how much was seen."""
    if finished(known):
        outlook = outlook or SpeedOutlook(known)
        yield from more_probes(known, outlook)
        yield from _others(known, outlook)
    yield from coverage(known)


def _others(known: Knowledge, outlook: SpeedOutlook) -> Iterator[str]:
    """Which other studies correct what is predicted, and when and with what these ran."""
    if outlook.others:
        count = len(outlook.others)
        counted = "1 study" if count == 1 else f"{count} studies"
        named = earlier_texts(known.study.question, outlook.others)
        yield f"Other studies' probes are those of {counted} on such devices: {named}."


def _of_best(known: Knowledge, choice: Choice[Finding], outlook: SpeedOutlook) -> Iterator[str]:
    best = choice.best
    yield why_this(known, best)
    yield from what_ran(known, best)
    yield from tie(known, choice)
    yield from runner_up(known, choice)
    yield from extrapolation(best)
    yield from allocator(best)
    yield from knob_effects(known, best, outlook)
    yield from paid_for_itself(known, best, outlook)
