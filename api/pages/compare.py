"""Two to four studies side by side, as a page shows them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from api.answers import Whole
from api.schemas import STUDY_ID
from tuner.core.configuration import KNOBS, short_parts
from tuner.core.quantity import Quantity
from tuner.core.study import Study
from tuner.core.words import listed
from tuner.errors import UsageError
from tuner.results import Compared, Difference, Part, differences
from tuner.results.differences import LEAST_COMPARED, MOST_COMPARED

# What studies are called beside each other.
LETTERS = "ABCD"
# Name of the line of step times: speeds, which say the same, are drawn already.
STEP = "step"
# Of the parts, in the order of the page: what one compares for goes first.
TITLES = {
    Part.ANSWER: "The answer",
    Part.QUESTION: "The question",
    Part.TERMS: "The terms",
    Part.COST: "What it took",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One study."""

    letter: str
    """What it is called here."""
    study: Study
    """Which."""
    words: tuple[str, ...]
    """Its best settings in words; none where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One study's value in a line."""

    letter: str
    """The study's."""
    text: str
    """In words; empty where it has nothing."""
    share: float | None
    """Of the largest in the line, where they are rates, times or sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line."""

    name: str
    """What it is of."""
    is_knob: bool
    """Whether that is the name of a knob."""
    differs: bool
    """Whether the studies have not the same in it."""
    entries: tuple[Entry, ...]
    """One for each study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Lines of one kind."""

    title: str
    """Its heading."""
    rows: tuple[Row, ...]
    """In order."""

    @property
    def differing(self) -> int:
        """How many of its lines differ."""
        return sum(row.differs for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The whole of it."""

    columns: tuple[Column, ...]
    """The studies."""
    sections: tuple[Section, ...]
    """What they have."""
    further: Section
    """Fields of their models and clusters that differ."""

    @property
    def in_short(self) -> str:
        """The differences of the questions, in a sentence."""
        asked = (one for one in self.sections if one.title == TITLES[Part.QUESTION])
        differing = [row.name for section in asked for row in section.rows if row.differs]
        if not differing and not self.further.rows:
            return "They ask the same."
        return f"They ask for different things in {listed(differing or ['figures'])}."


def read_ids(values: Iterable[str]) -> list[str]:
    """The studies that an address names, each once: ``ids=a&ids=b`` or ``ids=a,b``.

    Raises:
        UsageError: one is no id, or there are too many.
    """
    ids = list(dict.fromkeys(filter(None, (one.strip() for v in values for one in v.split(",")))))
    for one in ids:
        if not re.fullmatch(STUDY_ID, one):
            raise UsageError("ids", one, "must be ids of studies, such as st-0123456789ab")
    if len(ids) > MOST_COMPARED:
        allowed = f"compare {LEAST_COMPARED} to {MOST_COMPARED} studies"
        raise UsageError("ids", f"{len(ids)} studies", allowed)
    return ids


def comparison_of(wholes: Sequence[Whole]) -> Comparison:
    """Studies with their answers, side by side."""
    compared = [Compared(study=one.study, suggestion=one.suggestion) for one in wholes]
    columns = tuple(
        Column(
            letter=letter,
            study=one.study,
            words=short_parts(one.best.settings) if one.best else (),
        )
        for letter, one in zip(LETTERS, compared, strict=False)
    )
    lines = differences(compared)
    further = [line for line in lines if _is_further(line)]
    order = list(TITLES)
    ordered = sorted(lines, key=lambda line: order.index(line.part))
    parts = groupby((one for one in ordered if one not in further), key=lambda line: line.part)
    return Comparison(
        columns=columns,
        sections=tuple(_section(TITLES[part], rows) for part, rows in parts),
        further=_section("Fields of models and clusters", further),
    )


def _is_further(line: Difference) -> bool:
    """Tells one field of a configuration, or one figure of a cluster."""
    return line.is_detail


def _section(title: str, lines: Iterable[Difference]) -> Section:
    return Section(title=title, rows=tuple(map(_row, lines)))


def _row(line: Difference) -> Row:
    is_drawn = line.name != STEP
    shares = _shares([cell.quantity if is_drawn else None for cell in line.cells])
    return Row(
        name=line.name,
        is_knob=line.name.partition(" ")[0] in KNOBS,
        differs=line.differs,
        entries=tuple(
            Entry(letter=letter, text=cell.text, share=share)
            for letter, cell, share in zip(LETTERS, line.cells, shares, strict=False)
        ),
    )


def _shares(quantities: Sequence[Quantity | None]) -> list[float | None]:
    """Parts of the largest, which is 1; nothing where fewer than two are known."""
    values = [one.value if one else None for one in quantities]
    known = [value for value in values if value]
    if len(known) < LEAST_COMPARED:
        return [None] * len(values)
    return [value / max(known) if value else None for value in values]
