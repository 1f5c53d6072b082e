"""``/sign-in`` and ``/sign-out``: a session's cookie for a key, and its end."""

from datetime import timedelta
from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from api.pages.paths import HOME, SIGN_IN, SIGN_OUT, local_path
from api.pages.render import render
from api.security import note_refused
from api.sessions import SESSION, VISIT, Formed, Visit, cookie, formed, visit_of
from tuner.store.access import IDLE, LASTS, Keys, Sessions

NOT_KNOWN = "This key is not known, or was revoked."
NOTHING = "Paste a key: tuner_ and what follows it."
# Characters of what is looked at as a key; they have 67.
LONGEST_KEY = 200


def sign_in_router(keys: Keys) -> APIRouter:
    """The routes, for the keys of a database."""
    sessions = Sessions(keys.transactions)
    router = APIRouter(include_in_schema=False)

    @router.get(SIGN_IN)
    def show_sign_in(
        request: Request, onward: Annotated[str, Query(alias="next")] = HOME
    ) -> Response:
        """The form, for whoever has not signed in and needs to."""
        if request.state.caller is not None:
            return RedirectResponse(local_path(onward), 303)
        return _form(request, local_path(onward))

    @router.post(SIGN_IN)
    async def sign_in(request: Request, form: Formed) -> Response:
        """A new session, whatever the browser had before; or the form again, and why."""
        text, onward = form.get("key", "").strip(), local_path(form.get("next", HOME))
        key = await anyio.to_thread.run_sync(keys.check, text[:LONGEST_KEY])
        if key is None:
            note_refused(text, request.state.address)
            return _form(request, onward, error=NOT_KNOWN if text else NOTHING)
        visit = visit_of(request)
        token = await anyio.to_thread.run_sync(
            lambda: sessions.begin(key.id, address=request.state.address, instead_of=visit.session)
        )
        answer = RedirectResponse(onward, 303)
        _forget(answer, visit, VISIT)
        age_s = int(LASTS.total_seconds())
        session = cookie(SESSION, token, secure=visit.secure, max_age_s=age_s)
        answer.headers.append("set-cookie", session)
        return answer

    @router.post(SIGN_OUT)
    async def sign_out(request: Request) -> Response:
        """The session ends. Where there was none, that is so already."""
        visit = visit_of(request)
        token = visit.session if visit.by_session else None
        if token is not None:
            await formed(request)
            await anyio.to_thread.run_sync(
                lambda: sessions.end(token, address=request.state.address)
            )
        answer = RedirectResponse(SIGN_IN, 303)
        _forget(answer, visit, SESSION, VISIT)
        return answer

    return router


def _form(request: Request, onward: str, error: str = "") -> Response:
    lasts = {"days": LASTS.days, "hours": IDLE // timedelta(hours=1)}
    status = 401 if error else 200
    page = render(request, "sign_in.html", status, onward=onward, error=error, **lasts)
    if error:
        page.headers["WWW-Authenticate"] = 'Bearer realm="tuner"'
    return page


def _forget(answer: Response, visit: Visit, *names: str) -> None:
    for name in names:
        answer.headers.append("set-cookie", cookie(name, "", secure=visit.secure, max_age_s=0))
