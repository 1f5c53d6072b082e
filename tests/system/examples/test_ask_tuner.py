"""``examples/ask-tuner.sh`` against a real service."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.system.examples.conftest import EXAMPLES
from tuner.client.answered import WRITTEN_BY_US

ASK = ("./ask-tuner.sh", "answer", "question.json", "env", "tuned.env")


@pytest.fixture
def seen_curl(folder, environment):
    """Where a curl writes its arguments down before it is curl, and the path with it."""
    programs = folder / "bin"
    programs.mkdir()
    curl = programs / "curl"
    curl.write_text(f'#!/bin/sh\necho "$@" >>{folder}/argv\nexec /usr/bin/curl "$@"\n')
    curl.chmod(0o755)
    return folder / "argv", f"{programs}:{environment['PATH']}"


def test_an_answer_is_written(run, service, folder, working):
    working()
    found = run(*ASK, "200")
    assert found.returncode == 0, found.stderr
    assert found.stdout == ""
    assert "is answered; its settings are in tuned.env" in found.stderr
    shown = run("sh", "-c", '. ./tuned.env && echo "$TUNED_STUDY_ID $TUNED_PROVENANCE"')
    study = service.store.studies()[0]
    assert shown.stdout.split() == [study.id, "measured"]
    assert (folder / "tuned.env").stat().st_mode & 0o444 == 0o444  # other users of a pod read it
    again = run(*ASK[:3], "accelerate", "accelerate.yaml", "200")
    assert again.returncode == 0, again.stderr
    assert "num_processes: 2" in (folder / "accelerate.yaml").read_text()


@pytest.mark.usefixtures("question")
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("tuner_wrong", "refused the key (status 401): "),
        ("", "refused the key (status 401): "),
        ("two words", "the key is none: it must be one word"),
        ('x" --output /x', "the key is none"),
    ],
)
def test_a_key_that_is_wrong(run, tmp_path, key, said):
    wrong = tmp_path / "wrong"
    wrong.write_text(key)
    found = run(*ASK, "200", TUNER_KEY_FILE=str(wrong))
    assert found.returncode == 1
    assert said in found.stderr
    assert key == "" or key not in found.stderr
    missing = run(*ASK, "3", TUNER_KEY_FILE="/nowhere")
    assert (missing.returncode, missing.stderr) == (
        1, "ask-tuner: the key's file /nowhere cannot be read\n",
    )  # fmt: skip


@pytest.mark.usefixtures("question")
def test_the_key_is_on_no_command_line(run, seen_curl, environment, service):
    argv, path = seen_curl
    more = {"PATH": path, "TUNER_KEY_FILE": "", "TUNER_KEY": service.key}
    found = run("./ask-tuner.sh", "submit", "question.json", **more)
    assert found.returncode == 0, found.stderr
    assert f"study {service.store.studies()[0].id} is asked" in found.stderr
    assert "/tune" in argv.read_text()
    assert service.key not in argv.read_text()
    assert not list(Path(environment["TMPDIR"]).iterdir())  # nothing is left


ANSWER = b"# Written by tuner on 2026-01-15\nexport TUNED_SHARDING=ddp\n"
STATE = b'{"state": "done", "no_answer": null}'
SIGN_IN = b"<html>sign in; $(touch run)</html>"
Reply = tuple[int, bytes, int]
"""Status, body, and bytes that are said to follow it and do not."""


class Between(BaseHTTPRequestHandler):
    """What a proxy, or a service that dies, may answer: one reply after the other, by request."""

    states: list[Reply]
    exports: list[Reply]

    def do_POST(self):
        """The question."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply((202, b'{"study_id": "st-1", "terms_id": "2"}', 0))

    def do_GET(self):
        """A study's state, and its export."""
        replies = self.exports if "/export/" in self.path else self.states
        self.reply(replies.pop(0) if len(replies) > 1 else replies[0])

    def reply(self, reply):
        """Answer so, and no more."""
        status, body, missing = reply
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        """Nothing."""


@pytest.fixture
def between():
    """Starts a server with these replies to a study's state and to its export; its URL."""
    servers = []

    def start(states, exports):
        handler = type("Here", (Between,), {"states": states, "exports": exports})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("question")
@pytest.mark.parametrize(
    ("states", "exports", "within_s", "why"),
    [
        ([(200, STATE, 0)], [(200, ANSWER, 900)], (2,), "does not answer"),
        ([(200, STATE, 0)], [(200, SIGN_IN, 0)], (60,), "is no file of tuner's"),
        ([(200, STATE, 0)], [(200, b"", 0)], (60,), "is no file of tuner's"),
        ([(200, SIGN_IN, 0)], [(200, SIGN_IN, 0)], (2, 10, 60), "has no answer after {} s"),
        ([(200, STATE, 0)], [(500, SIGN_IN, 0)], (60,), "refused (status 500): \n"),
    ],
    ids=["cut short", "a page", "nothing", "a page all the time", "an error"],
)
def test_what_is_no_answer_is_not_written(run, folder, between, states, exports, within_s, why):
    (folder / "tuned.env").write_text("of before")
    url = between(states, exports)
    for wait_s in within_s:  # until it leaves time to ask
        found = run(*ASK, f"{wait_s}", TUNER_URL=url)
        assert found.returncode == 1
        if why.format(wait_s) in found.stderr:
            break
    assert why.format(wait_s) in found.stderr
    assert (folder / "tuned.env").read_text() == "of before"
    assert not list(folder.glob("tuned.env.*"))


@pytest.mark.usefixtures("question")
def test_what_passes_is_waited_for(run, folder, between):
    states = [(502, SIGN_IN, 0), (200, SIGN_IN, 0), (200, STATE, 50), (200, STATE, 0)]
    exports = [(503, SIGN_IN, 0), (200, ANSWER, 900), (200, ANSWER, 0)]
    found = run(*ASK, "200", TUNER_URL=between(states, exports))
    assert found.returncode == 0, found.stderr
    assert (folder / "tuned.env").read_bytes() == ANSWER


def test_what_is_written_by_tuner_is_told_as_the_command_line_does():
    (pattern,) = re.findall(r"^WRITTEN_BY='(.*?)'", (EXAMPLES / ASK[0]).read_text(), re.M)
    assert pattern.encode() == WRITTEN_BY_US.pattern


def test_usage_and_what_is_wrong_with_a_question(run, question):
    for arguments in (
        [], ["submit"], ["ask", "question.json"], ["answer", "question.json", "env", "x"],
        ["answer", "question.json", "env", "x", "soon"], ["submit", "nowhere.json"],
        ["answer", "question.json", "../tune", "x", "5"],
    ):  # fmt: skip
        found = run("./ask-tuner.sh", *arguments)
        assert found.returncode == 2
        assert found.stderr.startswith("ask-tuner: ")
    found = run("./ask-tuner.sh", "submit", "question.json", TUNER_URL="")
    assert found.returncode == 2
    assert "TUNER_URL must be the URL of the service" in found.stderr
    body = json.loads(question.read_text())
    question.write_text(json.dumps({**body, "cluster": "8 x"}))
    found = run(*ASK, "200")
    assert found.returncode == 1
    assert "refused (status 422): cluster: got '8 x'" in found.stderr
