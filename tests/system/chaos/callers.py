"""Callers of services that come and go: they ask again until they have what they want."""

import json
import random

import httpx

PATIENCE_S = 20.0
"""Seconds without a byte after which a stream is taken for dead: comments come each 15."""
RETRY_S = 0.3
PASSING = (429, 502, 503)
"""Statuses after which to ask again."""
ENDS = ("done", "failed", "cancelled")


class GaveUpError(Exception):
    """It is over, or an answer is no answer to the question."""


class Caller:
    """Asks one question and follows its study to the end, through whichever service lives."""

    def __init__(self, ports, seed, over):
        """It gives up when it is ``over``."""
        self._urls = [f"http://127.0.0.1:{port}" for port in ports]
        self._random = random.Random(seed)
        self._over = over
        self._client = httpx.Client(timeout=PATIENCE_S, trust_env=False)
        self.study_id = ""
        self.events = []
        """Ids of events, as they came."""
        self.breaks = 0
        """How often an answer failed or broke off."""
        self.unexpected = []
        """Answers that no trouble explains."""

    def run(self, body, key):
        """Ask, and follow the events until the study has ended."""
        with self._client:
            answers = {self._post(body, key) for _ in range(2)}  # the second time it is known
            if len(answers) != 1:
                self.unexpected.append(f"one key, two studies: {answers}")
            self.study_id = answers.pop()
            # Streams that break off, and those of a service that ends, are asked for again.
            while not self._follow() or self._state() not in ENDS:
                pass
        return self

    def _post(self, body, key):
        headers = {"Idempotency-Key": key}
        answer = self._ask("POST", "/tune", json=body, headers=headers)
        if answer.status_code != 202:
            raise GaveUpError(f"POST /tune: {answer.status_code} {answer.text}")
        return str(answer.json()["study_id"])

    def _state(self):
        answer = self._ask("GET", f"/tune/{self.study_id}")
        if answer.status_code != 200:
            raise GaveUpError(f"{self.study_id}: {answer.status_code} {answer.text}")
        return str(answer.json()["state"])

    def _ask(self, method, path, **more):
        while True:
            try:
                answer = self._client.request(method, self._url(path), **more)
                if answer.status_code not in PASSING:
                    return answer
                if answer.headers["content-type"] != "application/problem+json":
                    self.unexpected.append(f"{method} {path}: {answer.status_code} {answer.text}")
            except httpx.HTTPError:
                pass
            self._pause(f"{method} {path}")

    def _follow(self):
        """Read events until the stream ends or breaks off; whether it ended."""
        headers = {"Last-Event-ID": str(self.events[-1])} if self.events else {}
        url = self._url(f"/tune/{self.study_id}/events")
        try:
            with self._client.stream("GET", url, headers=headers) as answer:
                if answer.status_code == 200:
                    for line in answer.iter_lines():
                        if line.startswith("data:"):
                            self.events.append(json.loads(line.removeprefix("data:"))["id"])
                    return True
        except httpx.HTTPError:
            pass
        self._pause(url)
        return False

    def _url(self, path):
        return self._random.choice(self._urls) + path

    def _pause(self, what):
        self.breaks += 1
        if self._over.wait(RETRY_S):
            raise GaveUpError(what)
