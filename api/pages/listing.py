"""The list of studies, as a page shows it."""

import logging
import time
from collections.abc import Callable, Mapping
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
    note: str
    """Where it can be answered."""
    href: str
    """The form, filled in."""


def _start(title: str, note: str, gpu: str, nodes: int, ranks: int, *batch: int) -> Start:
    texts = {
        MODEL: title.partition(" on ")[0],
        GPU: gpu,
        NODES: str(nodes),
        GPUS_PER_NODE: str(ranks),
        "workload.sequence_length": str(batch[0]),
        "workload.global_batch_size": str(batch[1]),
    }
    return Start(title=title, note=note, href=f"/new?{urlencode(texts)}")


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
        state = values.get("state", "")
        if state and state not in list(StudyState):
            raise UsageError("state", state, f"must be one of {', '.join(StudyState)}")
        return cls(**texts, state=StudyState(state) if state else None)

    @property
    def is_filtered(self) -> bool:
        """True where studies are left out."""
        return bool(self.query or self.state or self.model)

    def href(self) -> str:
        """The address that asks for it."""
        order = {"query": self.query, "state": self.state, "model": self.model}
        given = {k: str(v) for k, v in (order | {"cursor": self.cursor}).items() if v}
        return f"/?{urlencode(given)}" if given else "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One study of the list."""

    summary: StudySummary
    headline: Headline | None
    """Its answer; ``None`` where that is not known without opening it."""
    href: str
    is_open: bool
    is_old: bool
    """Whether the answer was made before what happened last."""
    probes: int
    """Probes that are done, of the fidelity that is asked for where the answer tells them."""
    words: tuple[str, ...]
    """The best settings; none where there are none, or none are known."""
    speed: Quantity | None
    """Of the best configuration, where it is known."""
    used_share: float | None
    """Part of the limit that the best settings need, up to 1; ``None`` where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of the list."""

    wanted: Wanted
    lines: tuple[Line, ...]
    """The studies, the one asked last first."""
    models: tuple[str, ...]
    """Names of the models on this page."""
    older: str
    """Address of the next page; empty on the last."""
    newest: str
    """Address of the first page."""
    made_at: str
    """UTC in ISO 8601."""


def list_studies(
    store: Store, answers: Answers, wanted: Wanted, clock: Callable[[], float] = time.monotonic
) -> Listing:
    """A page of studies with the answers that are kept; of those that are not, a few are computed.

    Raises:
        UsageError: the cursor is none of ours.
    """
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
            Line(
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
    return Listing(
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
