"""Two to four studies side by side, as a page shows them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from api.answers import Whole
from api.schemas import STUDY_ID
from tuner.core.configuration import KNOBS, short_parts
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
    Part.TERMS: "The limits",
    Part.COST: "What it took",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One study."""

    letter: str
    study: Study
    words: tuple[str, ...]
    """Its best settings in words; none where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One study's value in a line."""

    letter: str
    text: str
    """In words; empty where it has nothing."""
    share: float | None
    """Of the largest in the line, where they are rates, times or sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One line: a knob, or something else."""

    name: str
    is_knob: bool
    differs: bool
    entries: tuple[Entry, ...]
    """One for each study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Lines of one kind."""

    title: str
    rows: tuple[ComparedRow, ...]
    differing: int
    """How many of its lines differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The whole of it."""

    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    further: Section
    """Fields of their models and clusters that differ."""
    in_short: str
    """The differences of the questions, in a sentence."""


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
    of_part: dict[Part, list[Difference]] = {part: [] for part in TITLES}
    further: list[Difference] = []
    for line in differences(compared):
        (further if line.is_detail else of_part[line.part]).append(line)
    differing = [line.name for line in of_part[Part.QUESTION] if line.differs]
    if differing or further:
        in_short = f"They ask for different things in {listed(differing or ['figures'])}."
    else:
        in_short = "They ask the same."
    return Comparison(
        columns=columns,
        sections=tuple(_section(TITLES[part], lines) for part, lines in of_part.items() if lines),
        further=_section("Fields of models and clusters", further),
        in_short=in_short,
    )


def _section(title: str, lines: Sequence[Difference]) -> Section:
    rows = []
    for line in lines:
        values = [
            c.quantity.value if c.quantity and line.name != STEP else None for c in line.cells
        ]
        known = [value for value in values if value]
        largest = max(known) if len(known) >= LEAST_COMPARED else None
        entries = tuple(
            Entry(letter=letter, text=cell.text, share=v / largest if v and largest else None)
            for letter, cell, v in zip(LETTERS, line.cells, values, strict=False)
        )
        is_knob = line.name.partition(" ")[0] in KNOBS
        rows.append(
            ComparedRow(name=line.name, is_knob=is_knob, differs=line.differs, entries=entries)
        )
    return Section(title=title, rows=tuple(rows), differing=sum(row.differs for row in rows))
