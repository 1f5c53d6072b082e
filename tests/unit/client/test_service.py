"""The client of a service: what it sends, what it tries again, and what it makes of refusals."""

import httpx
import pytest

from tuner.client import service as module
from tuner.client.service import Service
from tuner.errors import RefusedError, ServiceError, UsageError


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(module, "time", Clock())
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.delenv("TUNER_KEY", raising=False)


def service(handler, key=None, patience_s=5.0):
    transport = httpx.MockTransport(handler)
    return Service("http://tuner.test/", key, transport, patience_s)


def problem(status, detail, **more):
    body = {"status": status, "detail": detail, **more}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json"})


def test_a_key_that_is_none_is_not_shown():
    with pytest.raises(UsageError) as caught:
        service(lambda request: httpx.Response(200), "secret\nline")
    assert "secret" not in str(caught.value)


def test_a_request_is_sent_again_while_the_service_is_away_or_busy():
    answers = [
        httpx.ConnectError("refused"), problem(503, "the database"),
        httpx.Response(429, headers={"Retry-After": "0"}), httpx.Response(200, json={"a": 1}),
    ]  # fmt: skip
    keys = []

    def answer(request):
        keys.append(request.headers["Idempotency-Key"])
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    with service(answer) as one:
        assert one.submit({}) == {"a": 1}
    assert len(keys) == 4
    assert len(set(keys)) == 1  # so that it asks once


def test_what_never_answered_is_given_up_sooner(monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    answers = []
    tries = []

    def answer(request):
        tries.append(request)
        if not answers:
            raise httpx.ConnectError("refused") from ConnectionRefusedError()  # as httpx does
        return answers.pop()

    with service(answer, patience_s=0.5) as one:
        with pytest.raises(ServiceError, match=r"cannot be reached: .*: start tuner serve"):
            one.study("st-1")
        at_first = len(tries)
        answers.append(httpx.Response(200, json={"a": 1}))
        assert one.study("st-1") == {"a": 1}
        tries.clear()
        with pytest.raises(ServiceError, match="cannot be reached"):
            one.study("st-1")
    assert at_first <= 2 < len(tries)


def test_a_wrong_field_is_a_usage_error():
    detail = "workload.model: got 'lama'; no such name"
    refusing = service(lambda request: problem(422, detail, field="workload.model"))
    with refusing as one, pytest.raises(RefusedError) as caught:
        one.submit({})
    assert caught.value.field == "workload.model"
    assert str(caught.value) == detail
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (problem(401, "a key is needed"), "a key is needed; the key is taken from $TUNER_KEY"),
        (problem(409, "cancelled already"), "refused: cancelled already"),
        (httpx.Response(500, text="<html>"), "refused: status 500"),
        (
            httpx.Response(308, headers={"Location": "https://tuner.test/tune"}),
            "refused: status 308: ask https://tuner.test/tune in its place",
        ),
        (httpx.Response(200, text="<html>"), "is no tuner service"),
        (httpx.Response(200, json=[]), "is no tuner service"),
    ],
)
def test_what_a_service_says_is_told(answer, said):
    with service(lambda request: answer) as one, pytest.raises(ServiceError) as caught:
        one.cancel("st-1")
    assert said in str(caught.value)
    assert caught.value.exit_code == 1


def test_what_cannot_be_unpacked_is_an_error_of_the_service():
    def answer(request):
        stream = httpx.ByteStream(b"no gzip")
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=stream)

    with service(answer) as one, pytest.raises(ServiceError, match="sent what cannot be read"):
        one.study("st-1")
    with service(answer, patience_s=0.05) as one, pytest.raises(ServiceError):
        list(one.events("st-1"))


class Broken(httpx.SyncByteStream):
    """A stream that breaks after its parts."""

    def __init__(self, *parts):
        self.parts = parts

    def __iter__(self):
        yield from self.parts
        raise httpx.ReadError("broken")


def test_a_study_on_other_terms_may_be_replaced_and_an_answer_is_of_its_terms():
    seen = []

    def answer(request):
        seen.append(request.url)
        return problem(409, "study st-1 has other limits")

    with service(answer) as one:
        with pytest.raises(ServiceError, match=r"has other limits \(--replace does"):
            one.submit({})
        with pytest.raises(ServiceError, match=r"has other limits$"):
            one.export("st-1", "torchrun", "a b.sh", "0123456789ab")
        with pytest.raises(ServiceError):
            one.export("st-1", "torchrun", "\udcff.sh")
    assert [url.query for url in seen] == [b"", b"path=a+b.sh&terms=0123456789ab", b"path=%3F.sh"]


def test_events_are_followed_over_broken_streams():
    first = b"event: asked\ndata: {}\nid: 1\n\n: ping\n\nid: 2\n"
    answers = [
        httpx.Response(200, stream=Broken(first)),
        problem(503, "the database"),
        httpx.Response(200, text="id: 5\ndata: id: 9\n\n"),
    ]
    asked = []

    def answer(request):
        asked.append(request.headers["Last-Event-ID"])
        return answers.pop(0)

    with service(answer) as one:
        assert list(one.events("st-1")) == [1, 2, 5]
    assert asked == ["0", "2", "2"]
