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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.records import rank_record
from workers.probe.orders import SPEC, header, orders, watch_supervisor

RANK = int(os.environ["RANK"])
OUT = Path(sys.argv[1])


def record(out, outcome):
    partial = record_path(out).with_suffix(".partial")
    partial.write_text(json.dumps(rank_record(RANK, outcome)))
    partial.replace(record_path(out))


def record_path(out):
    return out / f"rank-{RANK:05d}.json"


def act(word, out):
    name, _, argument = word.partition(":")
    if name == "say":
        print(argument, flush=True)
    elif name == "environment":
        names = argument.split(",") if argument else list(os.environ)
        print(json.dumps({n: os.environ[n] for n in names if n in os.environ}), flush=True)
    elif name == "sleep":
        time.sleep(float(argument))
    elif name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name == "child":
        nap = f"import time; time.sleep(600)  # {argument}"
        subprocess.Popen([sys.executable, "-c", nap], env={**os.environ})
    elif name in ("ready", "begin", "end"):
        leave(name, out)
    elif name == "exit":
        os._exit(int(argument))
    elif name == "signal":
        os.kill(os.getpid(), getattr(signal, argument))
        time.sleep(600)
    elif name == "hang":
        time.sleep(3600)
    else:
        record(out, name)
        if name not in ("ok", "stopped_early"):
            follow_no_more(out, 10)


def leave(name, out):
    if name == "ready":
        (out / f"ready-{RANK}").touch()
    else:
        note = {"what": name, "at": time.monotonic(), "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}
        with Path(os.environ["STAND_IN_NOTES"]).open("a") as file:
            file.write(json.dumps({**note, "pid": os.getpid()}) + "\n")


def follow_no_more(place, code):
    """Leave the last record where the launcher looks for it, and end."""
    if place != OUT:
        (OUT / record_path(place).name).write_bytes(record_path(place).read_bytes())
    os._exit(code)


def main():
    _, watch_fd, silence_s, script = sys.argv[1:]
    if int(watch_fd) >= 0:
        watch_supervisor(int(watch_fd), float(silence_s))
    words = json.loads(script)
    place = OUT
    number = 0
    for place in places():
        is_check = (place / SPEC).exists() and "check" in json.loads((place / SPEC).read_text())
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


def places():
    """Where records go: beside each order, or in OUT."""
    if not list(OUT.glob(f"*/{SPEC}")):
        yield OUT
        return
    for order in orders(OUT):
        print(header(order.name), end="", flush=True)
        yield order


main()
