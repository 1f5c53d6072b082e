"""One answer for every line, whatever becomes of it, while somebody hears them."""

import json
import signal
import subprocess
import sys

from workers.probe.dry.request import id_of

ANSWERS = """
import json, os, sys, time
from workers.probe.dry import server
def answer(line):
    what = json.loads(line)["id"]
    if what == "abort": os.abort()
    if what == "sleep": time.sleep(600)
    while what == "spin": pass
    return {"trace": {"line": line}}
server.answer = answer
"""
SERVE = f"""{ANSWERS}
write = lambda line: print(line, flush=True)
server.Server(0, write, is_heard=lambda: True, limit_s=1.0, jobs=3).run()
"""
PROGRAM = f"""{ANSWERS}
from workers.probe.dry.__main__ import main
sys.exit(main())
"""
STARTER = """
import subprocess, sys
server = subprocess.Popen([sys.executable, "-P", "-c", sys.argv[1], "--jobs", "2"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
server.stdin.write(sys.argv[2].encode())
server.stdin.flush()
print(server.stdout.readline().decode(), flush=True)
server.wait()
"""


def lines(*words: str) -> str:
    return "".join(json.dumps({"id": word}) + "\n" for word in words)


def test_a_crash_or_a_dry_run_without_end_leaves_the_others_alone() -> None:
    asked = lines("abort", "first", "sleep", "spin", "second")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", SERVE], input=asked, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = {a["id"]: a for a in map(json.loads, ended.stdout.splitlines())}
    assert set(found) == {"abort", "first", "sleep", "spin", "second"}
    assert found["abort"]["error"]["type"] == "Crashed"
    for endless in ("sleep", "spin"):
        assert found[endless]["error"]["rule"] == "time_limit"
    for good in ("first", "second"):
        assert json.loads(found[good]["trace"]["line"])["id"] == good


def test_nothing_is_left_of_a_program_whose_starter_is_killed() -> None:
    """Its end is seen by the pipe that all of them inherited as stderr."""
    asked = lines("first", "sleep", "sleep", "sleep")
    starter = subprocess.Popen(
        [sys.executable, "-P", "-c", STARTER, PROGRAM, asked],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert starter.stdout is not None
    assert json.loads(starter.stdout.readline())["id"] == "first"
    starter.send_signal(signal.SIGKILL)
    _, said = starter.communicate(timeout=120)  # until the last holder of stderr has ended
    assert "Traceback" not in said


def test_nothing_is_left_when_nobody_reads_the_answers() -> None:
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, "--jobs", "2"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    with program.stdin as requests:
        requests.write(lines("first", "sleep", "sleep", "sleep"))
    with program.stdout as answers:
        assert json.loads(answers.readline())["id"] == "first"
    program.stdin = program.stdout = None
    _, said = program.communicate(timeout=120)  # until the last holder of stderr has ended
    assert program.returncode == 1, said


def test_a_wrong_line_keeps_its_id_if_it_has_one() -> None:
    assert id_of('{"id": "x", "spec": 3}') == "x"
    assert id_of("{") == id_of("[1]") == ""
