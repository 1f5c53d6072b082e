"""Pages for people where tools get a problem, and the headers of every page.

Plain ASGI, around all that answers or refuses requests for pages, so that no route or refusal
can forget it.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.pages.form import initial_texts, texts_of
from api.pages.render import render
from api.problems import MEDIA_TYPE, MISTAKE, title_of
from api.security import HOME, NEW, SIGN_IN, is_page, local_path, wants_page
from api.sessions import MOST_FIELDS, Visit, cookie, cookie_name

# What a page may load and do: nothing of another origin, and nothing that is written in it.
POLICY: Mapping[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
# What no page of ours asks a browser for.
DENIED = ("camera", "display-capture", "geolocation", "microphone", "payment", "usb")
# Of every page, instead of what other answers say. Without referrers browsers would send our own
# forms with ``Origin: null``, so pages allow them, to this service only.
PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": ", ".join(f"{name}=()" for name in DENIED),
    "Referrer-Policy": "same-origin",
}

# Of a form that came without a session.
SIGN_IN_FIRST = "nobody is signed in here any more; sign in, and send the form again"
# Seconds for which the rest of such a form is waited for.
LATE_S = 5
# Bytes of a form that are kept until it is known whether somebody must sign in again.
LONGEST_FORM = 16_384

# Cookie that carries it over the redirect.
TOLD = "tuner_told"
# Seconds for which it waits for the page.
TOLD_S = 60
# Characters of the cookie's value: browsers keep 4,096 of a whole cookie.
LONGEST_TOLD = 3000


class ForPeople:
    """Shows problems as pages, sends those who must sign in there, and adds :data:`PAGE_HEADERS`.

    It leaves ``visit`` in the state of requests for pages.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (is_page(scope["path"]) or wants_page(scope)):
            await self.app(scope, receive, send)
            return
        visit = Visit.of(scope)
        scope.setdefault("state", {})["visit"] = visit
        shown = _Shown(scope, receive, send, visit)
        try:
            await self.app(scope, shown.hear, shown.send)
        except Exception:
            if wants_page(scope) and not shown.began:
                await shown.show({"status": 500, "detail": MISTAKE}, Headers())
            raise


class _Shown:
    """One answer on its way: a problem is held back until it is known, and shown as a page."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        self.scope, self.receive, self.onward = scope, receive, send
        self.visit = visit
        self.began = False
        self.held: Message | None = None
        self.body = b""
        self.form = b""
        self.is_heard = False

    async def hear(self) -> Message:
        message = await self.receive()
        self.is_heard = not message.get("more_body")
        if self.scope["path"] == NEW and len(self.form) <= LONGEST_FORM:
            self.form += message.get("body", b"")
        return message

    async def send(self, message: Message) -> None:
        begins = message["type"] == "http.response.start"
        media_type = Headers(scope=message).get("content-type", "") if begins else ""
        if media_type.startswith(MEDIA_TYPE) and wants_page(self.scope):
            self.held = message
        elif self.held is None:
            await self._pass_on(message)
        else:
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                await self.show(json.loads(self.body), Headers(scope=self.held))

    async def show(self, problem: Mapping[str, Any], headers: Headers) -> None:
        """Shows a problem as a page, or sends whoever must sign in to where that is done."""
        status, method, path = problem["status"], self.scope["method"], self.scope["path"]
        has_key = "authorization" in Headers(scope=self.scope)
        if status == 401 and method in ("GET", "HEAD") and not has_key:
            query = self.scope["query_string"].decode("latin-1")
            onward = quote(path) + (f"?{query}" if query else "")
            answer: Response = RedirectResponse(_sign_in_path(onward), 303)
            await answer(self.scope, self.receive, self._pass_on)
            return
        # Somebody sent a form whose session has ended meanwhile.
        lost = status == 401 and method == "POST" and is_page(path) and not has_key
        if lost and path == NEW:
            with anyio.move_on_after(LATE_S):
                while not self.is_heard and len(self.form) <= LONGEST_FORM:
                    await self.hear()
        # The way back: the study that it is about, or all studies.
        first, _, rest = path.lstrip("/").partition("/")
        study, _, part = rest.partition("/")
        back = f"/studies/{quote(study)}" if first == "studies" and part else HOME
        answer = render(
            Request(self.scope),
            "problem.html",
            status,
            title=title_of(status),
            code=status,
            detail=SIGN_IN_FIRST if lost else problem["detail"],
            back=HOME if status == 404 else back,
            sign_in=_sign_in_path(path_with(self.form) if path == NEW else back),
        )
        for name, value in headers.items():
            if name not in ("content-type", "content-length"):
                answer.headers[name] = value
        await answer(self.scope, self.receive, self._pass_on)

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            headers = MutableHeaders(scope=message)
            if headers.get("content-type", "").startswith("text/html"):
                for name, value in PAGE_HEADERS.items():
                    headers.setdefault(name, value)
            if (visit := self.visit.set_cookie()) is not None:
                headers.append("set-cookie", visit)
        await self.onward(message)


def _sign_in_path(onward: str) -> str:
    wanted = local_path(onward)
    return SIGN_IN if wanted == HOME else f"{SIGN_IN}?{urlencode({'next': wanted}, safe='/')}"


def path_with(form: bytes) -> str:
    """The form's address, with what was typed into it; without, where that would be too long."""
    text = form.decode("utf-8", "replace") if form.count(b"&") < MOST_FIELDS else ""
    typed, initial = texts_of(parse_qsl(text, keep_blank_values=True)), initial_texts()
    # What was emptied must not come back as an empty form holds it.
    texts = {name: given for name, given in typed.items() if any(given) or name in initial}
    path = f"{NEW}?{urlencode(texts, doseq=True)}" if texts else NEW
    return path if local_path(path) == path else NEW


# -- notes for the next page -------------------------------------------------------------------


def told_cookie(study_id: str, notes: Sequence[str], *, secure: bool) -> str | None:
    """The ``Set-Cookie`` header that keeps notes for a study's page; ``None`` where there are none.

    Notes that would make the cookie too long are left out, the last ones first.
    """
    kept = list(notes)
    while kept:
        value = urlsafe_b64encode(json.dumps([study_id, *kept]).encode()).decode()
        if len(value) <= LONGEST_TOLD:
            return cookie(TOLD, value, secure=secure, max_age_s=TOLD_S)
        kept.pop()
    return None


def forgetting_cookie(*, secure: bool) -> str:
    """The ``Set-Cookie`` header that has them forgotten."""
    return cookie(TOLD, "", secure=secure, max_age_s=0)


def told_of(request: Request, study_id: str) -> tuple[str, ...]:
    """The notes that a request brings for this study; none of a cookie that is not of our form."""
    value = request.cookies.get(cookie_name(TOLD, secure=request.url.scheme == "https"), "")
    if len(value) > LONGEST_TOLD:
        return ()
    try:
        found = json.loads(urlsafe_b64decode(value))
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair can be in no page
    except (ValueError, RecursionError):
        return ()
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return ()
    return tuple(found[1:]) if found[:1] == [study_id] else ()
