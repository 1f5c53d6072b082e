"""A service of studies, as a caller sees it: ``python -P -m api`` on this or another machine."""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx

from tuner.errors import RefusedError, ServiceError, TunerError, UsageError

# Environment variable with the key to the service.
KEY = "TUNER_KEY"
TIMEOUT_S = 30.0
# Without a word on an event stream, on which something comes every 15 seconds.
SILENCE_S = 45.0
# Seconds for which a service that cannot be reached any more is tried again.
PATIENCE_S = 120.0
# The same of one that has never answered: its address may be wrong.
FIRST_S = 10.0
RETRY_S = 1.0
# Said beside a study that is open with other limits.
REPLACED = " (--replace does)"
# Statuses that pass.
BUSY = frozenset({429, 502, 503, 504})


class Service:
    """A service at a URL. A context manager: its connections are closed with it."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError("server", url, f"is no URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError("server", url, "must look like https://tuner.example.org")
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._has_answered = False
        found = os.environ.get(KEY, "") if key is None else key
        if not (found.isascii() and found.isprintable()):
            raise UsageError(KEY, "something else", "must be a key of the service, in one line")
        headers = {"Authorization": f"Bearer {found.strip()}"} if found.strip() else {}
        self._client = httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, transport=transport
        )

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a question; the study that answers it."""
        headers = {"Idempotency-Key": uuid4().hex}  # so that it may be sent again
        return self._object("POST", "/tune", json=dict(request), headers=headers)

    def study(self, study_id: str) -> dict[str, Any]:
        return self._object("GET", f"/tune/{study_id}")

    def probes(self, study_id: str) -> list[dict[str, Any]]:
        """A study's probes, oldest first."""
        found = self._object("GET", f"/tune/{study_id}/probes").get("probes")
        if not isinstance(found, list):
            raise ServiceError(f"{self.url} is no tuner service: it has sent no list of probes")
        return found

    def export(self, study_id: str, format_name: str, path: str, limits: str | None = None) -> str:
        """A study's answer as a launcher's file, to be written at a path."""
        # a name that is no UTF-8 has no other form in an address
        wanted = {"path": path.encode(errors="replace").decode()}
        if limits is not None:
            wanted["terms"] = limits
        return self._send("GET", f"/tune/{study_id}/export/{format_name}", params=wanted).text

    def cancel(self, study_id: str) -> dict[str, Any]:
        """Cancel a study."""
        return self._object("DELETE", f"/tune/{study_id}")

    def events(self, study_id: str) -> Iterator[int]:
        """Ids of a study's events as they come, until its end; a broken stream is taken up again.

        Raises:
            ServiceError: it cannot be reached any more, or refused.
        """
        last, until = 0, self._until()
        while not self._is_closed():
            try:
                for event_id in self._stream(f"/tune/{study_id}/events", last):
                    last = event_id
                    until = self._until()
                    yield last
                return
            except (httpx.TransportError, httpx.DecodingError) as error:
                if time.monotonic() > until:
                    raise self._unreachable(error) from error
            except RuntimeError:
                if not self._is_closed():  # by whoever waits no more, in another thread
                    raise
                return
            time.sleep(RETRY_S)

    def _is_closed(self) -> bool:
        return self._client.is_closed

    def _stream(self, path: str, last: int) -> Iterator[int]:
        headers, timeout = {"Last-Event-ID": str(last)}, httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
        with self._client.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code in BUSY:
                raise httpx.RemoteProtocolError(f"status {response.status_code}")
            if response.is_error:
                response.read()
                raise self._error(response)
            for line in response.iter_lines():
                name, _, value = line.partition(":")
                if name == "id" and value.strip().isdecimal():
                    yield int(value)

    def _object(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        response = self._send(method, path, **more)
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServiceError(f"{self.url} is no tuner service: {method} {path} is no JSON object")
        return found

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request, sent again while the service cannot be reached or is busy."""
        until = self._until()
        while True:
            try:
                response = self._client.request(method, path, **more)
            except httpx.DecodingError as error:
                raise ServiceError(f"{self.url} has sent what cannot be read: {error}") from error
            except httpx.TransportError as error:
                if time.monotonic() > until or isinstance(error, httpx.UnsupportedProtocol):
                    raise self._unreachable(error) from error
                time.sleep(RETRY_S)
                continue
            self._has_answered = True
            if response.is_success:
                return response
            if response.status_code not in BUSY or time.monotonic() > until:
                raise self._error(response)
            after = response.headers.get("Retry-After", "")
            time.sleep(min(60.0, float(after)) if after.isdecimal() else RETRY_S)

    def _until(self) -> float:
        """When patience ends that begins now, by the monotonic clock."""
        within_s = self._patience_s if self._has_answered else min(self._patience_s, FIRST_S)
        return time.monotonic() + within_s

    def _unreachable(self, error: Exception) -> ServiceError:
        why, cause = f"{error or type(error).__name__}", error.__cause__ or error.__context__
        while cause is not None and not isinstance(cause, ConnectionRefusedError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            why = "nothing listens there: start tuner serve, or mend the address"
        return ServiceError(f"{self.url} cannot be reached: {why}")

    def _error(self, response: httpx.Response) -> TunerError:
        try:
            problem = response.json()
        except ValueError:
            problem = None
        problem = problem if isinstance(problem, dict) else {}
        status = f"status {response.status_code}"
        if response.has_redirect_location:
            status += f": ask {response.headers['Location']} in its place"
        detail = str(problem.get("detail") or status)
        if response.status_code == 422 and isinstance(problem.get("field"), str):
            return RefusedError(problem["field"], detail)
        is_question = response.request.method == "POST"
        if response.status_code == 409 and is_question:
            return ServiceError(f"{self.url} refused: {detail}{REPLACED}")
        more = f"; the key is taken from ${KEY}" if response.status_code in (401, 403) else ""
        return ServiceError(f"{self.url} refused: {detail}{more}")
