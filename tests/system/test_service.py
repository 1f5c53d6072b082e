"""The compose file's processes, started by hand without containers, from question to export.

The commands are those of docker-compose.yml itself; PostgreSQL comes from the test package.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from sqlalchemy import create_engine, make_url, text

from tests.models import TINY
from tests.postgresql import postgresql_server

ROOT = Path(__file__).resolve().parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
TUNER = [sys.executable, "-P", "-c", "import sys; from tuner.cli import main; sys.exit(main())"]
QUESTION = {
    "workload": {"model": TINY, "sequence_length": 32, "global_batch_size": 4},
    "cluster": "cpu:2",
    "framework": "accelerate",
    "fidelity": "measured",
    "knobs": {"activation_checkpointing": ["none"]},
    "budget": {"max_probes": 2},
}


@pytest.fixture(scope="module")
def database():
    """The address of an empty database of PostgreSQL."""
    with postgresql_server() as server:
        admin = create_engine(server.get_uri(), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text("CREATE DATABASE tuner"))
        admin.dispose()
        yield make_url(server.get_uri()).set(database="tuner").render_as_string(False)


@pytest.fixture
def environment(database, tmp_path):
    """As the compose file sets it, for a machine of one's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    return {**kept, **own, "TUNER_DB": database, "TUNER_LOG": "json", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def start(environment, tmp_path):
    """Starts a command; its log goes to a file of that name. None is left afterwards."""
    with ExitStack() as stack:

        def start(name, *words):
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [*TUNER, *words], env=environment, cwd=tmp_path, stdout=subprocess.PIPE,
                stderr=log, text=True,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def ask(url, key, body=None):
    """Status, headers and body of an answer."""
    headers = {"Authorization": f"Bearer {key}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
        body = json.dumps(body).encode()
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            status, found, content = answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, found, content = error.code, error.headers, error.read().decode()
    return status, found, json.loads(content) if "json" in found["Content-Type"] else content


def done(process):
    """What a command that ends by itself said on stdout."""
    said = process.stdout.read()
    assert process.wait(timeout=240) == 0
    return said


@pytest.mark.long
@pytest.mark.xdist_group("postgresql")
def test_a_question_is_answered_and_exported(start, tmp_path):
    done(start("migrate", *SERVICES["migrate"]["command"]))
    key = done(start("keys", "keys", "create", "scheduler", "--scope", "submit")).strip()
    asked = SERVICES["api"]["command"]
    api = start("api", *["0" if word == "8765" else word for word in asked], "--json")
    url = json.loads(api.stdout.readline())["url"].replace("0.0.0.0", "127.0.0.1")
    assert ask(f"{url}/readyz", "")[0] == 200
    assert ask(f"{url}/tune", "")[0] == 401

    worker = start("worker", *SERVICES["worker"]["command"])
    status, headers, _ = ask(f"{url}/tune", key, QUESTION)
    assert status == 202
    study = f"{url}{headers['Location']}"
    until = time.monotonic() + 1200
    found = ask(f"{study}?wait=30", key)[2]
    while found["state"] in ("queued", "running"):
        assert time.monotonic() < until, (tmp_path / "worker.log").read_text()
        found = ask(f"{study}?wait=30", key)[2]

    assert found["state"] == "done", found["reason"]
    assert found["suggestion"]["best"]["provenance"] == "measured"
    probes = ask(f"{study}/probes", key)[2]["probes"]
    outcomes = {probe["measurement"]["outcome"] for probe in probes}
    assert "ok" in outcomes
    assert outcomes <= {"ok", "stopped_early"}
    status, headers, exported = ask(f"{study}/export/accelerate", key)
    assert status == 200
    assert yaml.safe_load(exported)["num_processes"] == 2
    done(start("workers", *SERVICES["worker"]["healthcheck"]["test"][2:]))

    for process in (worker, api):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=240) == 0
    lines = [json.loads(line) for line in (tmp_path / "worker.log").read_text().splitlines()]
    assert any(line.get("study") == found["study_id"] and "probe" in line for line in lines)
