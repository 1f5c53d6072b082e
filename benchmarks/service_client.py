"""A caller that asks again and again, for ``make bench-service``: of the standard library alone.

    python benchmarks/service_client.py '{"port": 8765, "seconds": 10, "bodies": [...]}'

It says ``ready`` once it is connected, begins when a line comes, and prints what it saw as JSON.
"""

import http.client
import json
import sys
import time
from itertools import count, islice
from typing import Any

TIMEOUT_S = 60.0
MOST_ERRORS = 20
"""Errors that are kept word by word."""


def wrong(status: int, content: bytes) -> str:
    """What is wrong with an answer to ``POST /tune`` of a question whose prediction is cached."""
    if status != 202:
        return f"status {status}: {content[:200].decode(errors='replace')}"
    try:
        study = json.loads(content)
        if study["state"] != "done" or study["pending"]:
            return f"{study['study_id']} is {study['state']}"
        if study["suggestion"]["best"]["provenance"] not in ("predicted", "transferred"):
            return f"{study['study_id']} is not a prediction"
    except (ValueError, TypeError, KeyError) as error:
        return f"not a study with a suggestion: {error!r}"
    return ""


class Client:
    """One connection, kept alive."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.bodies = [json.dumps(body) for body in given["bodies"]]
        self.connection = http.client.HTTPConnection("127.0.0.1", given["port"], timeout=TIMEOUT_S)
        self.latencies_s: list[float] = []
        self.errors: list[str] = []
        self.right: set[bytes] = set()

    def post(self, number: int) -> None:
        """Ask one of the questions; answers that were looked at before are not looked at again."""
        headers = {"Content-Type": "application/json", **self.given.get("headers", {})}
        if self.given.get("idempotency"):
            headers["Idempotency-Key"] = f"{self.given['idempotency']}-{number}"
        body = self.bodies[number % len(self.bodies)]
        began = time.perf_counter()
        try:
            self.connection.request("POST", "/tune", body, headers)
            response = self.connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            self.errors.append(repr(error))
            return
        self.latencies_s.append(time.perf_counter() - began)
        if content in self.right and response.status == 202:
            return
        if what := wrong(response.status, content):
            self.errors.append(what)
        else:
            self.right.add(content)

    def run(self) -> dict[str, Any]:
        """Ask until the time is over, or so many ``posts`` are sent."""
        first = self.given.get("first", 0)
        until = time.perf_counter() + self.given["seconds"]
        for number in islice(count(first), self.given.get("posts")):
            if time.perf_counter() >= until:
                break
            self.post(number)
        return {
            "latencies_s": self.latencies_s,
            "count_errors": len(self.errors),
            "errors": self.errors[:MOST_ERRORS],
        }


def main() -> None:
    client = Client(json.loads(sys.argv[1]))
    client.connection.connect()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(client.run()))


if __name__ == "__main__":
    main()
