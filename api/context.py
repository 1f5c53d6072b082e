"""What the routes of one application share."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.answers import Answers
from api.events import Poller
from api.pages.study import StudyPages
from api.security import Turns
from api.settings import Settings
from api.submissions import Submissions
from tuner.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The store, and what is made of it."""

    store: Store
    answers: Answers
    poller: Poller
    submissions: Submissions
    turns: Turns
    pages: StudyPages

    @classmethod
    def of(cls, store: Store, settings: Settings) -> "Context":
        answers, poller = Answers(store), Poller(store, settings.poll_s)
        return cls(
            store=store,
            answers=answers,
            poller=poller,
            submissions=Submissions(
                store,
                answers,
                settings.max_open_studies,
                most_each=settings.max_open_studies_per_key,
            ),
            turns=Turns(settings.threads),
            pages=StudyPages(store, answers),
        )


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


# The application's context, as a parameter of a route.
InContext = Annotated[Context, Depends(_context)]
