"""``tuner predict --cases`` as a process: lines in, lines out, signals, and a real dry run."""

import json
import signal
import subprocess
import sys
import time
from functools import partial

MAIN = "import sys; from tuner.cli import main; sys.exit(main())"


def test_a_case_at_a_time_is_answered_while_the_next_is_not_yet_there(case, environment):
    process = _start("predict", "--cases", "-", "--dry-runs", "none", env=environment)
    with process:
        for number in (1, 2):
            process.stdin.write(json.dumps({**case, "id": number}).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.stdin.close()
        assert process.stdout.readline() == b""
    assert process.returncode == 0


def test_a_closed_stdout_ends_it_quietly(case, tmp_path, environment):
    path = tmp_path / "many.jsonl"
    path.write_text((json.dumps(case) + "\n") * 3000)
    process = _start("predict", "--cases", str(path), "--dry-runs", "none", env=environment)
    with process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_leaves_what_was_answered(case, environment):
    process = _start("predict", "--cases", "-", "--dry-runs", "none", env=environment)
    with process:
        process.stdin.write(json.dumps(case).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["fits"]
        time.sleep(0.2)  # it waits for more
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130


def _start(*arguments, env):
    pipe = subprocess.PIPE
    argv = [sys.executable, "-P", "-c", MAIN, *arguments]
    return subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=env,
        # A shell starts what it runs in the background with the signal ignored, for good.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
