"""A predicted answer, for people: what is from dry runs, what is arithmetic, where memory goes."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.cli.columns import Column, table_of
from tuner.core.answer import Candidate, Suggestion
from tuner.core.configuration import KNOBS
from tuner.core.evaluation import GIB
from tuner.core.measurement import Basis
from tuner.core.quantity import Provenance, Quantity
from tuner.core.words import range_text, speed_text
from tuner.results.points import differing, knob_texts
from tuner.text import size_number, size_text, size_unit, time_text

# What allocated memory was computed from.
BASES: Mapping[Basis, str] = {Basis.DRY_RUN: "dry run", Basis.ARITHMETIC: "arithmetic"}


def show_candidates(console: Console, suggestion: Suggestion, per: str) -> None:
    """The table of the best settings and of those next to them, fastest first.

    Where no speed is known there is no best, and what fits is listed in its own order.
    """
    best = suggestion.best
    found = [*([best] if best else []), *suggestion.alternatives]
    if not found:
        return
    table = _table(sorted(found, key=_seconds), best, width=console.width, per=per)
    console.print(table)
    speeds = (
        f"* is the answer. Speeds are {_speeds(found)}; memory" if best else "These fit. Memory"
    )
    legend = (
        f"{speeds} is what tensors take at the peak, from a dry run of the settings' class or by"
        " arithmetic."
    )
    console.print(Text(legend, style="dim"))


def predicted_facts(best: Candidate, per: str) -> Iterator[tuple[str, str]]:
    """Lists the predictions for the best configuration, for the facts of an answer."""
    speed, step = best.tokens_per_s_per_gpu, best.step_time_s
    assert best.basis is not None
    yield "speed", f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)})"
    yield "", f"{_seconds_range(step)} for an optimizer step"
    limit = size_text(best.limit_gib * GIB)
    yield "memory", f"{sizes_text(best.needed_gib)} needed per {per}, of {limit}"
    if best.needed_gib.value != best.allocated_gib.value:
        yield "", f"{sizes_text(best.allocated_gib)} of it allocated"
    yield "", f"{sizes_text(best.reserved_gib)} reserved{_spare(best)}"
    yield "", f"{sizes_text(best.device_gib)} on the device, as its own tool shows it"
    yield "at the peak", _sizes(best.breakdown_gib)
    yield "peaks", _sizes(best.by_phase_gib)
    memory_is = BASES[best.basis]
    if step.provenance is Provenance.TRANSFERRED:
        yield "speed is", f"{step.provenance}: arithmetic, corrected by what other studies measured"
        yield "memory is", f"predicted, allocated memory by {memory_is}"
    else:
        yield "both are", f"predicted: speed by arithmetic, allocated memory by {memory_is}"


def _speeds(found: Sequence[Candidate]) -> str:
    """Names the speeds of a table."""
    if any(one.step_time_s.provenance is Provenance.TRANSFERRED for one in found):
        return "arithmetic, corrected by what other studies measured"
    return "arithmetic"


def _spare(best: Candidate) -> str:
    """Why more than the limit may be reserved by what fits; empty where it is not."""
    return spare_text(
        (best.allocated_gib.value or 0.0) * GIB,
        (best.reserved_gib.value or 0.0) * GIB,
        best.limit_gib * GIB,
    )


def spare_text(allocated_bytes: float, reserved_bytes: float, limit_bytes: float) -> str:
    """Says that what is reserved beyond the limit is free, and no reason to run out of memory."""
    if reserved_bytes <= limit_bytes:
        return ""
    free = size_text(reserved_bytes - allocated_bytes)
    return f", {free} of it free, which the allocator gives back before it fails"


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


def _table(found: Sequence[Candidate], best: Candidate | None, *, width: int, per: str) -> Table:
    unit, divisor = size_unit(max(one.allocated_gib.value or 0.0 for one in found) * GIB)
    texts = [knob_texts(one.settings) for one in found]
    columns = [
        Column("", ["*" if one is best else "" for one in found]),
        *(
            _knob_column(knob, [one[knob] for one in texts])
            for knob in differing([one.settings for one in found])
        ),
        *(_time_columns(found, per) if best else ()),
        Column(
            f"memory\n{unit}",
            [size_number((one.allocated_gib.value or 0.0) * GIB, divisor) for one in found],
            is_number=True,
        ),
        Column("from", [BASES[one.basis] if one.basis else "" for one in found]),
    ]
    return table_of(columns, width, ["bold green" if one is best else "" for one in found])


def _time_columns(found: Sequence[Candidate], per: str) -> tuple[Column, Column]:
    steps = [time_text(one.step_time_s.value) for one in found]
    speeds = [speed_text(one.tokens_per_s_per_gpu.value) for one in found]
    return (
        Column("step\ns", steps, is_number=True),
        Column(f"tokens/s\nper {per}", speeds, is_number=True),
    )


def _knob_column(knob: str, cells: list[str]) -> Column:
    return Column(KNOBS[knob].head, cells, is_number=KNOBS[knob].kind is int)


def _seconds(one: Candidate) -> float:
    return one.step_time_s.value or 0.0


def _seconds_range(step: Quantity) -> str:
    return f"{time_text(step.value)} s ({time_text(step.low)} to {time_text(step.high)})"


def _sizes(sizes_gib: Mapping[str, float]) -> str:
    """Largest first; what is nothing is left out."""
    largest = sorted(filter(sizes_gib.__getitem__, sizes_gib), key=lambda name: -sizes_gib[name])
    return ", ".join(
        f"{name.replace('_', ' ')} {size_text(sizes_gib[name] * GIB)}" for name in largest
    )
