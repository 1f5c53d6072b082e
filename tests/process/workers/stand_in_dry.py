"""Answers dry-run requests as the dry-run program does, without torch.

python -P stand_in_dry.py DOES [options of the program, which are passed over]

DOES is one of: ok (answer), error (refuse), late (as if a dry run took too long), busy (as if only
the machine were to blame), die, wait (do not answer), hang (nor end when standard input does). With
a number behind it, as in die:1, so often, and ok after that; the file that STAND_IN_COUNT names
counts.
"""

import json
import os
import sys
import time
from pathlib import Path

ERRORS = {
    "error": {"type": "NotImplementedError", "message": "no kernel", "operator": "aten::odd"},
    "busy": {"type": "TimeLimit", "message": "not done in 50 s", "rule": "time_limit"},
    "late": {
        "type": "TimeLimit",
        "message": "more than 45 s",
        "rule": "time_limit",
        "operator": "aten.odd",
        "phase": "backward",
        "limit_s": 45.0,
    },
}


def trace(request: dict) -> dict:
    sizes = [2.0**20 * size for size in request["micro_batch_sizes"]]
    line = {"bytes": sizes, "categories": {"activations": sizes}}
    parts = {"micro_batch": 0, "phase": "backward", "part": "before", "lines": [line]}
    return {
        "format": 2,
        "device": request["spec"]["device"],
        "layers": request["spec"]["model"]["num_hidden_layers"],
        "micro_batch_sizes": request["micro_batch_sizes"],
        "steps": [
            {"accumulation": count, "segments": [parts], "collectives": []}
            for count in request["accumulation_counts"]
        ],
        "block_bytes": 0,
        "notes": [],
        "versions": {"torch": "2.13.0"},
        "seconds": 0.1,
    }


def does_now(does: str) -> str:
    """What to do with this request."""
    what, _, times = does.partition(":")
    counted = Path(os.environ.get("STAND_IN_COUNT", os.devnull))
    asked = counted.stat().st_size if counted.is_file() else 0
    if times and asked >= int(times):
        return "ok"
    if times:
        with counted.open("a") as file:
            file.write(".")
    return what


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        what = does_now(sys.argv[1])
        if what == "die":
            sys.exit("the stand-in died")
        if what == "hang":
            print("not an answer", flush=True)
            time.sleep(3600)
        if what == "wait":  # until standard input is closed, as any program that reads it
            continue
        found = {"error": ERRORS[what]} if what in ERRORS else {"trace": trace(request)}
        print(json.dumps({"id": request["id"], **found}), flush=True)


main()
