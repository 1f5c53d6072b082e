"""Rehearsed scripts against the same ones on a GPU: ``make bench-rehearsed-gpu``.

    python benchmarks/rehearsed_gpu.py --measure FILE   where the GPU is, and the training stack
    make bench-rehearsed-gpu ARGS=FILE                  anywhere: rehearses them, and compares

Each script of ``tests/cuda/scripts`` is the only rank of its world, and runs some steps as it is:
peaks of torch's CUDA allocator, seconds of a step, kernels. Then the same command is rehearsed for
one such GPU, with the same release of torch or the file says which. What was measured is kept in
``benchmarks/results/rehearsed_gpu.json`` beside what was rehearsed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import Goal, described, report, write  # noqa: E402

SCRIPTS = ROOT / "tests" / "cuda" / "scripts"
RUN = ROOT / "benchmarks" / "gpu" / "script_run.py"
COMMANDS = (
    "plain.py --model gpt2 --ddp --micro 8 --sequence 1024",
    "plain.py --model tinyllama-1.1b --ddp --micro 4 --sequence 2048",
    "plain.py --model tinyllama-1.1b --micro 4 --sequence 4096",
    "plain.py --model llama-3.1-8b --micro 2 --sequence 4096 --checkpoint",
    "trainer.py --layers 12 --micro 2",
    "trainer.py --layers 32 --lora --micro 2",
    "plain.py --model tinyllama-1.1b --ddp --micro 8 --sequence 2048 --checkpoint",
    "trainer.py --layers 8 --hidden 2048 --micro 4 --compile",
)
"""The most telling first."""
STEPS = 6
WARM = 3  # the median is of those after it
LIMIT_S = 120.0
MEMORY, TIME = 0.02, 0.2


def measure(path: Path, gpu: str, commands: Sequence[str], steps: int) -> None:
    """Run commands on this machine's GPU; the file is whole after each of them."""
    here = described("")
    kept: dict[str, Any] = {"gpu": gpu, "date": here["date"], "versions": here["versions"],
                            "rows": []}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="rehearsed-gpu-") as name:
        for command in commands:
            out = Path(name) / "out.json"
            script, *arguments = command.split()
            argv = [sys.executable, "-P", str(RUN), str(out), str(steps), str(SCRIPTS / script)]
            row: dict[str, Any] = {"command": command}
            try:
                done = subprocess.run([*argv, *arguments], cwd=name, timeout=LIMIT_S,
                                      capture_output=True, text=True, check=False)  # fmt: skip
                row |= (
                    json.loads(out.read_text()) if out.exists() else {"error": done.stderr[-600:]}
                )
            except subprocess.TimeoutExpired:
                row["error"] = f"not done in {LIMIT_S:.0f} s"
            out.unlink(missing_ok=True)
            kept["rows"].append(row)
            write(path, json.dumps(kept, indent=1) + "\n")
            print(command, row.get("error") or row["steps"][-1], file=sys.stderr, flush=True)


def compared(measured: Mapping[str, Any], gpu: str) -> Iterator[dict[str, Any]]:
    """A row for each command that ran: what was rehearsed of it beside what was measured."""
    import tuner

    for one in measured["rows"]:
        if "error" in one:
            print(f"left out: {one['command']}: {one['error']}", file=sys.stderr)
            continue
        command = f"torchrun --nproc-per-node 1 {one['command']}".split()
        (rank,) = tuner.rehearse(command, cluster=f"1x{gpu}", steps=STEPS, even_here=True).ranks
        last, rehearsed = one["steps"][-1], rank["steps"][-1]
        seconds = median(step["seconds"] for step in one["steps"][WARM:])
        told = rank["time"]["step_time_s"]
        row = {"command": one["command"], "rehearsed_gib": _gib(rehearsed["allocated_bytes"]),
               "measured_gib": _gib(last["allocated_bytes"])}  # fmt: skip
        for name in ("allocated", "reserved"):
            key = f"{name}_bytes"
            row[f"{name}_off"] = round(rehearsed[key] / last[key] - 1, 5)
        row["measured_s"] = round(seconds, 4)
        if told:
            row |= {"predicted_s": round(told["value"], 4),
                    "time_off": round(told["value"] / seconds - 1, 4),
                    "inside": told["low"] <= seconds <= told["high"]}  # fmt: skip
        yield row


def _gib(value: float) -> float:
    return round(value / 2**30, 3)


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    what = "rehearsed against a GPU"
    memory = [abs(row["allocated_off"]) for row in rows]
    time = [abs(row["time_off"]) for row in rows if "time_off" in row]
    return [
        Goal(name=f"{what}: peak allocated, largest error", goal=f"<= {MEMORY}",
             value=max(memory, default=None)),
        Goal(name=f"{what}: step time, median error", goal=f"<= {TIME}",
             value=median(time) if time else None),
        Goal(name=f"{what}: scripts", goal=">= 6", value=len(rows) or None),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="rehearsed_gpu.py", description=__doc__)
    parser.add_argument("file", type=Path, help="of what was measured")
    parser.add_argument("--measure", action="store_true", help="on this machine's GPU")
    parser.add_argument("--commands", type=int, nargs="*", help="their numbers, from 0; or all")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    numbers = range(len(COMMANDS)) if options.commands is None else options.commands
    if options.measure:
        from gpu.place import this_place

        from tuner.core.cluster import Device
        from tuner.errors import UsageError

        try:
            gpu = this_place(Device.CUDA, reduced=False).gpu
        except UsageError as error:
            print(error, file=sys.stderr)
            return 2
        measure(options.file, gpu, [COMMANDS[at] for at in numbers], options.steps)
        return 0
    measured = json.loads(options.file.read_text(encoding="utf-8"))
    os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    os.chdir(SCRIPTS)
    rows = list(compared(measured, measured["gpu"]))
    report("rehearsed_gpu", goals(rows), rows,
           {"device": measured["rows"][0].get("gpu", ""), "measured": measured})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
