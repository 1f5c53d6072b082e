"""Sessions and forms of people: their cookies, and what shows that a form is this service's own.

A cookie comes with every request of a browser, whoever had it sent. So it is believed where
nothing is changed, and of forms that hold a token which only pages of this service know: it is
made from a secret that is in the cookie, and no other site can read either.
"""

import re
import secrets
from dataclasses import dataclass, field
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from markupsafe import Markup
from starlette.datastructures import ImmutableMultiDict
from starlette.types import Scope

from api.problems import ProblemError

SESSION = "tuner_session"
"""Cookie of those who signed in."""
VISIT = "tuner_visit"
"""Cookie of those who did not, for their forms."""
CSRF = "csrf_token"
"""Field of every form."""
FORM_TYPE = "application/x-www-form-urlencoded"
MOST_FIELDS = 200
"""Fields of a form; our largest has a few dozen."""
TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")

Form = ImmutableMultiDict[str, str]
"""Fields by name: ``form["model"]`` is the last of this name, ``form.getlist("tp_size")`` all."""


@dataclass(slots=True, kw_only=True)
class Visit:
    """What the cookies of one request say; it is ``request.state.visit`` of every page."""

    secure: bool
    """Whether the browser came by https, so that its cookies never leave it otherwise."""
    session: str | None = field(repr=False)
    """The session's token as it was given; whether it is good is for the middleware to say."""
    secret: str = field(repr=False)
    """Of the visit's cookie, or made for this request."""
    is_new: bool
    """Whether the browser does not have the visit's secret yet."""
    by_session: bool = False
    """Whether it is by the session that the caller was let in."""
    is_used: bool = False
    """Whether a form was made with the visit's secret, which the browser must have then."""
    form: Form | None = None
    """The form that was sent, once it was read and found to be ours."""

    @classmethod
    def of(cls, scope: Scope) -> "Visit":
        """The visit of a request."""
        secure = scope["scheme"] == "https"
        known = _token(scope, cookie_name(VISIT, secure=secure))
        return cls(
            secure=secure,
            session=session_token(scope),
            secret=known or secrets.token_urlsafe(TOKEN_BYTES),
            is_new=known is None,
        )

    def csrf_token(self) -> str:
        """The token of forms of this session or visit: always the same, known to no other."""
        secret = self.session if self.by_session and self.session else self.secret
        return hmac_digest(secret.encode(), CSRF.encode(), "sha256").hex()

    def set_cookie(self) -> str | None:
        """The visit's cookie, when the browser needs it and has it not."""
        if self.by_session or not (self.is_used and self.is_new):
            return None
        return cookie(VISIT, self.secret, secure=self.secure)


# -- cookies ----------------------------------------------------------------------------------


def cookie_name(name: str, *, secure: bool) -> str:
    """What a cookie is called: by https so that no neighbour of our domain can set it."""
    return f"__Host-{name}" if secure else name


def cookie(name: str, value: str, *, secure: bool, max_age_s: int | None = None) -> str:
    """A ``Set-Cookie`` header; an empty value with age 0 has it forgotten."""
    parts = [f"{cookie_name(name, secure=secure)}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
    if secure:
        parts.append("Secure")
    if max_age_s is not None:
        parts.append(f"Max-Age={max_age_s}")
    return "; ".join(parts)


def session_token(scope: Scope) -> str | None:
    """The token of a request's session cookie, if it has one of the form."""
    return _token(scope, cookie_name(SESSION, secure=scope["scheme"] == "https"))


def _token(scope: Scope, name: str) -> str | None:
    """The value of a cookie that has the form of a token; of two nobody knows which is ours."""
    given = b";".join(value for key, value in scope["headers"] if key == b"cookie")
    parts = (part.strip().partition("=") for part in given.decode("latin-1").split(";"))
    values = [value for key, _, value in parts if key == name]
    return values[0] if len(values) == 1 and _TOKEN.fullmatch(values[0]) else None


# -- forms ------------------------------------------------------------------------------------


def visit_of(request: Request) -> Visit:
    """The request's visit; made here for requests that came through no middleware of ours."""
    state = request.scope.setdefault("state", {})
    visit: Visit = state.get("visit") or Visit.of(request.scope)
    state["visit"] = visit
    return visit


def csrf_field(request: Request) -> Markup:
    """The hidden field that every form needs which is sent by POST."""
    visit = visit_of(request)
    visit.is_used = True
    return Markup('<input type="hidden" name="{}" value="{}">').format(CSRF, visit.csrf_token())


@dataclass(frozen=True, slots=True)
class LazyField:
    """The same for templates: made when it is shown, so that pages without forms set no cookie."""

    request: Request
    """For which the page is."""

    def __html__(self) -> Markup:
        """The field."""
        return csrf_field(self.request)

    __str__ = __html__


async def formed(request: Request) -> Form:
    """The fields of a form of ours, without its token.

    Raises:
        ProblemError: 403 when it is another site's, or has not the token of this session; 415, 400
            and 413 when it is no form, cannot be read, or has too many fields.
    """
    visit = visit_of(request)
    if visit.form is None:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise ProblemError(403, "a page of another site may not do this")
        pairs = await _pairs(request)
        given = [value for name, value in pairs if name == CSRF]
        if len(given) != 1 or not _same(given[0], visit.csrf_token()):
            detail = "this form is out of date: load its page again, and send it once more"
            raise ProblemError(403, detail)
        visit.form = Form([pair for pair in pairs if pair[0] != CSRF])
    return visit.form


async def _pairs(request: Request) -> list[tuple[str, str]]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM_TYPE:
        raise ProblemError(415, f"the body must be {FORM_TYPE}")
    body = await request.body()
    if body.count(b"&") >= MOST_FIELDS:
        raise ProblemError(413, f"a form may have {MOST_FIELDS} fields")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise ProblemError(400, "the form cannot be read") from error


def _same(given: str, expected: str) -> bool:
    return compare_digest(given.encode(), expected.encode())


Formed = Annotated[Form, Depends(formed)]
"""The fields of a form, as a parameter of a route."""
