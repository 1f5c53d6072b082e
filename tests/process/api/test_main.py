"""The service's command: where it may bind, what it says, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.questions import question_about
from tuner.core.study import Limits
from tuner.store import open_store

SERVE = [sys.executable, "-P", "-m", "api"]
WITHIN_S = 120


@pytest.fixture
def environment(tmp_path):
    """Of a user of one's own, with a database and no other setting."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    return {
        **kept,
        "TUNER_DB": f"sqlite:///{tmp_path}/studies.db",
        "XDG_DATA_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
    }


@dataclass
class Service:
    """A running service."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=WITHIN_S)

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def serving(environment, folder, *options, command=SERVE):
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--port", "0", "--json", *options],
            env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True,
            # a shell's background processes ignore it
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    with process:
        try:
            said = json.loads(process.stdout.readline() or f'{{"error": {log.read_text()!r}}}')
            assert said["pid"] == process.pid
            yield Service(process, said["url"], log)
        finally:
            process.kill()


def run(environment, *options):
    return subprocess.run(
        [*SERVE, *options], env=environment, capture_output=True, text=True, timeout=WITHIN_S
    )


def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def study_id(environment):
    question = question_about("stories15m", "cpu:2", tokens=128, batch=8)
    with open_store(environment["TUNER_DB"]) as store:
        return store.ask(question, Limits(max_probes=4)).id


@pytest.mark.smoke
def test_serves_logs_and_ends_by_sigterm(environment, tmp_path):
    with serving(environment, tmp_path) as service:
        assert get(f"{service.url}/healthz") == (200, {"status": "ok"})
        assert get(f"{service.url}/readyz") == (200, {"status": "ready"})
        assert get(f"{service.url}/tune?limit=5&note=secret1", Cookie="secret2")[0] in (200, 422)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        assert get(f"{service.url}/healthz", **upgrade) == (200, {"status": "ok"})
        assert service.end() == 0
        assert "secret" not in service.log.read_text()
        assert "WebSocket" not in service.log.read_text(), "nobody is to install anything"
        assert "Unsupported upgrade" not in service.log.read_text()
        lines = service.lines()
    assert {line["process"] for line in lines} == {"api"}
    assert lines[0]["message"] == f"serving at {service.url}"
    (request,) = [line for line in lines if line["message"] == "answered"]
    assert request["route"] == "/tune"
    assert len(request["request"]) == 16
    assert lines[-1]["message"] == "ending"


def test_the_command_line_becomes_the_service_and_ends_though_somebody_waits(
    environment, tmp_path, study_id
):
    """The process that was started is the service: signals and ``kill -9`` mean it."""
    (tmp_path / ".env").write_text("TUNER_HOST=127.0.0.9\nPOSTGRES_PASSWORD=x\n")
    command = [sys.executable, "-c", "import sys; from tuner.cli import main; sys.exit(main())"]
    with serving(environment, tmp_path, command=[*command, "serve"]) as service:
        assert service.url.startswith("http://127.0.0.9:")
        host, port = service.url.removeprefix("http://").split(":")
        waiting = []
        for path in (f"/tune/{study_id}/events", f"/tune/{study_id}?wait=60"):
            waiting.append(socket.create_connection((host, int(port)), timeout=WITHIN_S))
            waiting[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert waiting[0].recv(15) == b"HTTP/1.1 200 OK"
        assert get(f"{service.url}/healthz")[0] == 200
        assert service.end(signal.SIGINT) == 130
        for one in waiting:
            with one:
                while one.recv(65536):
                    pass  # answered, and closed
    assert not any("exceeded" in line["message"] for line in service.lines())


def test_what_cannot_be_served_is_one_line(environment, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, more, code, said in (
            (("--db", f"sqlite:///{tmp_path}"), {}, 2, "tuner: error: db: "),
            (("--db", "postgresql://user:secret@127.0.0.1:1/tuner"), {}, 1, "tuner: error: "),
            (
                ("--port", port),
                {},
                2,
                f"tuner: error: host: got '127.0.0.1:{port}'; is in use, perhaps by",
            ),
            ((), {"TUNER_PORT": "http"}, 2, "tuner: error: TUNER_PORT: got "),
        ):
            done = run({**environment, **more}, *options)
            assert (done.returncode, done.stdout) == (code, ""), done.stderr
            assert done.stderr.startswith(said)
            assert done.stderr.count("\n") == 1
            assert "secret" not in done.stderr
