"""Why the answer is the answer: sentences that name the probes and predictions behind them.

- :mod:`~tuner.planner.explain_best`: why this one, and what was second.
- :mod:`~tuner.planner.explain_knobs`: which knob mattered how much.
- :mod:`~tuner.planner.explain_worth`: what more probes may gain, and when tuning has paid.
- :mod:`~tuner.planner.explain_failures`: what failed, and how much was seen.
"""

from collections.abc import Iterator

from tuner.planner.explain_best import extrapolation, runner_up, tie, why_this
from tuner.planner.explain_failures import coverage, failures, out_of_memory, stopped_early
from tuner.planner.explain_knobs import knob_effects
from tuner.planner.explain_worth import more_probes, paid_for_itself
from tuner.planner.knowledge import Finding, Knowledge
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.ranking import Choice
from tuner.planner.speed_outlook import SpeedOutlook
from tuner.planner.verdicts import wrong_ones
from tuner.sizes import size_text


def explain(known: Knowledge, choice: Choice[Finding] | None) -> tuple[str, ...]:
    """Sentences for people, most important first."""
    outlook = SpeedOutlook(known)
    sentences = _of_best(known, choice, outlook) if choice else _of_nothing(known)
    failed = (*out_of_memory(known), *stopped_early(known), *failures(known))
    wrong = wrong_ones(known.study, known.space.legal)
    more = more_probes(known, outlook) if known.repetitions else ()
    return (*sentences, *failed, *wrong, *more, *coverage(known))


def _of_best(known: Knowledge, choice: Choice[Finding], outlook: SpeedOutlook) -> Iterator[str]:
    best = choice.best
    yield why_this(known, best)
    yield from tie(known, choice)
    yield from runner_up(known, choice)
    yield from extrapolation(best)
    yield from knob_effects(known, best, outlook)
    yield from paid_for_itself(known, best, outlook)


def _of_nothing(known: Knowledge) -> Iterator[str]:
    if not known.repetitions:
        yield "Nothing was probed yet, so there is no answer."
        return
    yield f"None of the settings probed was seen to fit in {size_text(known.limit_bytes)}."
    if need := MemoryOutlook(known).smallest_need():
        yield f"{need[0].upper()}{need[1:]}."
