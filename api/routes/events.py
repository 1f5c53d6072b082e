"""``/tune/{id}/events``: what happens to a study, as it happens."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api import examples, schemas
from api.context import InContext
from api.documented import problems
from api.keys import Reader
from api.poller import Feed
from api.problems import ProblemError
from api.routes.studies import StudyId
from tuner.json_text import json_text
from tuner.store import Event

LARGEST_ID = 2**63 - 1
ITEM = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": f"#/components/schemas/{schemas.Event.__name__}"},
        },
    },
}
"""One server-sent event, as OpenAPI 3.2 says it."""

router = APIRouter(tags=["studies"])


async def listened(context: InContext, study_id: StudyId) -> AsyncIterator[Feed]:
    """A dependency: the study's feed, kept up while the request is answered.

    Raises:
        ProblemError: 404.
    """
    async with context.poller.listen(study_id) as feed:
        if feed is None:
            raise ProblemError(404, f"there is no study {study_id}")
        yield feed


@router.get(
    "/tune/{study_id}/events",
    response_class=EventSourceResponse,
    summary="What happened to a study, and what happens, until its end",
    responses={
        200: {
            "description": "Server-sent events, until the study's end; their data is an Event.",
            "content": {
                "text/event-stream": {"itemSchema": ITEM, "example": examples.EVENT_STREAM}
            },
        },
        **problems(404, 422),
    },
)
async def stream_events(
    context: InContext,
    caller: Reader,
    feed: Annotated[Feed, Depends(listened)],
    last_event_id: Annotated[
        int,
        Header(
            ge=0, le=LARGEST_ID, description="Id of the last event that is known: later ones come."
        ),
    ] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """Every event once and in order; a comment every 15 seconds while nothing happens."""
    async for event in context.poller.events(feed, last_event_id):
        yield _sent(event)


def _sent(event: Event) -> ServerSentEvent:
    data = {
        "id": event.id,
        "study_id": event.study_id,
        "kind": str(event.kind),
        "at": event.at,
        "data": dict(event.data),
    }
    return ServerSentEvent(id=str(event.id), event=str(event.kind), raw_data=json_text(data))
