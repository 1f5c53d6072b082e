"""A stand-in for the dry-run program: does with each request what its ``do`` says.

python stand_in.py [--silent-start] --limit-s S --jobs N
"""

import json
import os
import signal
import sys
import time


def main():
    held = []
    for line in sys.stdin:
        request = json.loads(line)
        do = request.get("do", "answer")
        answer = json.dumps({"id": request["id"], "trace": {"pid": os.getpid()}})
        if do == "noise":
            print('a library\'s words\n[1, 2]\n\n{"id": "nobody"}\n{broken', flush=True)
        elif do == "die":
            print("Traceback\nModuleNotFoundError: No module named 'torch'", file=sys.stderr)
            raise SystemExit(1)
        elif do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif do == "sleep":
            time.sleep(600)
        elif do == "hold":
            held.append(answer)
            continue
        elif do == "large":
            answer = json.dumps({"id": request["id"], "trace": "x" * 3_000_000})
        print(answer, *reversed(held), sep="\n", flush=True)
        held.clear()


if __name__ == "__main__":
    main()
