"""Findings that the fastest was chosen from, with intervals that hold for what was chosen.

Values stay what was measured; only the ends of intervals move (:mod:`tuner.planner.joint_times`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import exp

from tuner.identity_keys import Same
from tuner.measurement import Measurement
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge
from tuner.planner.luck import seen_luck
from tuner.planner.ranking import indistinguishable
from tuner.planner.timing import logs, runs_timed
from tuner.quantity import QUANTILE, Quantity
from tuner.settings import Settings


def fair(known: Knowledge) -> Mapping[Settings, Finding]:
    """All that fits, contenders with intervals that hold whichever of them is the answer.

    Contenders are those that the fastest cannot be told apart from, or that are nearly as fast.
    One that has none beside it keeps its own interval.
    """
    return _fair(Same(known))


# The sentences of one answer, and its figures, ask for the same again.
@lru_cache(maxsize=8)
def _fair(key: Same[Knowledge]) -> Mapping[Settings, Finding]:
    known = key.value
    from tuner.planner.joint_times import REACH, Seen, joint_ends  # imports NumPy

    fitting = known.fitting
    found = {finding.settings: finding for finding in fitting}
    contenders = [f for f in fitting if indistinguishable(fitting[0], f, REACH)]
    if len(contenders) < 2:
        return found
    luck = seen_luck(map(_measurements, known.findings.values()))
    seen = []
    for one in contenders:
        value, low, high = logs(one.spread)
        runs = runs_timed(_measurements(one), one.settings.gradient_accumulation_steps)
        whole = ((value - low) ** 2 + (high - value) ** 2) / 2
        steps = max(whole - luck.half_width(runs) ** 2, 0.0) / QUANTILE**2
        seen.append(Seen(value=value, runs=runs, steps=steps))
    ends = joint_ends(tuple(seen), luck)
    return found | {f.settings: _moved(f, *at) for f, at in zip(contenders, ends, strict=True)}


def _measurements(finding: Finding) -> list[Measurement]:
    return [probe.measurement for probe in finding.probes if probe.measurement]


def _moved(finding: Finding, low: float, high: float) -> Finding:
    """A finding with other ends of its interval, in logarithms; what the model adds is kept."""
    whole, timed = logs(finding.step_time), logs(finding.spread)
    return replace(
        finding,
        step_time=_with_ends(
            finding.step_time, low + whole[1] - timed[1], high + whole[2] - timed[2]
        ),
        spread=_with_ends(finding.spread, low, high),
    )


def _with_ends(quantity: Quantity, low: float, high: float) -> Quantity:
    """The interval, made to hold the value: an answer's own time is never told to be impossible."""
    value = quantity.value
    assert value is not None
    return replace(quantity, low=min(exp(low), value), high=max(exp(high), value))
