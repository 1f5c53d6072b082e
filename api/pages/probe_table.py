"""The table of a study's probes: its columns, and its rows in any order, of any outcome."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape

from tuner.core.configuration import KNOBS, Settings
from tuner.core.measurement import RAN, Fidelity, Outcome
from tuner.core.quantity import UNKNOWN
from tuner.core.study import Probe, ProbeState
from tuner.core.words import probe_word, probes_text, rank_word, speed_text
from tuner.errors import UsageError
from tuner.results.points import Evidence, differing, knob_texts
from tuner.text import duration_text, show, size_number, size_unit, time_text

# The filter that shows all probes.
ANY = ""
FASTEST_FIRST = "-speed"
# In the order in which a table sorts them.
FIDELITIES = tuple(Fidelity)


class ProbeCell(NamedTuple):
    """One thing that is known of a probe; ``order`` sorts the rows, and ``None`` goes last."""

    text: str
    order: Any


class ProbeRow(NamedTuple):
    """One probe in the table."""

    id: int
    outcome: str
    failed: bool
    is_best: bool
    cells: Mapping[str, ProbeCell]
    """By the key of a column, in their order."""


class Column(NamedTuple):
    """One column of a table that can be sorted."""

    key: str
    """In ``?sort=``; the knob's name, or what it shows."""
    title: str
    falls: bool = False
    """Whether it is sorted from the largest first."""
    is_figure: bool = False
    """Whether it is set flush right, as what was measured is."""


class Sorted:
    """Rows in an order that an address has."""

    __slots__ = ()
    sort: str
    """Key of a column, after ``-`` from the largest first."""

    def sorted_by(self, column: Column) -> str:
        """``ascending`` or ``descending`` where the rows are sorted by a column, else empty."""
        if self.sort.removeprefix("-") != column.key:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"

    def sorting(self, column: Column) -> str:
        """The order by a column, the other way round where it is so already."""
        now = self.sorted_by(column)
        falls = now == "ascending" if now else column.falls
        return f"-{column.key}" if falls else column.key


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTable(Sorted):
    """A study's probes in the order of ``sort``, those of ``outcome``."""

    study_id: str
    columns: tuple[Column, ...]
    rows: tuple[ProbeRow, ...]
    unit: str
    """Of memory."""
    common: str
    """Knobs without a column, which are the same in all probes, in words."""
    nouns: str
    """``probes``, ``dry runs``, or both."""
    counts: Mapping[str, int]
    """Probes of each outcome, or state of those that have none; of all under :data:`ANY`."""
    sort: str = FASTEST_FIRST
    """Key of a column, after ``-`` from the largest first."""
    outcome: str = ANY

    def chosen(self, sort: str, outcome: str) -> "ProbeTable":
        """The table in an order, of an outcome; made of the whole table."""
        keys = [column.key for column in self.columns]
        key = sort.removeprefix("-")
        if key not in keys:
            raise UsageError("sort", sort, f"must be one of {', '.join(keys)}, or one after -")
        if outcome and outcome not in {*self.counts, *Outcome, *ProbeState}:
            allowed = f"must be one of {', '.join(filter(None, self.counts))}"
            raise UsageError("outcome", outcome, allowed)
        rows = sorted(
            (row for row in self.rows if outcome in (ANY, row.outcome)),
            key=lambda row: row.cells["id"].order,
        )
        known = [row for row in rows if row.cells[key].order is not None]
        known.sort(key=lambda row: row.cells[key].order, reverse=sort.startswith("-"))
        unknown = [row for row in rows if row.cells[key].order is None]
        return replace(self, rows=(*known, *unknown), sort=sort, outcome=outcome)

    @property
    def is_chosen(self) -> bool:
        """True where somebody asked for this order, or this outcome."""
        return (self.sort, self.outcome) != (FASTEST_FIRST, ANY)

    def rows_of(self, ids: Iterable[int]) -> list[ProbeRow]:
        """The rows of these probes, as far as they are shown."""
        by_id = {row.id: row for row in self.rows}
        return [by_id[one] for one in ids if one in by_id]

    def figures(self, row: ProbeRow) -> Markup:
        """The cells of a row behind its outcome, escaped together: there may be hundreds of rows,
        and end tags that HTML lets one leave out are."""
        texts = [cell.text for cell in list(row.cells.values())[2:]]
        return Markup(str(escape("\n".join(texts))).replace("\n", "<td>"))  # noqa: S704 (escaped)

    def href(self, *, sort: str = "", outcome: str | None = None) -> str:
        """The address of these rows, or of those of another order or outcome."""
        sort, outcome = sort or self.sort, self.outcome if outcome is None else outcome
        chosen = {"sort": sort} if sort != FASTEST_FIRST else {}
        chosen |= {"outcome": outcome} if outcome else {}
        query = f"?{urlencode(chosen)}" if chosen else ""
        return f"/studies/{self.study_id}{query}#probes"


def table_of(evidence: Evidence, best: Settings | None) -> ProbeTable:
    """The table of all probes, the fastest first, emulated ones at today's rates.

    ``best`` is the configuration that is the answer.
    """
    study, probes = evidence.study, evidence.repriced.probes
    knobs = differing([probe.request.settings for probe in probes]) if probes else ()
    needs = [found.needed_bytes or 0 for one in probes if (found := one.measurement)]
    unit, divisor = size_unit(max(needs, default=0) or 2**30)
    several = len({probe.request.fidelity for probe in probes}) > 1
    columns = (
        Column("id", "probe"),
        Column("outcome", "outcome"),
        *((Column("fidelity", "how"),) if several else ()),
        Column("speed", f"tokens/s per {rank_word(study.question)}", falls=True, is_figure=True),
        Column("memory", f"memory, {unit}", falls=True, is_figure=True),
        Column("step", "step, s", falls=True, is_figure=True),
        Column("took", "took", falls=True, is_figure=True),
        *(Column(knob, knob, falls=KNOBS[knob].kind is int) for knob in knobs),
    )
    rows = tuple(_row(evidence, probe, columns, divisor, best) for probe in probes)
    counts = Counter(row.outcome for row in rows)
    first = probes[0].request.settings if probes else Settings()
    meant = knob_texts(first)
    table = ProbeTable(
        study_id=study.id,
        columns=columns,
        rows=rows,
        unit=unit,
        common=", ".join(
            f"{knob}={show(value)}"
            for knob, value in (first.all_values() if probes else {}).items()
            if knob not in knobs and meant[knob] != "-"
        ),
        nouns=" and ".join(sorted({f"{probe_word(p.request.fidelity)}s" for p in probes})[::-1]),
        counts={ANY: len(rows), **dict(counts.most_common())},
    )
    return table.chosen(FASTEST_FIRST, ANY)


# A table is made again after every probe, of much the same settings.
@lru_cache(maxsize=4096)
def _knob_cells(settings: Settings) -> Mapping[str, ProbeCell]:
    meant, values = knob_texts(settings), settings.all_values()
    nothing = ProbeCell("-", None)
    return {
        knob: nothing if meant[knob] == "-" else ProbeCell(show(value), getattr(settings, knob))
        for knob, value in values.items()
    }


def _row(
    evidence: Evidence,
    probe: Probe,
    columns: Sequence[Column],
    divisor: int,
    best: Settings | None,
) -> ProbeRow:
    found, settings, fidelity = probe.measurement, probe.request.settings, probe.request.fidelity
    outcome = str(found.outcome) if found else str(probe.state)
    step = evidence.step_times.get(probe.id, UNKNOWN).value
    speed = evidence.speeds.get(probe.id, UNKNOWN).value
    needed = found.needed_bytes if found else None
    at_least = "> " if found and found.memory is None else ""
    known = {
        "id": (probes_text([probe.id]), (probe.id > 0, probe.place)),
        "outcome": (outcome, outcome),
        "fidelity": (str(fidelity), FIDELITIES.index(fidelity)),
        "memory": (f"{at_least}{size_number(needed, divisor)}" if needed else "-", needed),
        "step": (time_text(step), step),
        "speed": (speed_text(speed), speed),
        "took": (duration_text(found.wall_s), found.wall_s) if found else ("-", None),
    }
    knobs = _knob_cells(settings)
    cells = {
        (key := column.key): ProbeCell(*known[key]) if key in known else knobs[key]
        for column in columns
    }
    return ProbeRow(
        id=probe.id,
        outcome=outcome,
        failed=found is not None and found.outcome not in RAN,
        is_best=settings == best,
        cells=cells,
    )
