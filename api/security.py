"""Keys: who calls, what their key allows, and how much of the service they may have.

Every path needs a key but :data:`OPEN_PATHS` and those of :func:`is_open`, whether there is a route
or not: a middleware asks for it, so that no route can forget to. Routes name the scope that they
need: ``caller: Reader``. Whoever signed in has a cookie instead, enough for a page; which paths are
pages, and which of them may be gone to, is told here too.
"""

import asyncio
import logging
import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, TypeVar, TypeVarTuple, Unpack
from urllib.parse import urlsplit

import anyio
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import make_url
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from api.limits import Buckets, address_of, is_loopback, network_of
from api.problems import ProblemCode, ProblemError, problem_of
from api.sessions import formed, session_token
from api.settings import Settings
from tuner.errors import AwayError, TunerError, UsageError
from tuner.store.access import LOCAL, Keys, Sessions, includes, key_id
from tuner.store.tables import Scope

# Paths for load balancers, which have no key.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
# Headers of a request that a proxy passed on.
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
# Keys that are remembered as good, to count their requests by key before it is looked up.
MOST_KNOWN = 1000
# Threads that look keys up; of their own, so that slow requests do not keep keys waiting.
CHECKS_AT_ONCE = 4
# Seconds between two looks whether the keys and sessions of open requests still hold.
LOOK_S = 2.0
# One key's requests have one in so many of the threads.
SHARE = 4
# Seconds that a request that writes waits for its turn, and of SQLite's for the lock of another
# process: then it is told to come again.
WRITE_S = 5.0
# Methods for which a session's cookie is enough, since they change nothing.
SAFE = ("GET", "HEAD")
BEARER = HTTPBearer(scheme_name="key", auto_error=False, description="Made by `tuner keys create`")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger("api.security")


class KeysNeeded(StrEnum):
    """Callers who need a key."""

    ALWAYS = "always"  # everybody
    FROM_OTHERS = "from_others"  # who comes through a proxy; whoever is on this machine does not
    NEVER = "never"  # nobody: this was asked for, on a loopback address


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request."""

    owner: str
    """The key's id; empty where none was needed. Idempotency keys are each owner's own."""
    scope: Scope
    address: str
    """IP address; empty when the server does not say."""
    name: str = ""
    """The key's name, for people; empty where none was needed."""
    signed_in: bool = False
    """True where a session's cookie stood for the key."""
    proof: str = ""
    """Id of the session, or of the key where it was given itself: what is open ends with it."""

    @property
    def id(self) -> str:
        """The caller's name in the audit: the key's id, or ``local``."""
        return self.owner or LOCAL


# -- at start ---------------------------------------------------------------------------------


def keys_needed(settings: Settings) -> KeysNeeded:
    """Tells who needs a key: everybody, unless the service is for this machine only.

    It is for others as soon as it is bound to an address that they reach, may be called by a name
    that is not this machine's loopback, or has a proxy in front of it."""
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
    """Refuses to start a service that needs keys where there is none."""
    if keys_needed(settings) is KeysNeeded.ALWAYS and not keys.any():
        how = "make one first: tuner keys create NAME --scope submit"
        if settings.db:
            shown = make_url(settings.db).render_as_string(hide_password=True)
            how += f" --db {shlex.quote(shown)}"
        raise UsageError("host", settings.host, f"keys are needed there, and there is none; {how}")


# -- at each request --------------------------------------------------------------------------


class Gate:
    """Lets requests in by their keys, and no more of each caller than is allowed.

    It leaves ``caller``, ``actor`` and ``address`` in the request's state; nobody is the
    ``caller`` of what is open to all.
    """

    def __init__(self, app: ASGIApp, *, needed: KeysNeeded, settings: Settings, keys: Keys) -> None:
        self.app = app
        self.needed = needed
        self.keys = keys
        self.sessions = Sessions(keys.transactions)
        self.revocation = Revocation(keys, self.sessions)
        self.buckets = Buckets(settings.rate_per_s, settings.rate_burst)
        self.most_open = settings.max_concurrent
        self._open: Counter[str] = Counter()
        self._known: dict[bytes, str] = {}
        self._threads = anyio.CapacityLimiter(CHECKS_AT_ONCE)

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        key = token = None
        path, given = scope["path"], Headers(scope=scope).getlist("authorization")
        if given:
            # Empty when it cannot be a key.
            scheme, _, text = given[0].partition(" ")
            key = text.strip() if len(given) == 1 and scheme.lower() == "bearer" else ""
        elif is_page(path) or (scope["method"] in SAFE and not is_open(path)):
            # A session may stand for a key to read, or to send a page's form.
            token = session_token(scope)
        address = address_of(scope)
        who = self._known.get(_digest(key or token or ""), network_of(address))
        # On this machine alone nobody is kept from the service by anybody else.
        is_full = self._open[who] >= self.most_open
        wait_s = self.buckets.take(who) if self.needed is KeysNeeded.ALWAYS and not is_full else 0.0
        if is_full or wait_s:
            detail = f"at most {self.buckets.rate_per_s:g} requests per second"
            detail = f"{self.most_open} requests are open already" if is_full else detail
            again = {"Retry-After": str(math.ceil(wait_s) or 1)}
            await ProblemError(429, detail, again).response()(scope, receive, send)
            return
        scope.setdefault("state", {}).update(caller=None, actor="", address=address)
        self._open[who] += 1
        try:
            answer: ASGIApp = self.app
            try:
                caller = await self._caller(scope, key, token)
            except ProblemError as error:
                if not is_open(scope["path"]):
                    answer = error.response()
            except TunerError as error:  # the database, which knows the keys
                answer = problem_of(error)
            else:
                scope["state"].update(caller=caller, actor=caller.id)
                await self.revocation.serve(caller.proof, self.app, scope, receive, send)
                return
            await answer(scope, receive, send)
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    async def _caller(self, scope: Connection, text: str | None, token: str | None) -> Caller:
        """The caller by the key, else by the session, else whoever needs neither."""
        address: str = scope["state"]["address"]
        if text is not None:
            key = await anyio.to_thread.run_sync(self.keys.check, text, limiter=self._threads)
            if key is None:
                note_refused(text, address)
                detail = "this key is not known, or was revoked"
                raise _unauthorized(detail, ProblemCode.KEY_REFUSED)
            self._remember(text, key.id)
            return Caller(
                owner=key.id, scope=key.scope, address=address, name=key.name, proof=key.id
            )
        check, found = self.sessions.check, None
        if token is not None:
            found = await anyio.to_thread.run_sync(check, token, limiter=self._threads)
        if token is not None and found is not None:
            self._remember(token, found.key_id)
            if (visit := scope["state"].get("visit")) is not None:
                visit.by_session = True
            return Caller(
                owner=found.key_id,
                scope=found.scope,
                address=address,
                name=found.name,
                signed_in=True,
                proof=found.session_id,
            )
        if self.needed is KeysNeeded.ALWAYS:
            raise _unauthorized("a key is needed: Authorization: Bearer tuner_...")
        headers = Headers(scope=scope)
        if self.needed is KeysNeeded.FROM_OTHERS and any(name in headers for name in FORWARDED):
            raise _unauthorized("a proxy passed this on, so a key is needed")
        return Caller(owner="", scope=Scope.ADMIN, address=address)

    def _remember(self, text: str, number: str) -> None:
        """Has its requests counted by key from now on; whether it is good is asked each time."""
        digest = _digest(text)
        self._known.pop(digest, None)
        self._known[digest] = number
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def note_refused(text: str, address: str) -> None:
    """Logs a key that is not good, by its id. Not in the audit, which anybody could fill then."""
    log.warning("key refused", extra={"key": key_id(text), "client": address})


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _unauthorized(detail: str, code: ProblemCode = ProblemCode.KEY_NEEDED) -> ProblemError:
    more = "" if code is ProblemCode.KEY_NEEDED else ', error="invalid_token"'
    return ProblemError(401, detail, {"WWW-Authenticate": f'Bearer realm="tuner"{more}'}, code=code)


class Revocation:
    """Serves requests, and ends those whose key was revoked or whose session is over.

    Both are checked at the beginning of each request, and a stream may be open for days after
    that. Two queries every two seconds, however many are open. Only what changes nothing is
    ended: a question or a cancelling that has begun gets its answer. For one event loop.
    """

    def __init__(self, keys: Keys, sessions: Sessions, *, look_s: float = LOOK_S) -> None:
        self._keys = keys
        self._sessions = sessions
        self._look_s = look_s
        self._open: dict[anyio.CancelScope, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._thread = anyio.CapacityLimiter(1)  # its own, so that slow requests hold nothing up

    async def serve(
        self, proof: str, app: ASGIApp, scope: Connection, receive: Receive, send: Send
    ) -> None:
        """Has ``app`` answer a request while its proof holds; empty where none is needed."""
        if not proof or scope["method"] not in SAFE:
            await app(scope, receive, send)
            return
        has_begun = is_over = False

        async def noting(message: Message) -> None:
            nonlocal has_begun, is_over
            has_begun = True
            is_over = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        with anyio.CancelScope() as until:
            self._open[until] = proof
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="revocation")
            try:
                await app(scope, receive, noting)
            finally:
                del self._open[until]
        if not until.cancelled_caught or is_over:
            return
        if has_begun:  # a client that comes again is told why
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            detail = "this key was revoked, or the session is over"
            refusal = _unauthorized(detail, ProblemCode.KEY_REFUSED).response()
            await refusal(scope, receive, send)

    async def _run(self) -> None:
        while self._open:
            await asyncio.sleep(self._look_s)
            looked_for = dict(self._open)  # before the look, so that it knows of their proofs
            if not looked_for:
                return
            try:
                good = await anyio.to_thread.run_sync(self._good, limiter=self._thread)
            except TunerError as error:
                log.warning("%s; which keys and sessions still hold is not known", error)
                continue
            for until, proof in looked_for.items():
                if proof not in good:
                    until.cancel()

    def _good(self) -> set[str]:
        """Ids of the keys that are not revoked, and of the sessions that are not over."""
        keys = {key.id for key in self._keys.list() if key.revoked_at is None}
        return keys | self._sessions.open_ids()


class Turns:
    """Lets a share of each key's requests compute at a time; its others wait, and hold no thread.

    Each may take seconds of computing. Whoever sends hundreds keeps only their own waiting.
    """

    def __init__(self, threads: int) -> None:
        """``threads`` are those that requests are worked at with."""
        each = max(1, threads // SHARE)
        # One for each key that asked, of which an administrator made few: none is ever removed.
        self._limiters: defaultdict[str, anyio.CapacityLimiter]
        self._limiters = defaultdict(lambda: anyio.CapacityLimiter(each))
        # One database has one writer at a time, and those who wait for it must not hold all
        # threads: whoever reads needs one too.
        self._writers = anyio.Semaphore(max(1, threads // 2))

    @asynccontextmanager
    async def taken(self, owner: str) -> AsyncIterator[None]:
        """Waits for a turn of a key, and holds it while entered; empty is for who needs no key."""
        if not owner:
            yield
            return
        async with self._limiters[owner]:
            yield

    async def run(self, owner: str, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        """Runs ``work`` in a thread, in a turn of a key."""
        async with self.taken(owner):
            return await anyio.to_thread.run_sync(work, *arguments)

    async def write(self, owner: str, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        """Runs ``work`` that writes to the database as :meth:`run` does.

        Raises:
            AwayError: other writers have held it up for too long.
        """
        async with self.taken(owner):
            with anyio.move_on_after(WRITE_S) as waiting:
                await self._writers.acquire()
            if waiting.cancelled_caught:
                raise AwayError(f"no write could begin for {WRITE_S:g} s")
            try:
                return await anyio.to_thread.run_sync(work, *arguments)
            finally:
                self._writers.release()


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
        if request.method not in SAFE and is_page(request.scope["path"]):
            await formed(request)  # so that no route of a page can forget to
        caller: Caller = request.state.caller  # the middleware has let nobody in without
        if includes(caller.scope, self.scope):
            return caller
        challenge = f'Bearer realm="tuner", error="insufficient_scope", scope="{self.scope}"'
        detail = f"this key allows {caller.scope}; this needs {self.scope}"
        raise ProblemError(403, detail, {"WWW-Authenticate": challenge})


# The caller of a route that needs a scope.
Reader = Annotated[Caller, Depends(Requirement(Scope.READ))]
Submitter = Annotated[Caller, Depends(Requirement(Scope.SUBMIT))]
Admin = Annotated[Caller, Depends(Requirement(Scope.ADMIN))]


# -- paths of pages for people, and those to which a page may send them --------------------------

# First segments of the paths of pages, where a session's cookie is enough to send a form.
PAGES = frozenset({"", "compare", "new", "sign-in", "sign-out", "studies"})
# First segments of the paths where nobody is shown a page, whatever they accept.
FOR_TOOLS = frozenset(
    {
        *("audit", "favicon.ico", "healthz", "metrics", "openapi.json", "readyz", "static", "tune"),
        *("size", "predict", "check", "models", "gpus", "formats", "workers"),
    }
)
HOME = "/"
NEW = "/new"
SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
# Characters of a path to go on to.
LONGEST_NEXT = 2000
# A path of this service in printable ASCII: browsers take backslashes for slashes, and leave tabs
# and newlines out.
_LOCAL = re.compile(r"/[!-\[\]-~]*")


def is_page(path: str) -> bool:
    """True of the path of a page, or of something that only pages use."""
    return _first(path) in PAGES


def is_open(path: str) -> bool:
    """True of a path that is answered without a key, so that one can sign in."""
    return path in (SIGN_IN, SIGN_OUT, "/favicon.ico") or path.startswith("/static/")


def wants_page(scope: Connection) -> bool:
    """True where an error is shown as a page: browsers say so, tools and our scripts do not."""
    accepts = ",".join(Headers(scope=scope).getlist("accept")).lower()
    return _first(scope["path"]) not in FOR_TOOLS and "text/html" in accepts


def local_path(given: str) -> str:
    """The path to go on to: the given one, if it is a page of this service; else its first."""
    if len(given) > LONGEST_NEXT or not _LOCAL.fullmatch(given):
        return HOME
    try:
        parts = urlsplit(given)
    except ValueError:
        return HOME
    # Of three slashes urlsplit leaves one in the path; browsers take what follows for a host.
    elsewhere = given.startswith("//") or "//" in parts.path or "/." in parts.path
    if elsewhere or not is_page(parts.path) or is_open(parts.path):
        return HOME
    return given


def _first(path: str) -> str:
    return path.lstrip("/").partition("/")[0]
