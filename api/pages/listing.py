"""The list of studies, and two to four of them side by side, as pages show them."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlencode

from api.answers import Answers, Whole
from api.inputs import cursor_of, read_cursor
from api.pages.form_fields import form_table
from api.schemas import STUDY_ID
from tuner.core.configuration import short_parts
from tuner.core.study import OPEN, StudyState
from tuner.core.words import listed
from tuner.errors import UsageError
from tuner.results import Compared, Difference, Headline, Part, differences
from tuner.results import headline as make_headline
from tuner.results.summary import LEAST_COMPARED, MOST_COMPARED
from tuner.store import Store, StudyStatus

log = logging.getLogger(__name__)

# Studies of one page.
ON_A_PAGE = 25
# Characters of a search, and of a model's name.
LONGEST_TEXT = 200
# Seconds in which answers are computed that are not kept; others are seen on the study's page.
BUDGET_S = 0.2


class Start(NamedTuple):
    """A question that somebody may begin with, and the form filled in with it."""

    title: str
    note: str
    href: str


# Offered while there are no studies.
STARTS = tuple(
    Start(one["title"], one["note"], f"/new?{urlencode(one['texts'])}")
    for one in form_table()["starts"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A choice of studies, and the place where its page begins."""

    query: str = ""
    """Only those with this in their id, or in the name of their model or cluster."""
    state: StudyState | None = None
    model: str = ""
    cursor: str = ""
    """Where the page begins; empty for the newest."""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "Wanted":
        texts = {name: values.get(name, "").strip() for name in ("query", "model", "cursor")}
        for name, text in texts.items():
            if len(text) > LONGEST_TEXT:
                allowed = f"must have {LONGEST_TEXT} characters at most"
                raise UsageError(name, text, allowed)
        state = values.get("state", "")
        if state and state not in list(StudyState):
            raise UsageError("state", state, f"must be one of {', '.join(StudyState)}")
        return cls(**texts, state=StudyState(state) if state else None)

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.state or self.model)

    def href(self) -> str:
        order = {"query": self.query, "state": self.state, "model": self.model}
        given = {k: str(v) for k, v in (order | {"cursor": self.cursor}).items() if v}
        return f"/?{urlencode(given)}" if given else "/"


def list_studies(
    store: Store, answers: Answers, wanted: Wanted, clock: Callable[[], float] = time.monotonic
) -> SimpleNamespace:
    """A page of studies with the answers that are kept, and a few that are computed now."""
    found = store.studies(
        before=read_cursor(wanted.cursor) if wanted.cursor else None,
        limit=ON_A_PAGE + 1,
        state=wanted.state,
        query=wanted.query,
        model=wanted.model,
    )
    page = found[:ON_A_PAGE]
    ids = [summary.id for summary in page]
    kept = store.summaries(ids)
    standings = store.statuses(ids)
    until = clock() + BUDGET_S
    lines = []
    for summary in page:
        stored, standing = kept.get(summary.id), standings[summary.id]
        headline = None
        if stored:
            # Another version may have written it.
            with suppress(KeyError, TypeError, ValueError, UsageError):
                headline = Headline.from_dict(stored.content)
        newest = stored.newest_event if stored and headline else -1
        is_old = newest < standing.newest_event
        if is_old and clock() < until and (made := _made(answers, standing)):
            headline, is_old = made, False
        speed = headline.tokens_per_s_per_gpu if headline else None
        needed = headline.needed_gib.value if headline else None
        is_known = headline is not None and not is_old
        lines.append(
            SimpleNamespace(
                summary=summary,
                headline=headline,
                href=f"/studies/{summary.id}",
                is_open=summary.state in OPEN,
                is_old=is_old,
                probes=headline.probes if headline and is_known else sum(summary.probes.values()),
                words=short_parts(headline.settings) if headline and headline.settings else (),
                speed=speed if speed and speed.value is not None else None,
                used_share=min(1.0, needed / headline.limit_gib) if headline and needed else None,
            )
        )
    more = len(found) > ON_A_PAGE
    return SimpleNamespace(
        wanted=wanted,
        lines=tuple(lines),
        models=tuple(sorted({summary.model_name for summary in page})),
        older=replace(wanted, cursor=cursor_of(page[-1])).href() if more else "",
        newest=replace(wanted, cursor="").href(),
        made_at=datetime.now(UTC).isoformat(),
    )


def _made(answers: Answers, standing: StudyStatus) -> Headline | None:
    """A study's answer now; ``None`` while another thread computes, or where it has none."""
    with answers.computing(wait=False) as mine:
        if not mine:
            return None
        try:
            whole = answers.whole(standing)
        except UsageError as error:  # its question is not legal any more, by what is known today
            log.warning("study %s has no answer: %s", standing.id, error)
            return None
        return make_headline(whole.study, whole.suggestion)


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
