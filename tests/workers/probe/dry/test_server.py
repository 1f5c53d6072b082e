"""One answer for every line, whatever becomes of it."""

import json
import subprocess
import sys

from workers.probe.dry.request import id_of

SERVE = """
import os, sys, time
from workers.probe.dry import server
def answer(line):
    if "abort" in line: os.abort()
    if "sleep" in line: time.sleep(60)
    return {"trace": {"line": line}}
server.answer = answer
server.Server(0, lambda line: print(line, flush=True), limit_s=2.0, jobs=2).run()
"""


def test_a_crash_or_a_dry_run_without_end_leaves_the_others_alone() -> None:
    lines = [json.dumps({"id": word}) for word in ("abort", "first", "sleep", "second")]
    ended = subprocess.run(
        [sys.executable, "-P", "-c", SERVE], input="\n".join(lines), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = {a["id"]: a for a in map(json.loads, ended.stdout.splitlines())}
    assert set(found) == {"abort", "first", "sleep", "second"}
    assert found["abort"]["error"]["type"] == "Crashed"
    assert found["sleep"]["error"]["rule"] == "time_limit"
    assert found["first"]["trace"]["line"] == lines[1]
    assert found["second"]["trace"]["line"] == lines[3]


def test_a_wrong_line_keeps_its_id_if_it_has_one() -> None:
    assert id_of('{"id": "x", "spec": 3}') == "x"
    assert id_of("{") == id_of("[1]") == ""
