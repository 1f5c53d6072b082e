"""Sessions and forms of people: their cookies, and the proof that a form is this service's own.

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

from api.problems import ProblemCode, ProblemError

# Cookie of those who signed in.
SESSION = "tuner_session"
# Cookie of those who did not, for their forms.
VISIT = "tuner_visit"
# Field of every form.
CSRF = "csrf_token"
FORM_TYPE = "application/x-www-form-urlencoded"
# Fields of a form; our largest has a few dozen.
MOST_FIELDS = 200
TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_MASKED = re.compile(rf"[0-9a-f]{{{4 * TOKEN_BYTES}}}")

# Fields by name: ``form["model"]`` is the last of this name, ``form.getlist("sharding")`` all.
Form = ImmutableMultiDict[str, str]


@dataclass(slots=True, kw_only=True)
class Visit:
    """The cookies of one request; it is ``request.state.visit`` of every page."""

    secure: bool
    """True where the browser came by https, so that its cookies never leave it otherwise."""
    session: str | None = field(repr=False)
    """The session's token as it was given; whether it is good is for the middleware to say."""
    secret: str = field(repr=False)
    """Secret of the visit's cookie, or made for this request."""
    is_new: bool
    """True while the browser does not have the visit's secret."""
    by_session: bool = False
    """True where the session let the caller in."""
    is_used: bool = False
    """True where a form was made with the visit's secret, which the browser must have then."""
    form: Form | None = None

    @classmethod
    def of(cls, scope: Scope) -> "Visit":
        secure = scope["scheme"] == "https"
        known = _token(scope, cookie_name(VISIT, secure=secure))
        return cls(
            secure=secure,
            session=session_token(scope),
            secret=known or secrets.token_urlsafe(TOKEN_BYTES),
            is_new=known is None,
        )

    def csrf_token(self) -> str:
        """A token for forms of this session or visit, another each time.

        The bytes that are always the same are masked by as many random ones: answers are
        compressed, and their length would give a fixed token away piece by piece (BREACH).
        """
        mask = secrets.token_bytes(TOKEN_BYTES)
        return (mask + _xor(mask, self._csrf_bytes())).hex()

    def owns(self, token: str) -> bool:
        if not _MASKED.fullmatch(token):
            return False
        given = bytes.fromhex(token)
        unmasked = _xor(given[:TOKEN_BYTES], given[TOKEN_BYTES:])
        return compare_digest(unmasked, self._csrf_bytes())

    def set_cookie(self) -> str | None:
        """The visit's cookie, when the browser needs it and has it not."""
        if self.by_session or not (self.is_used and self.is_new):
            return None
        return cookie(VISIT, self.secret, secure=self.secure)

    def _csrf_bytes(self) -> bytes:
        secret = self.session if self.by_session and self.session else self.secret
        return hmac_digest(secret.encode(), CSRF.encode(), "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


# -- cookies ----------------------------------------------------------------------------------


def cookie_name(name: str, *, secure: bool) -> str:
    """The cookie's full name: by https one that no neighbour of our domain can set."""
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
    if state.get("visit") is None:
        state["visit"] = Visit.of(request.scope)
    visit: Visit = state["visit"]
    return visit


@dataclass(frozen=True, slots=True)
class LazyField:
    """The hidden field of every form that is sent by POST, for templates.

    It is made when it is shown, so that pages without forms set no cookie.
    """

    request: Request

    def __html__(self) -> Markup:
        visit = visit_of(self.request)
        visit.is_used = True
        return Markup('<input type="hidden" name="{}" value="{}">').format(CSRF, visit.csrf_token())

    __str__ = __html__


async def formed(request: Request) -> Form:
    """The fields of a form of ours, without its token."""
    visit = visit_of(request)
    if visit.form is not None:
        return visit.form
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        detail = "a page of another site may not do this"
        raise ProblemError(403, detail, code=ProblemCode.OTHER_ORIGIN)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM_TYPE:
        raise ProblemError(415, f"the body must be {FORM_TYPE}")
    body = await request.body()
    if body.count(b"&") >= MOST_FIELDS:
        raise ProblemError(413, f"a form may have {MOST_FIELDS} fields")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise ProblemError(400, "the form cannot be read") from error
    tokens = [value for name, value in pairs if name == CSRF]
    if len(tokens) != 1 or not visit.owns(tokens[0]):
        detail = "this form is out of date: load its page again, and send it once more"
        raise ProblemError(403, detail, code=ProblemCode.FORM_OUT_OF_DATE)
    visit.form = Form([pair for pair in pairs if pair[0] != CSRF])
    return visit.form


# The fields of a form, as a parameter of a route.
Formed = Annotated[Form, Depends(formed)]
