"""Requests that are too long, too slow, too many, or another's; and what every answer says."""

import asyncio
import http.client
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from api import limits
from api.limits import (
    BODY_S,
    LINGER_BODIES,
    SECURITY_HEADERS,
    Bounds,
    Buckets,
    Hosts,
    SecurityHeaders,
    WholeBody,
    address_of,
    is_loopback,
    network_of,
)
from api.settings import Settings
from tests.api.asgi import HOST, Answer, body_of, call, connection, echo, send_to
from tests.api.live import serving


def settings(**given: Any) -> Settings:
    """Settings that no environment or file changes."""
    return Settings(_env_file=None, **given)


def bounds(**given: Any) -> Bounds:
    return Bounds(echo, settings=settings(**given), open_paths=frozenset({"/healthz"}))


def is_problem(answer: Answer, status: int) -> bool:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json["status"] == status and bool(answer.json["detail"])


# -- hosts


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("example.org", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("header", ["localhost", "LocalHost:8765", "127.0.0.1:1", "[::1]:8765"])
@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0", "::1", "10.0.0.5"])
def test_this_machine_is_always_called_by_its_own_names(header: str, bind: str) -> None:
    assert Hosts.of(settings(host=bind)).allow(header)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "evil.example:8765",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost:8765@evil.example",
        "localhost/evil.example",
        "localhost#evil",
        "localhost evil",
        "localhost:port",
        "localhost:",
        "[::1",
        "192.0.2.1",
        "\xe9vil",
    ],
)
def test_a_loopback_service_goes_by_no_other_name(header: str) -> None:
    assert not Hosts.of(settings()).allow(header)


def test_names_are_allowed_one_by_one_or_below_one() -> None:
    hosts = Hosts.of(settings(allowed_hosts=("Tuner.example.org", "*.lab.example")))
    assert hosts.allow("tuner.EXAMPLE.org:443")
    assert hosts.allow("a.b.lab.example")
    for other in ("lab.example", "evillab.example", "x.tuner.example.org", "example.org"):
        assert not hosts.allow(other), other
    assert Hosts.of(settings(allowed_hosts=("*",))).allow("anything")


def test_the_bound_address_is_a_name_and_a_wildcard_stands_for_every_address() -> None:
    one = Hosts.of(settings(host="10.0.0.5"))
    assert one.allow("10.0.0.5:8765")
    assert not one.allow("10.0.0.6")
    assert Hosts.of(settings(host="fd00::5")).allow("[fd00::5]:8765")
    every = Hosts.of(settings(host="0.0.0.0"))
    assert every.allow("10.0.0.6:8765")
    assert every.allow("[fd00::5]")
    assert not every.allow("evil.example")


@pytest.mark.parametrize(
    "headers", [[], [HOST, HOST], [("host", "evil.example")], [HOST, ("host", "evil.example")]]
)
def test_a_request_for_another_host_is_refused(headers: list[tuple[str, str]]) -> None:
    assert is_problem(call(bounds(), connection(headers=headers)), 400)
    assert call(bounds(), connection(path="/healthz", headers=headers)).status == 200


# -- another site's pages


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost:8765", 200),
        ("https://LOCALHOST:8765", 200),
        ("http://localhost", 403),
        ("http://localhost:9999", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_origin_changes_nothing(
    method: str, origin: str | None, status: int
) -> None:
    headers = [("host", "localhost:8765"), *([("origin", origin)] if origin is not None else [])]
    assert call(bounds(), connection(method, headers=headers)).status == status


def test_a_page_of_another_origin_may_ask_and_is_not_shown() -> None:
    """Its browser keeps the answer from it, as no header allows it to be read."""
    headers = [HOST, ("origin", "https://evil.example")]
    answer = call(SecurityHeaders(bounds()), connection(headers=headers))
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


# -- first lines


def test_headers_are_counted_and_weighed() -> None:
    most = bounds(max_headers=10, max_header_bytes=1024)
    some = [HOST, *((f"x-{i}", "") for i in range(9))]
    assert call(most, connection(headers=some)).status == 200
    assert is_problem(call(most, connection(headers=[*some, ("x-9", "")])), 431)
    room = 1024 - len("hostlocalhostx")
    assert call(most, connection(headers=[HOST, ("x", "a" * room)])).status == 200
    assert is_problem(call(most, connection(headers=[HOST, ("x", "a" * (room + 1))])), 431)


def test_path_and_query_are_bounded() -> None:
    assert call(bounds(), connection(path="/" + "a" * 4095, query="b" * 4096)).status == 200
    assert is_problem(call(bounds(), connection(path="/" + "a" * 4096, query="b" * 4096)), 414)


@pytest.mark.parametrize("path", ["/tune/\0", "/tune/a\nb", "/tune/\x1b[2J", "/\x7f"])
def test_paths_are_printable(path: str) -> None:
    assert is_problem(call(bounds(), connection(path=path)), 400)


def test_there_are_no_web_sockets() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {**connection(), "type": "websocket", "subprotocols": []}
    asyncio.run(bounds()(scope, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


# -- what every answer says


def test_every_answer_has_the_headers() -> None:
    for path, status in (("/tune", 200), ("/\0", 400)):
        answer = call(SecurityHeaders(bounds()), connection(path=path))
        assert answer.status == status
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name.lower()] == value


def test_an_answer_may_say_otherwise() -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-security-policy", b"default-src 'self'")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    answer = call(SecurityHeaders(page), connection())
    assert answer.headers["content-security-policy"] == "default-src 'self'"
    assert len(answer.headers) == len(SECURITY_HEADERS)


# -- bodies


def whole(within_s: float = 30.0) -> WholeBody:
    return WholeBody(echo, most_bytes=10, within_s=within_s)


def posted(length: str | None = None) -> Scope:
    headers = [HOST, *([("content-length", length)] if length is not None else [])]
    return connection("POST", headers=headers)


def test_a_body_is_given_on_whole() -> None:
    answer = call(whole(), posted(), body_of(b"01234", b"", b"56789"))
    assert (answer.status, answer.body) == (200, b"0123456789")
    assert call(whole(), posted(), body_of(b"")).body == b""


@pytest.mark.parametrize("parts", [[b"0123456789a"], [b"012345", b"6789a"], [b"0"] * 11])
def test_a_larger_body_is_refused(parts: list[bytes]) -> None:
    answer = call(whole(), posted(), body_of(*parts))
    assert is_problem(answer, 413)
    assert "10 bytes" in answer.json["detail"]


@pytest.mark.parametrize("length", ["11", "9" * 100])
def test_one_that_says_so_is_answered_before_it_is_read(length: str) -> None:
    async def receive() -> Message:
        assert [one["type"] for one in answers] == ["http.response.start", "http.response.body"]
        return {"type": "http.disconnect"}

    answers: list[Message] = []

    async def send(message: Message) -> None:
        answers.append(message)

    asyncio.run(whole()(posted(length), receive, send))
    assert answers[0]["status"] == 413
    assert (b"connection", b"close") in answers[0]["headers"]
    assert [one.get("more_body") for one in answers[1:]] == [True, False]


@pytest.mark.parametrize("endless", [True, False])
def test_of_one_that_is_too_large_no_more_than_so_much_is_thrown_away(endless: bool) -> None:
    """Neither what comes without end, nor what does not come, keeps the connection."""
    received = 0

    async def receive() -> Message:
        nonlocal received
        received += 1
        if not endless and received > 3:
            await asyncio.Future()
        return {"type": "http.request", "body": b"0" * 10, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    asyncio.run(whole(within_s=0.05)(posted(), receive, send))
    assert sent[0]["status"] == 413
    assert sent[-1]["more_body"] is False
    assert received == (2 + LINGER_BODIES if endless else 4)


def test_who_sends_all_of_it_first_still_hears_why(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As most clients do; and then the connection is closed."""
    monkeypatch.setattr(limits, "LINGER_S", BODY_S)  # it may take a while to send
    with serving(app) as url:
        caller = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        for length in (300_000, 3_000_000):
            caller.request("POST", "/tune", b"0" * length, {"content-type": "application/json"})
            answer = caller.getresponse()
            assert (answer.status, answer.getheader("connection")) == (413, "close")
            assert json.load(answer)["status"] == 413
        caller.close()


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:DB8::7", "2001:db8::7"),
        ("fe80::1%eth0", "fe80::1"),
        ("fe80::1%<script>", "fe80::1"),
        ("unknown", ""),
        ("192.0.2.7, 10.0.0.1", ""),
        ("1", ""),
        ("<script>", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_what_is_no_address_is_not_taken_for_one(said: str | None, address: str) -> None:
    assert address_of(connection(client=said)) == address


@pytest.mark.parametrize(
    ("codings", "status"),
    [
        (["gzip"], 415),
        (["identity, gzip"], 415),
        (["identity", "br"], 415),
        (["x" * 100], 415),
        (["identity"], 200),
        ([" Identity "], 200),
        ([""], 200),
        ([], 200),
    ],
)
def test_a_body_is_taken_as_it_is(codings: list[str], status: int) -> None:
    headers = [HOST, *(("content-encoding", coding) for coding in codings)]
    answer = call(whole(), connection("POST", headers=headers), body_of(b"0"))
    assert answer.status == status
    if status == 415:
        assert is_problem(answer, 415)
        assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("length", ["-1", "1e3", "\xb2", ""])
def test_a_length_that_is_none_is_not_believed(length: str) -> None:
    assert call(whole(), posted(length), body_of(b"0" * 10)).status == 200
    assert call(whole(), posted(length), body_of(b"0" * 11)).status == 413


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    begun = [{"type": "http.request", "body": b"0", "more_body": True}]
    answer = call(whole(within_s=0.01), posted("5"), begun)
    assert is_problem(answer, 408)
    assert answer.headers["connection"] == "close"


def test_who_has_gone_is_not_answered() -> None:
    gone = [{"type": "http.request", "body": b"0", "more_body": True}, {"type": "http.disconnect"}]
    assert asyncio.run(send_to(whole(), posted("5"), gone)) is None


def test_what_comes_after_the_body_is_passed_on() -> None:
    """Event streams learn from it that nobody listens any more."""
    heard: list[str] = []

    async def listen(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"] for _ in range(2)])

    after = [*body_of(b"01"), {"type": "http.disconnect"}]
    asyncio.run(send_to(WholeBody(listen, most_bytes=10), connection(), after))
    assert heard == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("wrap", [whole, bounds, lambda: SecurityHeaders(echo)])
def test_what_is_no_request_is_left_alone(wrap: Callable[[], Any]) -> None:
    reached: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["type"])

    middleware = wrap()
    middleware.app = app
    asyncio.run(send_to(middleware, {"type": "lifespan"}))
    assert reached == ["lifespan"]


# -- rates


class Clock:
    """Time as the test says."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_bucket_is_emptied_and_fills(clock: Clock) -> None:
    buckets = Buckets(2.0, 3, clock=clock)
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a") == 0.5
    assert buckets.take("a") == 0.5, "being refused costs nothing"
    clock.now += 0.25
    assert buckets.take("a") == pytest.approx(0.25)
    clock.now += 0.25
    assert buckets.take("a") == 0
    clock.now += 3600
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_each_caller_has_a_bucket(clock: Clock) -> None:
    buckets = Buckets(1.0, 1, clock=clock)
    assert [buckets.take(who) for who in "abab"] == [0, 0, 1, 1]


def test_only_so_many_callers_are_remembered(clock: Clock) -> None:
    buckets = Buckets(1.0, 1, clock=clock, most=2)
    assert [buckets.take(who) for who in "aba"] == [0, 0, 1]
    buckets.take("c")
    assert buckets.take("a") == 1, "b was seen longest ago, and forgotten"
    assert buckets.take("b") == 0


def test_a_clock_that_stands_gives_no_more_than_the_burst(clock: Clock) -> None:
    buckets = Buckets(1e-6, 5, clock=clock)
    assert [buckets.take("a") == 0 for _ in range(10)] == [True] * 5 + [False] * 5


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::1", "::/64"),
        ("a name", "a name"),
        ("", ""),
    ],
)
def test_of_ipv6_a_subscriber_has_a_whole_network(address: str, network: str) -> None:
    assert network_of(address) == network
