"""One answer for every line, whatever becomes of it, while somebody hears them."""

import json
import signal
import subprocess
import sys

from tests.process.probe.specs import answers

ANSWERS = """
import json, os, sys, time
from workers.probe.dry import server
from workers.probe.dry.ledger import packed_operator
def answer(line, progress):
    what = json.loads(line)["id"]
    what, _, path = what.partition(":")
    progress.enter("backward")
    progress.run(packed_operator("aten." + what))
    if what == "abort": os.abort()
    if what == "sleep": time.sleep(600)
    if what == "once" and not os.path.exists(path):
        open(path, "x").close()
        time.sleep(600)
    until = time.process_time() + (0.35 if what in ("slow", "tired") else 0.0)
    while what == "spin" or time.process_time() < until: pass
    if what == "tired": time.sleep(600)
    return {"trace": {"line": line}}
server.answer = answer
"""
SERVE = f"""{ANSWERS}
write = lambda line: print(line, flush=True)
limits = dict(zip(("limit_s", "wall_s", "jobs"), map(float, sys.argv[1:])))
server.Server(0, write, is_heard=lambda: True, **limits).run()
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


# torchao among them, which transformers imports where it is installed.
PRELOAD = """
import sys
from workers.probe.dry.__main__ import preload
preload()
assert "workers.probe.dry.run" in sys.modules
print(sorted({"torchao", "bitsandbytes", "peft", "tuner", "pandas", "scipy"} & set(sys.modules)))
"""


def lines(*words, **more):
    return "".join(json.dumps({"id": word, **more}) + "\n" for word in words)


def served(preloaded, asked, *, limit_s, wall_s, jobs):
    """Answers by id, in the order in which they came."""
    limits = map(str, (limit_s, wall_s, jobs))
    return answers(preloaded, asked.splitlines(), ("-c", SERVE, *limits))


def hold(found, *, bad, good):
    """The rule and limit of each that ended badly, who say where, and all others' answers."""
    assert set(found) == {*bad, *good}
    for name, (rule, limit_s) in bad.items():
        error = found[name]["error"]
        assert (error["rule"], error["limit_s"]) == (rule, limit_s)
        assert (error["operator"], error["phase"]) == (f"aten.{name}", "backward")
    for name in good:
        assert json.loads(found[name]["trace"]["line"])["id"] == name


def test_a_crash_or_a_dry_run_without_end_leaves_the_others_alone(preloaded):
    asked = lines("abort", "first", "spin", "second")
    found = served(preloaded, asked, limit_s=0.5, wall_s=100.0, jobs=3)
    hold(found, bad={"abort": ("", 0.0), "spin": ("time_limit", 0.5)}, good=["first", "second"])
    assert found["abort"]["error"]["type"] == "Crashed"


def test_a_dry_run_that_waits_for_ever_leaves_the_others_alone(preloaded):
    """It has taken no CPU time, which alone is a word on the settings."""
    for wall_s in (2.0, 10.0, 60.0):  # until it leaves the other one the time to be done
        found = served(preloaded, lines("sleep", "first"), limit_s=1.0, wall_s=wall_s, jobs=1)
        if "trace" in found["first"]:
            break
    hold(found, bad={"sleep": ("time_limit", 0.0)}, good=["first"])


def test_a_dry_run_that_waits_once_is_tried_again(preloaded, tmp_path):
    name = f"once:{tmp_path / 'begun'}"
    found = served(preloaded, lines(name), limit_s=1.0, wall_s=5.0, jobs=1)
    assert (tmp_path / "begun").exists()
    hold(found, bad={}, good=[name])


def test_the_second_trial_has_the_cpu_time_that_the_first_left(preloaded):
    found = served(preloaded, lines("tired"), limit_s=0.5, wall_s=5.0, jobs=1)
    hold(found, bad={"tired": ("time_limit", 0.5)}, good=[])


def test_the_dry_runs_of_a_class_share_their_cpu_time(preloaded):
    words = ["slow:1", "slow:2", "slow:3", "slow:4", "slow:5"]
    asked = lines(*words, **{"class": "c"}) + lines("slow:6")
    found = served(preloaded, asked, limit_s=0.5, wall_s=100.0, jobs=2)
    assert "trace" in found["slow:1"]
    assert "trace" in found["slow:6"]
    assert "error" in found["slow:3"]
    for last in ("slow:4", "slow:5"):  # never begun
        error = found[last]["error"]
        assert (error["rule"], error["limit_s"], error["operator"]) == ("time_limit", 0.5, "")


def test_nothing_is_left_of_a_program_whose_starter_is_killed():
    """Its end is seen by the pipe that all of them inherited as stderr."""
    asked = lines("first", "sleep", "sleep", "sleep")
    starter = subprocess.Popen(
        [sys.executable, "-P", "-c", STARTER, PROGRAM, asked],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert json.loads(starter.stdout.readline())["id"] == "first"
    starter.send_signal(signal.SIGKILL)
    _, said = starter.communicate(timeout=120)  # until the last holder of stderr has ended
    assert "Traceback" not in said


def test_nothing_is_imported_that_few_dry_runs_need():
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PRELOAD], capture_output=True, text=True, timeout=600,
        check=True,
    )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
