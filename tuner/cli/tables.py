"""Plain tables, laid out for the terminal's width."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from tuner.cli.columns import Column, natural_width, table_of
from tuner.core.configuration import KNOBS, Settings
from tuner.core.measurement import Outcome
from tuner.core.study import ProbeState
from tuner.core.words import speed_text
from tuner.results.points import Row, knob_texts
from tuner.text import size_number, size_unit, time_text

# Outcomes that would make the table too wide, or read like a failure.
SHORT: Mapping[str, str] = {
    Outcome.COMMUNICATION_ERROR: "comm error",
    Outcome.STOPPED_EARLY: "ended early",
}
PENDING = frozenset(ProbeState) - {ProbeState.DONE}


def probes_table(
    rows: Sequence[Row],
    knobs: Sequence[str],
    *,
    width: int,
    per: str = "GPU",
    best: Settings | None = None,
) -> Table:
    """The probes as a table.

    Args:
        rows: in the order to be shown.
        knobs: the knobs to show; see :func:`tuner.results.points.differing`.
        width: columns of the terminal; what there is no room for is left out.
        per: what a rank is, in a word.
        best: settings to mark as the answer.
    """
    unit, divisor = size_unit(max((row.needed_bytes or 0 for row in rows), default=0))
    speeds = [speed_text(row.speed.value) for row in rows]
    columns = [
        Column("probe", [_ids(row, best) for row in rows], is_number=True),
        *_knob_columns(rows, knobs),
        Column(f"memory\n{unit}", [memory_text(row, divisor) for row in rows], is_number=True),
        Column(f"tokens/s\nper {per}", speeds, is_number=True),
        Column("outcome", [_outcome(row) for row in rows]),
    ]
    for column in (
        Column("step\ns", [time_text(row.step_time.value) for row in rows], is_number=True),
        Column("80%\ninterval", [_interval(row) for row in rows], is_number=True),
    ):
        if natural_width([*columns, column]) <= width:
            columns.insert(-2, column)
    return table_of(columns, width, [_style(row, row.settings == best) for row in rows])


def common_text(rows: Sequence[Row], knobs: Sequence[str]) -> str:
    """The knobs that are not shown and act alike in all rows, as a line below the table."""
    texts = [knob_texts(row.settings) for row in rows]
    values = {knob: {one[knob] for one in texts} for knob in KNOBS if knob not in knobs}
    same = [
        f"{knob} {found.pop()}"
        for knob, found in values.items()
        if len(found - {"-"}) == len(found) == 1
    ]
    return f"everywhere: {', '.join(same)}" if same else ""


def memory_text(row: Row, divisor: int) -> str:
    """Memory in the table's unit; ``>`` where it is a lower bound."""
    if row.needed_bytes is None:
        return "-"
    text = size_number(row.needed_bytes, divisor)
    return f">{text}" if row.at_least else text


def _knob_columns(rows: Sequence[Row], knobs: Sequence[str]) -> Iterator[Column]:
    texts = [knob_texts(row.settings) for row in rows]
    for knob in knobs:
        number = knob.endswith(("_size", "_steps"))
        yield Column(KNOBS[knob].head, [one[knob] for one in texts], is_number=number)


def _ids(row: Row, best: Settings | None) -> str:
    return ("*" if row.settings == best else "") + ",".join(map(str, row.ids))


def _interval(row: Row) -> str:
    if row.step_time.value is None:
        return "-"
    return f"{time_text(row.step_time.low)}-{time_text(row.step_time.high)}"


def _outcome(row: Row) -> str:
    return SHORT.get(row.outcome, row.outcome)


def _style(row: Row, chosen: bool) -> str:
    if chosen:
        return "bold green"
    if row.outcome in PENDING:
        return "cyan"
    return "" if row.ran else "red"
