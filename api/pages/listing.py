"""The list of studies, and two to four of them side by side, as pages show them."""

import csv
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from math import ceil
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from api.answers import Answers, Whole
from api.pages.charts import Series, scatter
from api.pages.form import form_table
from api.pages.probe_table import Column, Sorted
from api.pages.render import settings_words
from api.schemas import STUDY_ID
from tuner.core.configuration import KNOBS
from tuner.core.evaluation import Evaluation
from tuner.core.study import OPEN, StudyState
from tuner.core.words import listed, number_text, rank_word
from tuner.errors import UsageError
from tuner.results.points import points as find_points
from tuner.results.summary import (
    LEAST_COMPARED,
    MOST_COMPARED,
    AnswerSummary,
    Compared,
    Difference,
    Part,
    differences,
    summary_of,
)
from tuner.store import Store, StudyStatus
from tuner.store.store import ORDERS

log = logging.getLogger(__name__)

# Studies of one page.
ON_A_PAGE = 50
# Characters of a search.
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


# Their keys are those of :data:`tuner.store.store.ORDERS`.
COLUMNS = (
    Column("model", "model"),
    Column("method", "method"),
    Column("batch", "batch", falls=True, is_figure=True),
    Column("sequence", "sequence", falls=True, is_figure=True),
    Column("cluster", "cluster"),
    Column("framework", "framework"),
    Column("fidelity", "fidelity"),
    Column("speed", "tokens/s", falls=True, is_figure=True),
    Column("memory", "memory", falls=True),
    Column("state", "state"),
    Column("asked", "asked", falls=True),
    Column("labels", "labels"),
)
NEWEST_FIRST = "-asked"
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Sorted):
    """A choice of studies, their order, and the page."""

    query: str = ""
    """Only those with this in their id, in the name of their model or cluster, or in what people
    wrote about them."""
    state: StudyState | None = None
    sort: str = NEWEST_FIRST
    """A key of :data:`COLUMNS`, after ``-`` from the largest first."""
    page: int = 1

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "Wanted":
        query, state, sort, page = (
            values.get(name, "").strip() for name in ("query", "state", "sort", "page")
        )
        if len(query) > LONGEST_TEXT:
            raise UsageError("query", query, f"must have {LONGEST_TEXT} characters at most")
        if state and state not in list(StudyState):
            raise UsageError("state", state, f"must be one of {', '.join(StudyState)}")
        if sort.removeprefix("-") not in ("", *ORDERS):
            raise UsageError("sort", sort, f"must be one of {', '.join(ORDERS)}, or one after -")
        if page and not (page.isascii() and page.isdecimal() and 0 < int(page[:9]) < 10**6):
            raise UsageError("page", page, "must be the number of a page")
        return cls(
            query=query,
            state=StudyState(state) if state else None,
            sort=sort or NEWEST_FIRST,
            page=int(page or 1),
        )

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.state)

    def href(self, **other: str | int) -> str:
        """The address of this choice, or of another that differs in this."""
        values = {"query": self.query, "state": self.state or "", "sort": self.sort} | other
        if values["sort"] == NEWEST_FIRST:
            values["sort"] = ""
        if values.get("page") == 1:
            del values["page"]
        return f"/?{urlencode(given)}" if (given := {k: v for k, v in values.items() if v}) else "/"


def list_studies(
    store: Store, answers: Answers, wanted: Wanted, clock: Callable[[], float] = time.monotonic
) -> SimpleNamespace:
    """A page of studies with the answers that are kept, and a few that are computed now."""
    which: dict[str, Any] = {"state": wanted.state, "query": wanted.query}
    total = store.count_studies(**which)
    begin = (wanted.page - 1) * ON_A_PAGE
    page = store.studies(limit=ON_A_PAGE, offset=begin, order=wanted.sort, **which)
    last = max(1, ceil(total / ON_A_PAGE))
    ids = [summary.id for summary in page]
    kept, statuses = store.summaries(ids), store.statuses(ids)
    until = clock() + BUDGET_S
    lines = []
    for summary in page:
        stored, status = kept.get(summary.id), statuses.get(summary.id)
        if status is None:  # it was deleted meanwhile
            continue
        line = None
        if stored:
            # Another version may have written it.
            with suppress(KeyError, TypeError, ValueError):
                line = AnswerSummary.from_dict(stored.content)
        is_old = stored is None or line is None or stored.newest_event < status.newest_event
        if is_old and clock() < until and (made := _made(answers, status)):
            line, is_old = made, False
        speed = line.tokens_per_s_per_gpu if line else None
        lines.append(
            SimpleNamespace(
                summary=summary,
                name=summary.labels.get(NAME, ""),
                labels=label_texts(summary.labels),
                answer=line,
                is_open=summary.state in OPEN,
                is_old=is_old,
                state=(line if line and line.state == summary.state else summary).shown_state,
                words=settings_words(line.settings) if line and line.settings else (),
                speed=speed if speed and speed.value is not None else None,
                share=min(1.0, line.needed_share) if line and line.needed_share else None,
            )
        )
    return SimpleNamespace(
        wanted=wanted,
        columns=COLUMNS,
        lines=tuple(lines),
        has_labels=any(one.labels.keys() - {NAME} for one in page),
        total=total,
        first=begin + 1,
        pages=last,
        before=wanted.href(page=wanted.page - 1) if wanted.page > 1 else "",
        after=wanted.href(page=wanted.page + 1) if wanted.page < last else "",
        made_at=datetime.now(UTC).isoformat(),
    )


# The label that a page shows as a study's name.
NAME = "name"


def label_texts(labels: Mapping[str, str]) -> list[str]:
    """Labels as they are written, but for the name."""
    return [f"{k}={v}" if v else k for k, v in labels.items() if k != NAME]


CSV_HEADS = (
    "study", "name", "labels", "model", "method", "global_batch_size", "sequence_length", "cluster",
    "framework", "fidelity", "state", "asked_at", "settings", "provenance", "tokens_per_s_per_rank",
    "step_time_s", "needed_gib", "limit_gib", "reason",
)  # fmt: skip
# Studies of one file, and those that are read at once for it.
MOST_IN_CSV, READ_AT_ONCE = 20_000, 500


def csv_of(store: Store, wanted: Wanted) -> Iterator[str]:
    """The chosen studies as comma-separated values, with the answers that are kept."""

    def written(cells: Iterable[object]) -> str:
        # A spreadsheet takes a text that begins so for a formula.
        texts = ["" if cell is None else cell for cell in cells]
        safe = [f"'{t}" if isinstance(t, str) and t[:1] in FORMULA else t for t in texts]
        csv.writer(line := StringIO()).writerow(safe)
        return line.getvalue()

    yield written(CSV_HEADS)
    for offset in range(0, MOST_IN_CSV, READ_AT_ONCE):
        page = store.studies(
            READ_AT_ONCE,
            offset=offset,
            order=wanted.sort,
            state=wanted.state,
            query=wanted.query,
        )
        kept = store.summaries([one.id for one in page])
        for one in page:
            found = kept[one.id].content if one.id in kept else {}

            def value(name: str, found: Mapping[str, Any] = found) -> object:
                return (found.get(name) or {}).get("value")

            yield written((
                one.id, one.labels.get(NAME), " ".join(label_texts(one.labels)), one.model_name,
                one.method,
                one.global_batch_size, one.sequence_length, one.cluster_name, one.framework,
                one.fidelity, one.state, one.asked_at, found.get("words"), found.get("provenance"),
                value("tokens_per_s_per_gpu"), value("step_time_s"), value("needed_gib"),
                found.get("limit_gib"), found.get("why_none") or one.reason,
            ))  # fmt: skip
        if len(page) < READ_AT_ONCE:
            return


def _made(answers: Answers, status: StudyStatus) -> AnswerSummary | None:
    """A study's answer now; ``None`` while another thread computes, or where it has none."""
    with answers.computing(wait=False) as mine:
        if not mine:
            return None
        try:
            whole = answers.whole(status)
        except UsageError as error:  # its question is not legal any more, by what is known today
            log.warning("study %s has no answer: %s", status.id, error)
            return None
        return summary_of(whole.study, whole.suggestion)


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
    """Lines of one kind, each with the part of its limit, or else of the line's largest value, that
    each study's is."""

    title: str
    rows: tuple[tuple[Difference, tuple[float | None, ...], tuple[str, ...]], ...]
    """Each with the parts, and with how many times the first study's value each value is."""

    @property
    def differing(self) -> int:
        return sum(line.differs for line, _, _ in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Studies side by side, with what differs in their questions in a sentence."""

    columns: tuple[Compared, ...]
    sections: tuple[Section, ...]
    further: Section
    """Fields of their models and clusters that differ."""
    in_short: str
    chart: SimpleNamespace | None
    """What is known of each by memory and speed; ``None`` where there is nothing of two."""


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
        Section(title=title, rows=tuple((line, _shares(line), _ratios(line)) for line in lines))
        for title, lines in of_part.items()
    )
    differing = [line.name for line in of_part[TITLES[Part.QUESTION]] if line.differs]
    in_short = "They ask the same question."
    if differing or further.rows:
        in_short = f"They differ in {listed(differing or ['figures'])}."
    knobs = [line.name for line in of_part[TITLES[Part.ANSWER]] if line.differs]
    if found := [name for name in knobs if name in KNOBS]:
        in_short += f" Their answers differ in {listed(found)}."
    return Comparison(
        columns=compared,
        sections=tuple(one for one in sections if one.rows),
        further=further,
        in_short=in_short,
        chart=_chart_of(wholes),
    )


def _chart_of(wholes: Sequence[Whole]) -> SimpleNamespace | None:
    series = []
    for letter, one in zip("ABCD", wholes, strict=False):
        points = [
            point
            for point in find_points(one.study, one.suggestion, one.evidence)
            if point.tokens_per_s_per_gpu.value is not None
        ]
        path = f"/studies/{one.study.id}"
        limit_bytes = one.study.limits.limit_bytes(one.study.question.cluster)
        name = f"{letter}: {one.study.question.trained[:40]} on {one.study.question.cluster.name}"
        best = one.suggestion.best.settings if one.suggestion and one.suggestion.best else None
        series.append(Series(points, partial(_href, path), limit_bytes, best, name))
    if sum(bool(one.points) for one in series) < LEAST_COMPARED:
        return None
    words = {rank_word(one.study.question) for one in wholes}
    return scatter(series, per=words.pop() if len(words) == 1 else "rank")


def _href(path: str, point: Evaluation) -> str:
    return f"{path}#p{number_text(point.probe_ids[-1])}" if point.outcome and point.probes else path


def _ratios(line: Difference) -> tuple[str, ...]:
    """``2.2x``: how many times the first study's value each of the others is."""
    first, *others = (one.quantity.value if one.quantity else None for one in line.cells)
    ratios = [other / first if first and other else 0.0 for other in others]
    return ("", *(f"{ratio:.3g}x" if ratio and abs(ratio - 1) >= 0.005 else "" for ratio in ratios))


def _shares(line: Difference) -> tuple[float | None, ...]:
    """Each study's part of its limit, or of the largest value where several have rates or times."""
    if any(one.limit_share is not None for one in line.cells):
        return tuple(one.limit_share and min(1.0, one.limit_share) for one in line.cells)
    values = [
        one.quantity.value if one.quantity and line.name != STEP else None for one in line.cells
    ]
    known = [value for value in values if value]
    largest = max(known) if len(known) >= LEAST_COMPARED else None
    return tuple(value / largest if value and largest else None for value in values)
