"""A small program in a rank's place: it does what its argument says, in milliseconds.

    python -P stand_in_rank.py OUT WATCH_FD SILENCE_S '{"0": ["ok"], "1": ["hang"]}'

Each rank carries out its list of words; a rank that is not named does what "*" does. Where OUT
holds orders it follows them as they come: "0@2" and "*@2" are for the second probe alone. Ranks
that see the GPU of that name do what "GPU-a" says. A look at devices finds them well, unless
"0@check" or "*@check" says otherwise.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from workers.probe.orders import SPEC, checked_device, header, orders, watch_supervisor

RANK = int(os.environ["RANK"])
OUT = Path(sys.argv[1])


def record(out: Path, outcome: str, **more: object) -> None:
    ok = outcome in ("ok", "stopped_early")
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
    partial = record_path(out).with_suffix(".partial")
    partial.write_text(json.dumps(values))
    partial.replace(record_path(out))


def record_path(out: Path) -> Path:
    return out / f"rank-{RANK:05d}.json"


def act(word: str, out: Path) -> None:
    name, _, argument = word.partition(":")
    if name == "say":
        print(argument, flush=True)
    elif name == "environment":
        names = argument.split(",") if argument else list(os.environ)
        print(json.dumps({n: os.environ[n] for n in names if n in os.environ}), flush=True)
    elif name in ("sleep", "until", "meet"):
        wait(name, argument, out)
    elif name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name == "child":
        nap = f"import time; time.sleep(600)  # {argument}"
        child = subprocess.Popen([sys.executable, "-c", nap], env={**os.environ})
        (out / "child.pid").write_text(str(child.pid))
    elif name in ("ready", "cut", "spent", "begin", "end"):
        leave(name, out)
    elif name == "shortage":
        record(out, "oom", oom=json.loads(argument))
        follow_no_more(out, 10)
    elif name == "exit":
        os._exit(int(argument))
    elif name == "signal":
        os.kill(os.getpid(), getattr(signal, argument))
        time.sleep(600)
    elif name in ("hang", "tick"):
        hang(out, ticks=name == "tick")
    else:
        record(out, name)
        if name not in ("ok", "stopped_early"):
            follow_no_more(out, 10)


def wait(name: str, argument: str, out: Path) -> None:
    """For some seconds, for a file beside the records, or until so many ranks have begun."""
    if name == "sleep":
        time.sleep(float(argument))
    while name == "until" and not (out / argument).exists():
        time.sleep(0.01)
    while name == "meet" and len(begun()) < int(argument):
        time.sleep(0.01)


def begun() -> set[int]:
    """Ranks that have noted something."""
    lines = Path(os.environ["STAND_IN_NOTES"]).read_text().splitlines(keepends=True)
    return {json.loads(line)["pid"] for line in lines if line.endswith("\n")}


def hang(out: Path, *, ticks: bool) -> None:
    while True:
        if ticks:
            leave("begin", out)
            leave("end", out)
        time.sleep(0.1 if ticks else 600)


def leave(name: str, out: Path) -> None:
    if name == "ready":
        (out / f"ready-{RANK}").touch()
    elif name in ("begin", "end"):
        note = {"what": name, "at": time.monotonic(), "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}
        with Path(os.environ["STAND_IN_NOTES"]).open("a") as file:
            file.write(json.dumps({**note, "pid": os.getpid()}) + "\n")
    elif name == "cut":
        record_path(out).write_text('{"format": 1, "rank"')
    else:
        (OUT / "spent").touch()


def follow_no_more(place: Path, code: int) -> None:
    """Leave the last record where the launcher looks for it, and end."""
    if place != OUT:
        (OUT / record_path(place).name).write_bytes(record_path(place).read_bytes())
    os._exit(code)


def main() -> None:
    _, watch_fd, silence_s, script = sys.argv[1:]
    if int(watch_fd) >= 0:
        watch_supervisor(int(watch_fd), float(silence_s))
    words = json.loads(script)
    place = OUT
    number = 0
    for place in places():
        is_check = (place / SPEC).exists() and checked_device(place / SPEC) != ""
        number += not is_check
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = (f"{RANK}@{number}", f"*@{number}", gpu, str(RANK), "*")
        if is_check:
            names = (f"{RANK}@check", "*@check")
        usual = ["ok"] if is_check else []
        for word in next((words[name] for name in names if name in words), usual):
            act(word, place)
    if record_path(place).exists():
        follow_no_more(place, 0)


def places() -> Iterator[Path]:
    """Where records go: beside each order, or in OUT."""
    if not list(OUT.glob(f"*/{SPEC}")):
        yield OUT
        return
    for order in orders(OUT):
        print(header(order.name), end="", flush=True)
        yield order


main()
