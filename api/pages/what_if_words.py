"""Predictions beside the best settings, in sentences."""

from collections.abc import Iterator

from tuner.answering.words import speed_text
from tuner.planner.words import share_text
from tuner.quantity import Quantity
from tuner.results import Figures, WhatIf
from tuner.settings import KNOBS
from tuner.sizes import size_text
from tuner.space.dead import show
from tuner.suggestion import GIB, Candidate

SAME = 0.0005
"""Relative difference below which two figures are called equal."""


def verdict(found: WhatIf) -> str:
    """Whether settings fit: ``Fits: 61.2 GiB of 75.7 GiB``."""
    need, limit = found.memory_gib, size_text(found.limit_gib * GIB)
    if found.fits is None or need.value is None:
        return "Not known to fit"
    if not found.fits:
        over = need.value - found.limit_gib
        if over <= 0:
            return "Does not run"
        return f"Does not fit: {size_text(over * GIB)} over the limit of {limit}"
    words = f"{size_text(need.value * GIB)} of {limit}"
    is_sure = need.high is not None and need.high <= found.limit_gib
    return f"Fits: {words}" if is_sure else f"Fits, but only just: {words}"


def against_best(found: WhatIf, best: WhatIf, per: str) -> tuple[str, ...]:
    """What differs from the best settings, all of it as predicted."""
    return tuple(_against(found, best, per))


def _against(found: WhatIf, best: WhatIf, per: str) -> Iterator[str]:
    changes = [
        f"{knob} {show(getattr(best.settings, knob))} → {show(getattr(found.settings, knob))}"
        for knob in KNOBS
        if getattr(found.settings, knob) != getattr(best.settings, knob)
    ]
    yield f"Changed: {', '.join(changes)}."
    speed = _faster(found.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu)
    if speed:
        theirs = speed_text(best.tokens_per_s_per_gpu.value)
        is_within = _is_within(found.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu)
        off = ", which is less than either may be off by" if is_within else ""
        yield (
            f"{speed} than the best settings are predicted to be"
            f" ({theirs} tokens/s per {per}){off}."
        )
    if found.memory_gib.value is not None and best.memory_gib.value is not None:
        theirs = size_text(best.memory_gib.value * GIB)
        difference_gib = found.memory_gib.value - best.memory_gib.value
        yield f"{_more(difference_gib)} the best settings are predicted to need ({theirs})."


def against_measured(seen: Figures, best: Candidate | None) -> str:
    """How what was measured compares with the best settings; empty where it cannot be said."""
    if best is None or best.basis is not None or best.settings == seen.settings:
        return ""
    words = _faster(seen.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu)
    return f"{words} than the best" if words else ""


def _faster(one: Quantity, other: Quantity) -> str:
    """``4.0% faster``; empty where either is unknown."""
    if not one.value or not other.value:
        return ""
    ratio = one.value / other.value
    if abs(ratio - 1) < SAME:
        return "No faster and no slower"
    return f"{share_text(abs(ratio - 1))} {'faster' if ratio > 1 else 'slower'}"


def _more(difference_gib: float) -> str:
    """``As much memory as``, ``1.31 GiB more memory than``."""
    if abs(difference_gib * GIB) < 2**20:
        return "As much memory as"
    more = "more" if difference_gib > 0 else "less"
    return f"{size_text(abs(difference_gib) * GIB)} {more} memory than"


def _is_within(one: Quantity, other: Quantity) -> bool:
    """Whether each lies in the other's interval, though they are not equal."""
    if not one.value or not other.value or abs(one.value / other.value - 1) < SAME:
        return False
    return _holds(one, other.value) and _holds(other, one.value)


def _holds(quantity: Quantity, value: float) -> bool:
    low, high = quantity.low, quantity.high
    return low is not None and high is not None and low <= value <= high
