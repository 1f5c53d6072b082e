"""Tables of probes and of candidates, and how their sizes and speeds are written."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.cli.console import Column, natural_width, table_of
from tuner.core.answer import Suggestion
from tuner.core.configuration import KNOBS, Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.measurement import RAN, Outcome
from tuner.core.quantity import Quantity
from tuner.core.words import number_text, speed_text
from tuner.explain.brief import BASES
from tuner.results.points import differing, knob_texts, outcome_text
from tuner.text import size_number, size_text, size_unit, time_text

# Outcomes that would make the table too wide, or read like a failure.
SHORT: Mapping[str, str] = {
    Outcome.OOM: "oom",
    Outcome.COMMUNICATION_ERROR: "comm error",
    Outcome.STOPPED_EARLY: "ended early",
}


def probes_table(
    rows: Sequence[Evaluation],
    knobs: Sequence[str],
    *,
    width: int,
    per: str = "GPU",
    best: Settings | None = None,
) -> Table:
    """The probes as a table, in the order that they come in."""
    unit, divisor = size_unit(max((row.expected_bytes for row in rows), default=0) or GIB)

    def memory(row: Evaluation) -> str:
        if row.needed_bytes.value is None:
            return "-"
        return f"{'>' if row.at_least else ''}{size_number(row.expected_bytes, divisor)}"

    def interval(row: Evaluation) -> str:
        time = row.step_time_s
        return "-" if time.value is None else f"{time_text(time.low)}-{time_text(time.high)}"

    def style(row: Evaluation) -> str:
        if row.settings == best:
            return "bold green"
        return "cyan" if row.outcome is None else "" if row.outcome in RAN else "red"

    ids = ["*" * (row.settings == best) + ",".join(map(number_text, row.probe_ids)) for row in rows]
    speeds = [speed_text(row.tokens_per_s_per_gpu.value) for row in rows]
    ended = [SHORT.get(row.outcome or "", outcome_text(row)) for row in rows]
    columns = [
        Column("probe", ids, is_number=True),
        *knob_columns([row.settings for row in rows], knobs),
        Column(f"needed\n{unit}", [memory(row) for row in rows], is_number=True),
        Column(f"tokens/s\nper {per}", speeds, is_number=True),
        Column("outcome", ended),
    ]
    for column in (
        Column("step\ns", [time_text(row.step_time_s.value) for row in rows], is_number=True),
        Column("80%\ninterval", [interval(row) for row in rows], is_number=True),
    ):
        if natural_width([*columns, column]) <= width:
            columns.insert(-2, column)
    return table_of(columns, width, [style(row) for row in rows])


def knob_columns(settings: Sequence[Settings], knobs: Sequence[str]) -> list[Column]:
    texts = [knob_texts(one) for one in settings]
    return [
        Column(KNOBS[knob].head, [one[knob] for one in texts], is_number=KNOBS[knob].kind is int)
        for knob in knobs
    ]


def show_candidates(
    console: Console, suggestion: Suggestion, per: str, best_is: str = "the answer"
) -> None:
    """The table of the best configurations and of those next to them, fastest first.

    Where no speed is known there is no best, and what fits is listed in its own order.
    """
    best = suggestion.best
    found = [*([best] if best else []), *suggestion.alternatives]
    if not found:
        return
    found.sort(key=lambda one: (one is not best, one.step_time_s.value or 0.0))
    sizes = [(one.needed_gib.value or 0.0) * GIB for one in found]
    unit, divisor = size_unit(max(sizes))
    settings = [one.settings for one in found]
    columns = [
        Column("", ["*" if one is best else "" for one in found]),
        *knob_columns(settings, differing(settings)),
    ]
    if best:
        steps = [time_text(one.step_time_s.value) for one in found]
        speeds = [speed_text(one.tokens_per_s_per_gpu.value) for one in found]
        columns.append(Column("step\ns", steps, is_number=True))
        columns.append(Column(f"tokens/s\nper {per}", speeds, is_number=True))
    memory = [size_number(size, divisor) for size in sizes]
    columns.append(Column(f"needed\n{unit}", memory, is_number=True))
    columns.append(Column("from", [BASES[one.basis] if one.basis else "" for one in found]))
    styles = ["bold green" if one is best else "" for one in found]
    console.print(table_of(columns, console.width, styles))
    told = f"* is {best_is}; the others by speed" if best else "these fit"
    console.print(Text(f"{told}; memory is what each device needs", style="dim"))


def spare_text(allocated_bytes: float, reserved_bytes: float, limit_bytes: float) -> str:
    """Says that what is reserved beyond the limit is free, and no reason to run out of memory."""
    if reserved_bytes <= limit_bytes:
        return ""
    free = size_text(reserved_bytes - allocated_bytes)
    return f", {free} of it free, which the allocator gives back before it fails"


def seconds_text(step: Quantity) -> str:
    """``0.35 s (0.34 to 0.36)``."""
    return f"{time_text(step.value)} s ({time_text(step.low)} to {time_text(step.high)})"
