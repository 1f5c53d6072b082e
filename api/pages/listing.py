"""The list of studies, as a page shows it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlencode

from api.answers import Answers
from api.inputs import cursor_of, read_cursor
from api.pages.form_fields import CPU, GPU, GPUS_PER_NODE, MODEL, NODES
from tuner.core.configuration import short_parts
from tuner.core.quantity import Quantity
from tuner.core.study import OPEN, StudyState
from tuner.errors import UsageError
from tuner.results import Headline
from tuner.results import headline as make_headline
from tuner.store import Store, StudyStatus, StudySummary
from tuner.store.caches import StoredSummary

log = logging.getLogger(__name__)

# Studies of one page.
ON_A_PAGE = 25
# Characters of a search, and of a model's name.
LONGEST_TEXT = 200
# Seconds in which answers are computed that are not kept; others are seen on the study's page.
BUDGET_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A question that somebody may begin with."""

    title: str
    """What is asked."""
    note: str
    """Where it can be answered."""
    texts: Mapping[str, str]
    """The form's fields."""

    @property
    def href(self) -> str:
        """The form, filled in."""
        return f"/new?{urlencode(self.texts)}"


def _start(title: str, note: str, gpu: str, nodes: int, ranks: int, *batch: int) -> Start:
    model, _, _ = title.partition(" on ")
    texts = {
        MODEL: model,
        GPU: gpu,
        NODES: str(nodes),
        GPUS_PER_NODE: str(ranks),
        "workload.sequence_length": str(batch[0]),
        "workload.global_batch_size": str(batch[1]),
    }
    return Start(title=title, note=note, texts=texts)


# Offered while there are no studies.
STARTS = (
    _start("stories15m on 2 CPU ranks", "measured in minutes, anywhere", CPU, 1, 2, 128, 16),
    _start("llama-3.1-8b on 8 H100", "predicted without a GPU", "h100-80gb", 1, 8, 4096, 256),
    _start("qwen3-14b on 4 × 8 A100", "over four nodes", "a100-80gb", 4, 8, 4096, 512),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A choice of studies, and the place where its page begins."""

    query: str = ""
    """Only those with this in their id, or in the name of their model or cluster."""
    state: StudyState | None = None
    """Only those in this state."""
    model: str = ""
    """Only those of exactly this model."""
    cursor: str = ""
    """Where the page begins; empty for the newest."""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "Wanted":
        """From the values of an address.

        Raises:
            UsageError: there is no such state, or a text is too long.
        """
        texts = {name: values.get(name, "").strip() for name in ("query", "model", "cursor")}
        for name, text in texts.items():
            if len(text) > LONGEST_TEXT:
                allowed = f"must have {LONGEST_TEXT} characters at most"
                raise UsageError(name, text, allowed)
        return cls(**texts, state=_state(values.get("state", "")))

    @property
    def is_filtered(self) -> bool:
        """True where studies are left out."""
        return bool(self.query or self.state or self.model)

    def href(self) -> str:
        """The address that asks for it."""
        values = {
            "query": self.query,
            "state": self.state or "",
            "model": self.model,
            "cursor": self.cursor,
        }
        given = {name: str(value) for name, value in values.items() if value}
        return f"/?{urlencode(given)}" if given else "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One study of the list."""

    summary: StudySummary
    """What it is, and where it stands."""
    headline: Headline | None
    """Its answer; ``None`` where that is not known without opening it."""
    is_old: bool
    """Whether the answer was made before what happened last."""

    @property
    def href(self) -> str:
        """The study's page."""
        return f"/studies/{self.summary.id}"

    @property
    def is_open(self) -> bool:
        """True until it is at its end."""
        return self.summary.state in OPEN

    @property
    def may_change(self) -> bool:
        """True while there will be more to show of it."""
        return self.is_open or self.is_old

    @property
    def probes(self) -> int:
        """Probes that are done, of the fidelity that is asked for where the answer tells them."""
        if self.headline is not None and not self.is_old:
            return self.headline.probes
        return sum(self.summary.probes.values())

    @property
    def words(self) -> tuple[str, ...]:
        """The best settings in words; none where there are none, or none are known."""
        found = self.headline and self.headline.settings
        return short_parts(found) if found else ()

    @property
    def speed(self) -> Quantity | None:
        """The speed of the best configuration, where it is known."""
        found = self.headline and self.headline.tokens_per_s_per_gpu
        return found if found and found.value is not None else None

    @property
    def used_share(self) -> float | None:
        """Part of the limit that the best settings need, up to 1; ``None`` where unknown."""
        if self.headline is None or self.headline.needed_gib.value is None:
            return None
        return min(1.0, self.headline.needed_gib.value / self.headline.limit_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of the list."""

    wanted: Wanted
    """What was asked for."""
    lines: tuple[Line, ...]
    """The studies, the one asked last first."""
    older: str
    """Address of the next page; empty on the last."""
    made_at: str
    """When it was made, UTC in ISO 8601."""

    @property
    def models(self) -> list[str]:
        """Names of the models on this page."""
        return sorted({line.summary.model_name for line in self.lines})

    @property
    def newest(self) -> str:
        """Address of the first page."""
        return replace(self.wanted, cursor="").href()


def list_studies(
    store: Store, answers: Answers, wanted: Wanted, clock: Callable[[], float] = time.monotonic
) -> Listing:
    """A page of studies with the answers that are kept; of those that are not, a few are computed.

    Raises:
        UsageError: the cursor is none of ours.
        StoreError: the database fails.
    """
    before = read_cursor(wanted.cursor) if wanted.cursor else None
    found = store.studies(
        before=before,
        limit=ON_A_PAGE + 1,
        state=wanted.state,
        query=wanted.query,
        model=wanted.model,
    )
    page = found[:ON_A_PAGE]
    older = replace(wanted, cursor=cursor_of(page[-1])).href() if len(found) > ON_A_PAGE else ""
    return Listing(
        wanted=wanted,
        lines=_lines(store, answers, page, clock),
        older=older,
        made_at=datetime.now(UTC).isoformat(),
    )


def _lines(
    store: Store, answers: Answers, page: Sequence[StudySummary], clock: Callable[[], float]
) -> tuple[Line, ...]:
    ids = [summary.id for summary in page]
    kept = store.summaries(ids)
    standings = store.statuses(ids)
    until = clock() + BUDGET_S
    lines = []
    for summary in page:
        found, standing = kept.get(summary.id), standings[summary.id]
        headline = _read(found) if found else None
        newest = found.newest_event if found and headline else -1
        is_old = newest < standing.newest_event
        if is_old and clock() < until and (made := _made(answers, standing)):
            headline, is_old = made, False
        lines.append(Line(summary=summary, headline=headline, is_old=is_old))
    return tuple(lines)


def _read(found: StoredSummary) -> Headline | None:
    """A study's answer as it is kept; ``None`` where another version has written it."""
    with suppress(KeyError, TypeError, ValueError, UsageError):
        return Headline.from_dict(found.content)
    return None


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


def _state(text: str) -> StudyState | None:
    if not text:
        return None
    if text not in list(StudyState):
        raise UsageError("state", text, f"must be one of {', '.join(StudyState)}")
    return StudyState(text)
