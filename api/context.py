"""What the routes of one application share."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.answers import Answers
from api.fair_queue import FairQueue
from api.pages.live import Live
from api.pages.study import StudyPages
from api.poller import Poller
from api.settings import Settings
from api.submissions import Submissions
from tuner.store import Store
from tuner.store.audit import Audit
from tuner.store.standing import Standings


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The store, and what is made of it."""

    store: Store
    """Where studies are."""
    settings: Settings
    """How the service runs."""
    answers: Answers
    """Studies as they are sent."""
    standings: Standings
    """Where studies stand."""
    poller: Poller
    """For those who wait."""
    submissions: Submissions
    """For those who ask."""
    turns: FairQueue
    """For those who ask, before they take a thread."""
    audit: Audit
    """Who did what."""
    pages: StudyPages
    """Studies as people see them."""
    live: Live
    """The same for those who watch."""

    @classmethod
    def of(cls, store: Store, settings: Settings, audit: Audit) -> "Context":
        """The context of an application over one open store."""
        answers, poller = Answers(store), Poller(store, settings.poll_s)
        pages = StudyPages(store, answers)
        return cls(
            store=store,
            settings=settings,
            answers=answers,
            standings=Standings(store.transactions),
            poller=poller,
            submissions=Submissions(
                store,
                answers,
                settings.max_open_studies,
                most_each=settings.max_open_studies_per_key,
            ),
            turns=FairQueue(settings.threads),
            audit=audit,
            pages=pages,
            live=Live(pages, poller),
        )


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


InContext = Annotated[Context, Depends(_context)]
"""The application's context, as a parameter of a route."""
