"""A small program in a rank's place: it does what its argument says, in milliseconds.

    python -P stand_in_rank.py OUT WATCH_FD SILENCE_S '{"0": ["ok"], "1": ["hang"]}'

Each rank carries out its list of words; a rank that is not named does what "*" does.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from workers.probe.watch import watch_supervisor

RANK = int(os.environ["RANK"])


def record(out: Path, outcome: str, **more: object) -> None:
    ok = outcome == "ok"
    memory = {
        "peak_allocated_bytes": 1000 + RANK,
        "low_peak_bytes": 900,
        "peak_reserved_bytes": 1000 + RANK,
        "device_bytes": 5000,
        "overhead_bytes": 0,
        "by_phase": {"forward": 1000},
        "by_category": {"parameters": 10},
        "allocation_retries": 0,
    }
    shortage = {
        "phase": "forward",
        "requested_bytes": 10,
        "allocated_bytes": 95,
        "reserved_bytes": 95,
        "limit_bytes": 100,
    }
    values = {
        "format": 1,
        "rank": RANK,
        "outcome": outcome,
        "phase": "time" if ok else "forward",
        "error": None if ok else {"type": "Error", "message": outcome, "traceback": ""},
        "ended_at": time.time(),
        "oom": shortage if outcome == "oom" else None,
        "memory": memory if ok else None,
        "step_times_s": {"1": [0.2, 0.1 + RANK / 10]} if ok else {},
        "collectives": [],
        "tracked_accumulation": 0,
        "reducing_micro_batches": 1,
        "losses": [2.0],
        "gradient_norms": [1.0],
        "optimizer_steps": 3,
        "expected_optimizer_steps": 3,
        "versions": {"python": "3"},
        "hardware": {"device": "cpu"},
        "emulation": None,
        **more,
    }
    partial = out / f"rank-{RANK:05d}.partial"
    partial.write_text(json.dumps(values))
    partial.replace(out / f"rank-{RANK:05d}.json")


def act(word: str, out: Path) -> None:
    name, _, argument = word.partition(":")
    if name == "say":
        print(argument, flush=True)
    elif name == "environment":
        print(json.dumps(dict(os.environ)), flush=True)
    elif name == "sleep":
        time.sleep(float(argument))
    elif name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name == "child":
        nap = "import time; time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", nap], env={**os.environ})
        (out / "child.pid").write_text(str(child.pid))
    elif name == "ready":
        (out / f"ready-{RANK}").touch()
    elif name == "exit":
        os._exit(int(argument))
    elif name == "signal":
        os.kill(os.getpid(), getattr(signal, argument))
        time.sleep(600)
    elif name == "hang":
        while True:
            time.sleep(600)
    else:
        record(out, name)
        os._exit(0 if name == "ok" else 10)


def main() -> None:
    out, watch_fd, silence_s, script = sys.argv[1:]
    if int(watch_fd) >= 0:
        watch_supervisor(int(watch_fd), float(silence_s))
    words = json.loads(script)
    for word in words.get(str(RANK), words.get("*", [])):
        act(word, Path(out))


main()
