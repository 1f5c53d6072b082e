"""Settings and numbers as people read them."""

from collections.abc import Iterable
from functools import lru_cache

from tuner.core.configuration import BATCH, Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Quantity
from tuner.core.study import Probe, Question
from tuner.text import size_number, size_text, size_unit

# Probes, or studies, that one sentence names.
MOST_NAMED = 3

_ALWAYS = ("sharding", *BATCH)
_DEFAULTS = frozenset(str(Settings()).split(","))


# The same settings are told in many places of an answer and of a page.
@lru_cache(maxsize=4096)
def describe(settings: Settings) -> str:
    """``knob=value,...`` of what matters: batch sizes, sharding, and knobs off their default."""
    return ",".join(
        part
        for part in str(settings).split(",")
        if part not in _DEFAULTS or part.partition("=")[0] in _ALWAYS
    )


def describe_class(settings: Settings) -> str:
    """Describes a layout: as :func:`describe`, without the batch sizes."""
    parts = describe(settings).split(",")
    return ",".join(part for part in parts if part.partition("=")[0] not in BATCH)


def probe_word(fidelity: Fidelity) -> str:
    """``probe``, or ``dry run`` of what runs no step."""
    return "dry run" if fidelity is Fidelity.PREDICTED else "probe"


def probe_name(probe: Probe) -> str:
    """``probe #3``, or ``dry run #d3``."""
    return f"{probe_word(probe.request.fidelity)} {probes_text([probe.id])}"


def seconds_text(seconds: float) -> str:
    if seconds == 0 or abs(seconds) >= 100:
        return f"{seconds:.0f} s"
    text = f"{seconds:.3g}"  # without an exponent
    return f"{f'{seconds:.6f}'.rstrip('0') if 'e' in text else text} s"


def change_text(ratio: float) -> str:
    """Says a ratio of times: ``25% longer`` of 1.25, ``20% shorter`` of 0.8."""
    return f"{share_text(abs(ratio - 1))} {_direction(ratio)}"


def change_range_text(low: float, high: float) -> str:
    """``20% to 30% longer`` of ratios of times, or ``1.0% shorter to 2.0% longer``."""
    if _direction(low) == _direction(high):
        ends = sorted((abs(low - 1), abs(high - 1)))
        return f"{share_text(ends[0])} to {share_text(ends[1])} {_direction(low)}"
    return f"{change_text(low)} to {change_text(high)}"


def share_text(share: float) -> str:
    """``1.5%`` of 0.015, ``25%`` of 0.25."""
    percent = share * 100
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def interval_text(seconds: Quantity) -> str:
    """``80% interval 1.9 s to 2.1 s`` of seconds that are known."""
    assert seconds.low is not None
    assert seconds.high is not None
    return f"80% interval {seconds_text(seconds.low)} to {seconds_text(seconds.high)}"


def rough_duration_text(seconds: float) -> str:
    """``40 s``, ``12 min``, ``2.3 h`` or ``5.0 days``, for what is estimated."""
    units = (("days", 86_400.0, 2.0), ("h", 3600.0, 1.5), ("min", 60.0, 1.5), ("s", 1.0, 0.0))
    unit, length_s, _ = next(one for one in units if seconds >= one[2] * one[1] or one[0] == "s")
    value = seconds / length_s  # two digits, or all before the point
    return f"{f'{value:.1f}' if value < 9.95 else f'{value:.0f}'} {unit}"


def listed(items: Iterable[str]) -> str:
    """``a``, ``a and b``, or ``a, b and c``."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def number_text(number: int) -> str:
    """``3`` of a probe, or ``d3`` of a dry run, which are counted apart."""
    return str(number) if number > 0 else f"d{-number}"


def probes_text(ids: Iterable[int]) -> str:
    """``#3``, or ``#3, #9``, or ``#d1`` of a dry run."""
    return ", ".join(f"#{number_text(number)}" for number in ids)


def _direction(ratio: float) -> str:
    return "longer" if ratio >= 1 else "shorter"


def rank_word(question: Question) -> str:
    """Names a rank for its user: a GPU, or just a rank where it is a CPU process."""
    return "rank" if question.cluster.gpu.device == "cpu" else "GPU"


def speed_text(tokens_per_s: float | None) -> str:
    """Tokens per second with three digits or more."""
    if tokens_per_s is None:
        return "-"
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"


def range_text(quantity: Quantity) -> str:
    """``1,201 to 1,260``."""
    return f"{speed_text(quantity.low)} to {speed_text(quantity.high)}"


def rate_text(speed: Quantity, per: str) -> str:
    """``1,243 tokens/s per GPU (1,201 to 1,260)``."""
    return f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)})"


def memory_range_text(candidate: Evaluation, per: str) -> str:
    """``1.61 GiB (1.60 to 1.70) needed per GPU, of 1.90 GiB``: the one figure of memory."""
    limit = size_text(candidate.limit_gib * GIB)
    return f"{sizes_text(candidate.needed_gib)} needed per {per}, of {limit}"


def sizes_text(quantity_gib: Quantity) -> str:
    """``12.5 GiB``, or ``12.5 GiB (12.1 to 12.9)`` where the interval is wider than the digits.

    ``up to 12.5 GiB (at least 12.1)`` where the value is the upper end: there is no more.
    """
    value, low, high = quantity_gib.value, quantity_gib.low, quantity_gib.high
    if value is None or low is None or high is None:
        return "unknown"
    unit, divisor = size_unit(high * GIB)
    texts = [size_number(size * GIB, divisor) for size in (value, low, high)]
    if len(set(texts)) == 1:
        return f"{texts[0]} {unit}"
    if value >= high:
        return f"up to {texts[0]} {unit} (at least {texts[1]})"
    return f"{texts[0]} {unit} ({texts[1]} to {texts[2]})"


def need_text(least: Evaluation, limit_bytes: float, *, named: bool = True) -> str:
    """Says what the configuration that needs least needs, where nothing fits, and which it is."""
    if least.basis is None:
        known, size, basis = "known", least.most_bytes, f"probe {probes_text(least.probe_ids[:1])}"
    else:
        known = "rehearsed" if least.is_rehearsed else "predicted"
        size, basis = least.expected_bytes, "by arithmetic"
        ran = "probe" if least.is_rehearsed else "dry run"
        basis = f"{ran} {probes_text(least.probe_ids[:1])}" if least.probes else basis
    more = "at least " if least.at_least else ""
    may_fit = least.fits and not least.fits_surely
    needed = sizes_text(least.needed_gib) if may_fit else f"{more}{size_text(size)}"
    whose = f", of {describe(least.settings)} ({basis})" if named else ""
    then = "it may run out of memory, for the limit is" if may_fit else "the limit is"
    return (
        f"the smallest need {known} is {needed} on one device{whose}; {then}"
        f" {size_text(limit_bytes)}"
    )
