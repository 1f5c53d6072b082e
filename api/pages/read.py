"""What was decided about a question, told once on the page that the form leads to."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

from fastapi import Request

from api.sessions import cookie, cookie_name

TOLD = "tuner_told"
"""Cookie that carries it over the redirect."""
LASTS_S = 60
"""Seconds for which it waits for the page."""
LONGEST = 3000
"""Characters of the cookie's value: browsers keep 4,096 of a whole cookie."""


def told_cookie(study_id: str, notes: Sequence[str], *, secure: bool) -> str | None:
    """The ``Set-Cookie`` header that keeps notes for a study's page; ``None`` where there are none.

    Notes that would make the cookie too long are left out, the last ones first.
    """
    kept = list(notes)
    while kept:
        value = urlsafe_b64encode(json.dumps([study_id, *kept]).encode()).decode()
        if len(value) <= LONGEST:
            return cookie(TOLD, value, secure=secure, max_age_s=LASTS_S)
        kept.pop()
    return None


def forgetting_cookie(*, secure: bool) -> str:
    """The ``Set-Cookie`` header that has them forgotten."""
    return cookie(TOLD, "", secure=secure, max_age_s=0)


def told_of(request: Request, study_id: str) -> tuple[str, ...]:
    """The notes that a request brings for this study; none of a cookie that is not of our form."""
    value = request.cookies.get(cookie_name(TOLD, secure=request.url.scheme == "https"), "")
    if len(value) > LONGEST:
        return ()
    try:
        found = json.loads(urlsafe_b64decode(value))
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair can be in no page
    except (ValueError, RecursionError):
        return ()
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return ()
    return tuple(found[1:]) if found[:1] == [study_id] else ()
