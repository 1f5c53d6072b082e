"""Places in the list of studies, as one word."""

import base64

import pytest

from api.cursors import cursor_of, read_cursor
from tuner.errors import UsageError
from tuner.store import StudySummary
from tuner.study import StudyState


def test_a_cursor_is_read_again() -> None:
    summary = StudySummary(
        id="st-0123456789ab", model_name="m", cluster_name="c", state=StudyState.DONE, reason="",
        probes={}, pool="", revision=1, created_at="", asked_at="2026-11-21T13:40:12.031Z",
    )  # fmt: skip
    cursor = cursor_of(summary)
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert read_cursor(cursor) == (summary.asked_at, summary.id)


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "[1, 2]", '["2026-11-21", "st-0123456789ab"]', '["x", "st-0123456789ab"]',
        '["2026-11-21T13:40:12.031Z", "st-1"]', '["2026-11-21T13:40:12.031Z"]', "\xff", "[[" * 900,
    ],
)  # fmt: skip
def test_what_is_made_up_is_refused(text: str) -> None:
    made_up = base64.urlsafe_b64encode(text.encode("latin-1")).decode().rstrip("=")
    for cursor in (made_up, text):
        with pytest.raises(UsageError, match=r"^cursor: "):
            read_cursor(cursor)
