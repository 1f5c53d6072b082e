"""Two to four studies side by side, as a page shows them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from api.answers import Whole
from api.schemas import STUDY_ID
from tuner.core.words import listed
from tuner.errors import UsageError
from tuner.results import Compared, Difference, Part, differences
from tuner.results.differences import LEAST_COMPARED, MOST_COMPARED

# Name of the line of step times: speeds, which say the same, are drawn already.
STEP = "step"
# Of the parts, in the order of the page: what one compares for goes first.
TITLES = {
    Part.ANSWER: "The answer",
    Part.QUESTION: "The question",
    Part.TERMS: "The limits",
    Part.COST: "What it took",
}
FURTHER = "Fields of models and clusters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Lines of one kind, each with the part of its largest value that each study's is."""

    title: str
    rows: tuple[tuple[Difference, tuple[float | None, ...]], ...]

    @property
    def differing(self) -> int:
        return sum(line.differs for line, _ in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Studies side by side, with what differs in their questions in a sentence."""

    columns: tuple[Compared, ...]
    sections: tuple[Section, ...]
    further: Section
    """Fields of their models and clusters that differ."""
    in_short: str


def read_ids(values: Iterable[str]) -> list[str]:
    """The studies that an address names, each once: ``ids=a&ids=b`` or ``ids=a,b``."""
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
    compared = tuple(Compared(study=one.study, suggestion=one.suggestion) for one in wholes)
    of_part: dict[str, list[Difference]] = {title: [] for title in (*TITLES.values(), FURTHER)}
    for line in differences(compared):
        of_part[FURTHER if line.is_detail else TITLES[line.part]].append(line)
    *sections, further = (
        Section(title=title, rows=tuple((line, _shares(line)) for line in lines))
        for title, lines in of_part.items()
    )
    differing = [line.name for line in of_part[TITLES[Part.QUESTION]] if line.differs]
    in_short = "They ask the same."
    if differing or further.rows:
        in_short = f"They ask for different things in {listed(differing or ['figures'])}."
    return Comparison(
        columns=compared,
        sections=tuple(one for one in sections if one.rows),
        further=further,
        in_short=in_short,
    )


def _shares(line: Difference) -> tuple[float | None, ...]:
    """Each study's part of the largest value, where several have rates, times or sizes."""
    values = [
        one.quantity.value if one.quantity and line.name != STEP else None for one in line.cells
    ]
    known = [value for value in values if value]
    largest = max(known) if len(known) >= LEAST_COMPARED else None
    return tuple(value / largest if value and largest else None for value in values)
