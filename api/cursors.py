"""Places in the list of studies, as one opaque word."""

import base64
import json
import re
from datetime import datetime

from tuner.errors import UsageError
from tuner.store import StudySummary

_STUDY_ID = re.compile(r"st-[0-9a-f]{12}")


def cursor_of(summary: StudySummary) -> str:
    """The place after a study."""
    text = json.dumps([summary.asked_at, summary.id])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[str, str]:
    """The moment and the id of :func:`cursor_of`.

    Raises:
        UsageError: it is no cursor of ours.
    """
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        asked_at, study_id = json.loads(text)
        if datetime.fromisoformat(asked_at).tzinfo is not None and _STUDY_ID.fullmatch(study_id):
            return asked_at, study_id
    except (TypeError, ValueError, RecursionError):
        pass  # somebody made it up
    raise UsageError("cursor", cursor, "must be the next of a page")
