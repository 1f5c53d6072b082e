"""Requests that are too long, too slow, too many, or another's."""

import asyncio

import pytest

from api.limits import LINGER_BODIES, Bounds, Buckets, Hosts, WholeBody, address_of, network_of
from api.settings import Settings
from tests.unit.api.asgi import HOST, body_of, call, connection, echo, send_to


def settings(**given):
    return Settings(_env_file=None, **given)


def bounds(**given):
    return Bounds(echo, settings=settings(**given), open_paths=frozenset({"/healthz"}))


def refused(answer, status, code):
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status, answer.json["status"], answer.json["code"]) == (status, status, code)
    assert answer.json["type"] == f"urn:tuner:problem:{code}"
    assert answer.json["detail"]


def test_of_ipv6_a_subscriber_has_a_whole_network():
    networks = {
        "192.0.2.1": "192.0.2.1", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64",
        "2001:db8:1:2::": "2001:db8:1:2::/64", "::ffff:192.0.2.1": "192.0.2.1",
        "::1": "::/64", "a name": "a name", "": "",
    }  # fmt: skip
    assert {address: network_of(address) for address in networks} == networks
    taken = {
        "192.0.2.7": "192.0.2.7", "2001:DB8::7": "2001:db8::7", "fe80::1%eth0": "fe80::1",
        "unknown": "", "192.0.2.7, 10.0.0.1": "", "<script>": "", None: "",
    }  # fmt: skip
    assert {said: address_of(connection(client=said)) for said in taken} == taken


OWN = ("localhost", "LocalHost:8765", "127.0.0.1:1", "[::1]:8765")
FOREIGN = (
    "", "evil.example", "localhost.evil.example", "evil.example:8765", "localhost@evil.example",
    "evil.example@localhost", "localhost:8765@evil.example", "localhost/evil.example",
    "localhost#evil", "localhost evil", "localhost:port", "localhost:", "[::1", "192.0.2.1",
    "\xe9vil",
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "allowed", "other"),
    [
        ({}, OWN, FOREIGN),
        ({"host": "::1"}, OWN, FOREIGN),
        ({"host": "10.0.0.5"}, (*OWN, "10.0.0.5:8765"), ("10.0.0.6", "evil.example")),
        ({"host": "fd00::5"}, (*OWN, "[fd00::5]:8765"), ("[fd00::6]",)),
        ({"host": "0.0.0.0"}, (*OWN, "10.0.0.6:8765", "[fd00::5]"), ("evil.example", "[::1")),
        ({"allowed_hosts": ("*",)}, (*OWN, "anything"), ("localhost evil",)),
        (
            {"allowed_hosts": ("Tuner.example.org", "*.lab.example")},
            (*OWN, "tuner.EXAMPLE.org:443", "a.b.lab.example"),
            ("lab.example", "evillab.example", "x.tuner.example.org", "example.org"),
        ),
    ],
)
def test_names_of_the_service(given, allowed, other):
    hosts = Hosts(settings(**given))
    assert [name for name in allowed if not hosts.allow(name)] == []
    assert [name for name in other if hosts.allow(name)] == []


def test_a_request_for_another_host_is_refused():
    """A page of another name that resolves to this machine must not read studies."""
    evil = ("host", "evil.example")
    for headers in ([], [HOST, HOST], [evil], [HOST, evil]):
        refused(call(bounds(), connection(headers=headers)), 400, "wrong_host")
        assert call(bounds(), connection(path="/healthz", headers=headers)).status == 200


def test_a_page_of_another_origin_changes_nothing():
    own = (None, "http://localhost:8765", "https://LOCALHOST:8765")
    others = ("http://localhost", "http://localhost:9999", "https://evil.example", "null", "")
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        for origin in (*own, *others):
            headers = [("host", "localhost:8765")]
            headers += [("origin", origin)] if origin is not None else []
            answer = call(bounds(), connection(method, headers=headers))
            assert answer.status == (200 if origin in own else 403), (method, origin)
            if origin not in own:
                refused(answer, 403, "other_origin")


def test_headers_are_counted_and_weighed():
    most = bounds(max_headers=10, max_header_bytes=1024)
    some = [HOST, *((f"x-{i}", "") for i in range(9))]
    assert call(most, connection(headers=some)).status == 200
    refused(call(most, connection(headers=[*some, ("x-9", "")])), 431, "headers_too_large")
    room = 1024 - len("hostlocalhostx")
    assert call(most, connection(headers=[HOST, ("x", "a" * room)])).status == 200
    long = [HOST, ("x", "a" * (room + 1))]
    refused(call(most, connection(headers=long)), 431, "headers_too_large")


def test_path_and_query_are_bounded_and_printable():
    assert call(bounds(), connection(path="/" + "a" * 4095, query="b" * 4096)).status == 200
    long = call(bounds(), connection(path="/" + "a" * 4096, query="b" * 4096))
    refused(long, 414, "uri_too_long")
    for path in ("/tune/\0", "/tune/a\nb", "/tune/\x1b[2J", "/\x7f"):
        refused(call(bounds(), connection(path=path)), 400, "bad_request")


def whole(**given):
    return WholeBody(echo, **{"most_bytes": 10, **given})


def posted(length=None):
    headers = [HOST, *([("content-length", length)] if length is not None else [])]
    return connection("POST", headers=headers)


def test_a_body_may_have_its_size_and_comes_in_one_piece():
    """A length that is none is not believed: what comes is counted."""
    for length in (None, "10", "-1", "1e3", "\xb2", ""):
        for parts in ([b"0" * 10], [b"0" * 9, b"0"], [b""]):
            answer = call(whole(), posted(length), body_of(*parts))
            assert (answer.status, answer.body) == (200, b"".join(parts))
        for parts in ([b"0" * 11], [b"0" * 10, b"0"]):
            answer = call(whole(within_s=0.05), posted(length), body_of(*parts))
            refused(answer, 413, "body_too_large")
            assert answer.headers["connection"] == "close"
    for length in ("11", "9" * 5000):  # it is not read
        refused(call(whole(within_s=0.01), posted(length), []), 413, "body_too_large")


def test_who_sends_all_of_it_first_still_hears_why():
    """Most callers read the answer only then. What comes is thrown away, and not for ever."""

    async def refuse(parts):
        sent = []
        heard = 0

        async def receive():
            nonlocal heard
            heard += 1
            return {"type": "http.request", "body": b"0" * 10, "more_body": heard < parts}

        async def send(message):
            sent.append({**message, "heard": heard})

        await whole()(posted(), receive, send)
        return sent

    for parts, taken in ((5, 5), (10**6, LINGER_BODIES + 2)):
        start, body, end = asyncio.run(refuse(parts))
        assert (start["status"], body["more_body"], end["more_body"]) == (413, True, False)
        assert (body["heard"], end["heard"]) == (2, taken)


def test_a_body_is_taken_as_it_is():
    for codings in (["gzip"], ["identity, gzip"], ["identity", "br"], ["x" * 100]):
        headers = [HOST, *(("content-encoding", coding) for coding in codings)]
        answer = call(whole(), connection("POST", headers=headers), body_of(b"0"))
        refused(answer, 415, "unsupported_media_type")
        assert answer.headers["accept-encoding"] == "identity"
    for codings in (["identity"], [" Identity "], [""], []):
        headers = [HOST, *(("content-encoding", coding) for coding in codings)]
        assert call(whole(), connection("POST", headers=headers), body_of(b"0")).status == 200


def test_who_has_gone_is_not_answered_and_who_is_slow_is_not_waited_for():
    begun = [{"type": "http.request", "body": b"0", "more_body": True}]
    slow = call(whole(within_s=0.01), posted("5"), begun)
    refused(slow, 408, "body_too_slow")
    assert slow.headers["connection"] == "close"
    gone = [{"type": "http.request", "body": b"0", "more_body": True}, {"type": "http.disconnect"}]
    assert asyncio.run(send_to(whole(), posted("5"), gone)) is None


def test_a_bucket_is_emptied_and_fills(clock):
    buckets = Buckets(2.0, 3, clock=clock)
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0]
    assert [buckets.take("a"), buckets.take("a")] == [0.5, 0.5], "being refused costs nothing"
    clock.now += 0.25
    assert buckets.take("a") == pytest.approx(0.25)
    clock.now += 0.25
    assert buckets.take("a") == 0
    clock.now += 3600
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_each_caller_has_a_bucket_and_only_so_many_are_remembered(clock):
    buckets = Buckets(1.0, 1, clock=clock, most=2)
    assert [buckets.take(who) for who in "abab"] == [0, 0, 1, 1]
    buckets.take("c")
    assert buckets.take("b") == 1, "a was seen longest ago, and forgotten"
    assert buckets.take("a") == 0
