"""The table of a study's probes: its columns, and its rows in any order, of any outcome."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from api.pages.render import outcome as outcome_words
from tuner.answering.words import rank_word, speed_text
from tuner.errors import UsageError
from tuner.identity_keys import Same
from tuner.measurement import RAN, Fidelity, Measurement, Outcome
from tuner.planner import speed_of
from tuner.planner.probes import fits, step_time_of
from tuner.planner.repricing import repriced
from tuner.quantity import UNKNOWN
from tuner.results.rows import differing, knob_texts
from tuner.settings import KNOBS, Settings
from tuner.sizes import size_number, size_unit
from tuner.space.dead import show
from tuner.study import Probe, ProbeRequest, ProbeState, Study
from tuner.units import duration_text, time_text

ANY = ""
"""The filter that shows all probes."""
FASTEST_FIRST = "-speed"
FIGURES = frozenset({"memory", "step", "speed", "took"})
"""Columns of what was measured: the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One probe in the table."""

    id: int
    """The probe's number."""
    outcome: str
    """How it ended, or where it stands."""
    failed: bool
    """Whether it ended without its steps being done."""
    fits: bool | None
    """Whether it fits on the study's terms; ``None`` when that is not known."""
    knobs: tuple[str, ...]
    """Values of the table's knobs, in words."""
    fidelity: str
    """How it was run."""
    memory: str
    """In the table's unit, with ``>`` before a lower bound; ``-`` for unknown."""
    step: str
    """Seconds of a step; ``-`` for unknown."""
    speed: str
    """Tokens per second and rank; ``-`` for unknown."""
    took: str
    """How long it ran."""
    is_best: bool
    """Whether its settings are the answer."""
    order: Mapping[str, Any]
    """By each column what it is sorted by; ``None`` goes last, whichever way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column."""

    key: str
    """In ``?sort=``; the knob's name, or what it shows."""
    title: str
    """Above it."""
    is_number: bool
    """Whether it is sorted from the largest first."""
    is_figure: bool
    """Whether it is set flush right, as what was measured is."""
    sorted: str
    """``ascending`` or ``descending`` where rows are sorted by it, else empty."""
    href: str
    """Sorts by it, the other way round where it is sorted by already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One outcome that can be chosen."""

    title: str
    """The outcome, or ``all``."""
    count: int
    """How many probes have it."""
    outcome: str
    """In ``?outcome=``; empty for all."""
    is_current: bool
    """Whether it is chosen."""
    href: str
    """Chooses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What is known of a study's probes, and how it is shown."""

    study_id: str
    """Whose."""
    lines: tuple[Line, ...]
    """All of them, until they are chosen; in the order of :attr:`sort`."""
    knobs: tuple[str, ...]
    """Knobs that have a column: those in which probes differ."""
    common: str
    """The others, which are the same in all probes, in words."""
    unit: str
    """Of memory."""
    per: str
    """What a rank is to its user."""
    several_fidelities: bool
    """Whether it matters how each was run."""
    counts: Mapping[str, int]
    """Probes of each outcome, or state of those that have none."""
    sort: str = FASTEST_FIRST
    """Key of a column, after ``-`` from the largest first."""
    outcome: str = ANY
    """Only probes of it are shown."""

    @property
    def rows(self) -> tuple[Markup, ...]:
        """The lines as rows of HTML."""
        return tuple(map(self._row, self.lines))

    def _row(self, line: Line) -> Markup:
        how = (line.fidelity,) if self.several_fidelities else ()
        figures = (line.memory, line.step, line.speed, line.took)
        return _row(line.id, line.outcome, (*how, *line.knobs, *figures), is_best=line.is_best)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """All, and each outcome that there is."""
        total = {ANY: sum(self.counts.values())} | dict(self.counts)
        return tuple(
            Filter(
                title=outcome or "all",
                count=count,
                outcome=outcome,
                is_current=outcome == self.outcome,
                href=self._href(self.sort, outcome),
            )
            for outcome, count in total.items()
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """In their order."""
        knobs = [(knob, knob.replace("_", " "), _is_number(knob)) for knob in self.knobs]
        fidelity = [("fidelity", "how", False)] if self.several_fidelities else []
        shown = [
            ("id", "probe", True),
            ("outcome", "outcome", False),
            *fidelity,
            *knobs,
            ("memory", f"memory, {self.unit}", True),
            ("step", "step, s", True),
            ("speed", f"tokens/s per {self.per}", True),
            ("took", "took", True),
        ]
        return tuple(self._column(*one) for one in shown)

    def chosen(self, sort: str, outcome: str) -> "Table":
        """The table in an order, of an outcome.

        Raises:
            UsageError: there is no such column, or no such outcome.
        """
        keys = [column.key for column in self.columns]
        key = sort.removeprefix("-")
        if key not in keys:
            raise UsageError("sort", sort, f"must be one of {', '.join(keys)}, or one after -")
        if outcome and outcome not in {*self.counts, *Outcome, *ProbeState}:
            raise UsageError("outcome", outcome, f"must be one of {', '.join(self.counts)}")
        lines = [line for line in self.lines if outcome in (ANY, line.outcome)]
        lines.sort(key=lambda line: line.id)
        known = [line for line in lines if line.order[key] is not None]
        known.sort(key=_by(key), reverse=sort.startswith("-"))
        unknown = [line for line in lines if line.order[key] is None]
        return replace(self, lines=(*known, *unknown), sort=sort, outcome=outcome)

    def _column(self, key: str, title: str, is_number: bool) -> Column:
        now = self.sort.removeprefix("-") == key
        down = self.sort.startswith("-")
        other = key if (down if now else not is_number or key == "id") else f"-{key}"
        return Column(
            key=key,
            title=title,
            is_number=is_number,
            is_figure=key in FIGURES,
            sorted=("descending" if down else "ascending") if now else "",
            href=self._href(other, self.outcome),
        )

    def _href(self, sort: str, outcome: str) -> str:
        chosen = {"sort": sort} if sort != FASTEST_FIRST else {}
        chosen |= {"outcome": outcome} if outcome else {}
        query = f"?{urlencode(chosen)}" if chosen else ""
        return f"/studies/{self.study_id}{query}#probes"


def table_of(study: Study, best: Settings | None) -> Table:
    """The table of all probes, the fastest first.

    Args:
        study: whose probes; emulated ones are shown at today's rates.
        best: settings that are the answer.
    """
    probes = repriced(study).probes
    knobs = differing([probe.request.settings for probe in probes]) if probes else ()
    needed = [found for probe in probes if (found := _needed_bytes(probe.measurement))]
    unit, divisor = size_unit(max(needed, default=2**30))
    lines = tuple(_line(study, probe, knobs, divisor, best) for probe in probes)
    table = Table(
        study_id=study.id,
        lines=lines,
        knobs=knobs,
        common=_common(probes, knobs),
        unit=unit,
        per=rank_word(study.question),
        several_fidelities=len({probe.request.fidelity for probe in probes}) > 1,
        counts=dict(Counter(line.outcome for line in lines).most_common()),
    )
    return table.chosen(FASTEST_FIRST, ANY)


def _line(
    study: Study, probe: Probe, knobs: tuple[str, ...], divisor: int, best: Settings | None
) -> Line:
    found, settings = probe.measurement, probe.request.settings
    step = step_time_of(study, probe, found) if found else UNKNOWN
    return _line_of(
        probe.id,
        probe.request,
        str(found.outcome) if found else str(probe.state),
        Same(found),
        step.value,
        speed_of(step, study.question).value,
        knobs,
        divisor,
        fits=fits(study, found) if found else None,
        is_best=settings == best,
    )


# A page is made again after every event, and most of its lines stay the same.
@lru_cache(maxsize=2048)
def _line_of(
    probe_id: int,
    request: ProbeRequest,
    outcome: str,
    key: Same[Measurement | None],
    step: float | None,
    speed: float | None,
    knobs: tuple[str, ...],
    divisor: int,
    *,
    fits: bool | None,
    is_best: bool,
) -> Line:
    found, settings = key.value, request.settings
    texts, needed = _texts(settings), _needed_bytes(found)
    at_least = found is not None and found.memory is None
    return Line(
        id=probe_id,
        outcome=outcome,
        failed=found is not None and found.outcome not in RAN,
        fits=fits,
        knobs=tuple(texts[knob] for knob in knobs),
        fidelity=str(request.fidelity),
        memory=f"{'> ' * at_least}{size_number(needed, divisor)}" if needed else "-",
        step=time_text(step),
        speed=speed_text(speed),
        took=duration_text(found.wall_s) if found else "-",
        is_best=is_best,
        order={
            **{knob: None if texts[knob] == "-" else getattr(settings, knob) for knob in knobs},
            "id": probe_id,
            "outcome": outcome,
            "fidelity": list(Fidelity).index(request.fidelity),
            "memory": needed,
            "step": step,
            "speed": speed,
            "took": found.wall_s if found else None,
        },
    )


# There may be hundreds of rows: links are short, end tags that HTML lets one leave out are, and
# most rows are as they were before the last event.
@lru_cache(maxsize=4096)
def _row(probe_id: int, outcome: str, cells: tuple[str, ...], *, is_best: bool) -> Markup:
    found = Markup('<tr{}><th scope="row"><a href="?probe={}">#{}</a><td class="o-{}">{}<td>{}')
    best = Markup(' class="is-best"') if is_best else ""
    words = outcome_words(outcome)
    return found.format(best, probe_id, probe_id, outcome, words, Markup("<td>").join(cells))


def _needed_bytes(found: Measurement | None) -> int | None:
    """What must be free on a device, or at least that."""
    if found is None:
        return None
    if found.memory is not None:
        return found.memory.allocated_bytes + found.memory.overhead_bytes
    return found.oom.needed_bytes if found.oom else None


def _common(probes: Sequence[Probe], knobs: Sequence[str]) -> str:
    if not probes:
        return ""
    texts = _texts(probes[0].request.settings)
    same = {knob: text for knob, text in texts.items() if knob not in knobs and text != "-"}
    return ", ".join(f"{knob.replace('_', ' ')} {text}" for knob, text in same.items())


# A page is made again after every event, and most of its rows stay the same.
@lru_cache(maxsize=4096)
def _texts(settings: Settings) -> Mapping[str, str]:
    """Each knob's value as it is written; ``-`` where it has no meaning."""
    meant, values = knob_texts(settings), settings.as_dict()
    return {knob: "-" if meant[knob] == "-" else show(values[knob]) for knob in values}


def _by(key: str) -> Callable[[Line], Any]:
    return lambda line: line.order[key]


def _is_number(knob: str) -> bool:
    return KNOBS[knob] is int
