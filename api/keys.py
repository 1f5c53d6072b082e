"""Who calls, and what their key allows.

Every path needs a key but :data:`OPEN_PATHS` and what :func:`api.pages.paths.is_open` names,
whether there is a route or not: a middleware asks for it, so that no route can forget to. Routes
say which scope they need, by :func:`require`. Whoever signed in with a key has a cookie instead.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, TypeVar

import anyio
from fastapi import Depends, FastAPI, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import make_url
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from api.limits import (
    Bounds,
    Buckets,
    SecurityHeaders,
    WholeBody,
    address_of,
    is_loopback,
    network_of,
)
from api.pages.paths import is_open, is_page
from api.pages.people import ForPeople
from api.problems import ProblemError, problem, problem_of
from api.refusals import Refusals
from api.revocation import Revocation
from api.sessions import formed, session_token
from api.settings import Settings
from tuner.errors import TunerError, UsageError
from tuner.store.audit import LOCAL, NOBODY, Action, Audit
from tuner.store.keys import Keys, includes, key_id
from tuner.store.records import Scope
from tuner.store.sessions import Sessions, SignedIn

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""What tells whether the service works; whoever asks for it has no key."""
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers of a request that a proxy passed on."""
MOST_KNOWN = 1000
"""Keys that are remembered as good, to count their requests by key before it is looked up."""
CHECKS_AT_ONCE = 4
"""Threads that look keys up; of their own, so that slow requests do not keep keys waiting."""
SAFE = ("GET", "HEAD")
"""Methods for which a session's cookie is enough, since they change nothing."""
BEARER = HTTPBearer(scheme_name="key", auto_error=False, description="Made by `tuner keys create`")

Found = TypeVar("Found")


class KeysNeeded(StrEnum):
    """Who needs a key."""

    ALWAYS = "always"  # everybody
    FROM_OTHERS = "from_others"  # who comes through a proxy; whoever is on this machine does not
    NEVER = "never"  # nobody: this was asked for, on a loopback address


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request."""

    owner: str
    """The key's id; empty where none was needed. Idempotency keys are each owner's own."""
    scope: Scope
    """What may be done."""
    address: str
    """Where from; empty when the server does not say."""
    name: str = ""
    """The key's, for people; empty where none was needed."""
    signed_in: bool = False
    """Whether a session's cookie stood for the key."""
    proof: str = ""
    """Id of the session, or of the key where it was given itself: what is open ends with it."""

    @property
    def id(self) -> str:
        """As the audit names them: the key's id, or ``local``."""
        return self.owner or LOCAL


# -- at start ---------------------------------------------------------------------------------


def keys_needed(settings: Settings) -> KeysNeeded:
    """Who needs a key: everybody, unless the service is for this machine only.

    It is for others as soon as it is bound to an address that they reach, may be called by a name
    that is not this machine's loopback, or has a proxy in front of it.

    Raises:
        UsageError: others reach it, and it is to need no keys.
    """
    bound_to_others = not is_loopback(settings.host)
    if settings.require_keys is False:
        if bound_to_others:
            allowed = "must be true unless the service is bound to a loopback address"
            raise UsageError("require_keys", settings.require_keys, allowed)
        return KeysNeeded.NEVER
    named_for_others = not all(map(is_loopback, settings.allowed_hosts))
    for_others = bound_to_others or named_for_others or bool(settings.proxies)
    return KeysNeeded.ALWAYS if settings.require_keys or for_others else KeysNeeded.FROM_OTHERS


def check_bind(settings: Settings, keys: Keys) -> None:
    """Refuses to start a service that needs keys where there is none.

    Raises:
        UsageError: with how to make one; or the settings contradict each other.
    """
    if keys_needed(settings) is KeysNeeded.ALWAYS and not keys.any():
        how = f"make one first: tuner keys create NAME --scope submit{_named(settings.db)}"
        raise UsageError("host", settings.host, f"keys are needed there, and there is none; {how}")


def _named(db: str | None) -> str:
    """The option that names the same database, without its password."""
    if not db:
        return ""
    return f" --db {shlex.quote(make_url(db).render_as_string(hide_password=True))}"


def protect(app: FastAPI, settings: Settings, keys: Keys, audit: Audit) -> None:
    """Put an application behind everything that looks at requests before it does.

    Raises:
        UsageError: the settings contradict each other.
    """
    needed = keys_needed(settings)
    # The last one that is added is the first one to see a request.
    app.add_middleware(WholeBody, most_bytes=settings.max_body_bytes)
    app.add_middleware(Gate, needed=needed, settings=settings, keys=keys, audit=audit)
    app.add_middleware(Bounds, settings=settings, open_paths=OPEN_PATHS)
    app.add_middleware(ForPeople)
    app.add_middleware(SecurityHeaders)


# -- at each request --------------------------------------------------------------------------


class Gate:
    """Lets requests in by their keys, and no more of each caller than is allowed.

    It leaves ``caller``, ``actor``, ``address`` and ``refusals`` in the request's state; nobody is
    the ``caller`` of what is open to all.
    """

    def __init__(
        self, app: ASGIApp, *, needed: KeysNeeded, settings: Settings, keys: Keys, audit: Audit
    ) -> None:
        self.app = app
        self.needed = needed
        self.keys = keys
        self.sessions = Sessions(keys.transactions)
        self.refusals = Refusals(audit)
        self.revocation = Revocation(keys, self.sessions)
        self.buckets = Buckets(settings.rate_per_s, settings.rate_burst)
        self.most_open = settings.max_concurrent
        self._open: Counter[str] = Counter()
        self._known: dict[bytes, str] = {}
        self._threads = anyio.CapacityLimiter(CHECKS_AT_ONCE)

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        address = address_of(scope)
        text = _presented(scope)
        token = _session(scope) if text is None else None
        secret = text or token
        who = self._known.get(_digest(secret)) if secret else None
        who = who or network_of(address)
        if refusal := self._too_many(who):
            await refusal(scope, receive, send)
            return
        self._open[who] += 1
        try:
            await self._serve(scope, receive, send, text, token, address)
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    def _too_many(self, who: str) -> Response | None:
        """What a caller is told who sends too much."""
        if self._open[who] >= self.most_open:
            detail = f"{self.most_open} requests are open already"
            return problem(429, detail, {"Retry-After": "1"})
        # On this machine alone nobody is kept from the service by anybody else.
        wait_s = self.buckets.take(who) if self.needed is KeysNeeded.ALWAYS else 0.0
        if not wait_s:
            return None
        rate = f"at most {self.buckets.rate_per_s:g} requests per second"
        return problem(429, rate, {"Retry-After": str(math.ceil(wait_s))})

    async def _serve(
        self,
        scope: Connection,
        receive: Receive,
        send: Send,
        text: str | None,
        token: str | None,
        address: str,
    ) -> None:
        state = scope.setdefault("state", {})
        state.update(caller=None, actor="", address=address, refusals=self.refusals)
        answer: ASGIApp = self.app
        try:
            caller = await self._caller(scope, text, token, address)
        except ProblemError as error:
            if not is_open(scope["path"]):
                answer = problem(error.status, error.detail, error.headers)
        except TunerError as error:  # the database, which knows the keys
            answer = problem_of(error)
        else:
            state.update(caller=caller, actor=caller.id)
            await self.revocation.serve(caller.proof, self.app, scope, receive, send)
            return
        await answer(scope, receive, send)

    async def _caller(
        self, scope: Connection, text: str | None, token: str | None, address: str
    ) -> Caller:
        """Who it is: by the key, else by the session, else whoever needs neither.

        Raises:
            ProblemError: 401.
        """
        if text is not None:
            return await self._by_key(text, address)
        found = None if token is None else await self._in_thread(self.sessions.check, token)
        if token is not None and found is not None:
            self._remember(token, found.key_id)
            if (visit := scope["state"].get("visit")) is not None:
                visit.by_session = True
            return _signed_in(found, address)
        if self.needed is KeysNeeded.ALWAYS:
            raise _unauthorized("a key is needed: Authorization: Bearer tuner_...")
        if self.needed is KeysNeeded.FROM_OTHERS and _passed_on(scope):
            raise _unauthorized("a proxy passed this on, so a key is needed")
        return Caller(owner="", scope=Scope.ADMIN, address=address)

    async def _by_key(self, text: str, address: str) -> Caller:
        key = await self._in_thread(self.keys.check, text)
        if key is None:
            data = {"key": key_id(text), "address": address}
            await self.refusals.note(network_of(address), NOBODY, Action.KEY_REFUSED, data)
            raise _unauthorized("this key is not known, or was revoked", 'error="invalid_token"')
        self._remember(text, key.id)
        return Caller(owner=key.id, scope=key.scope, address=address, name=key.name, proof=key.id)

    async def _in_thread(self, check: Callable[[str], Found | None], text: str) -> Found | None:
        return await anyio.to_thread.run_sync(check, text, limiter=self._threads)

    def _remember(self, text: str, number: str) -> None:
        """Count its requests by key from now on; whether it is good is asked each time."""
        digest = _digest(text)
        self._known.pop(digest, None)
        self._known[digest] = number
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _presented(scope: Connection) -> str | None:
    """What was given as a key; ``None`` for nothing, empty when it cannot be one."""
    given = Headers(scope=scope).getlist("authorization")
    if not given:
        return None
    scheme, _, text = given[0].partition(" ")
    return text.strip() if len(given) == 1 and scheme.lower() == "bearer" else ""


def _session(scope: Connection) -> str | None:
    """The token of a session that may stand for a key here: to read, or to send a page's form."""
    path = scope["path"]
    if is_page(path) or (scope["method"] in SAFE and not is_open(path)):
        return session_token(scope)
    return None


def _signed_in(found: SignedIn, address: str) -> Caller:
    return Caller(
        owner=found.key_id,
        scope=found.scope,
        address=address,
        name=found.name,
        signed_in=True,
        proof=found.session_id,
    )


def _passed_on(scope: Connection) -> bool:
    headers = Headers(scope=scope)
    return any(name in headers for name in FORWARDED)


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _unauthorized(detail: str, more: str = "") -> ProblemError:
    challenge = ", ".join(filter(None, ('Bearer realm="tuner"', more)))
    return ProblemError(401, detail, {"WWW-Authenticate": challenge})


# -- at each route ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requirement:
    """A dependency: the scope that a route needs."""

    scope: Scope

    async def __call__(
        self,
        request: Request,
        documented: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)],
    ) -> Caller:
        """Who calls.

        Raises:
            ProblemError: 403 when their key does not allow this; as :func:`api.sessions.formed`
                where a page's form is sent.
        """
        if request.method not in SAFE and is_page(request.scope["path"]):
            await formed(request)  # so that no route of a page can forget to
        caller: Caller = request.state.caller  # the middleware has let nobody in without
        if includes(caller.scope, self.scope):
            return caller
        data = {"has": str(caller.scope), "needs": str(self.scope), "address": caller.address}
        refusals: Refusals = request.state.refusals
        await refusals.note(caller.id, caller.id, Action.SCOPE_REFUSED, data)
        challenge = f'Bearer realm="tuner", error="insufficient_scope", scope="{self.scope}"'
        detail = f"this key allows {caller.scope}; this needs {self.scope}"
        raise ProblemError(403, detail, {"WWW-Authenticate": challenge})


def require(scope: Scope) -> Requirement:
    """A dependency of a route that needs this scope; it gives the :class:`Caller`."""
    return Requirement(scope)


Reader = Annotated[Caller, Depends(require(Scope.READ))]
Submitter = Annotated[Caller, Depends(require(Scope.SUBMIT))]
Admin = Annotated[Caller, Depends(require(Scope.ADMIN))]
