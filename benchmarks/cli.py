"""How quickly the command line answers: ``make bench-cli``.

Whole processes, alternating with an interpreter that does nothing, medians of 11 runs.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Goal, report

RUNS = 11
TUNER = str(Path(sys.executable).with_name("tuner"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "tuner --help": [TUNER, "--help"],
    "tuner suggest --help": [TUNER, "suggest", "--help"],
    "tuner studies list": [TUNER, "studies", "list"],
}
GOALS = {"tuner --help": "<= 0.3", "tuner studies list": "<= 0.6"}


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Run all commands in turn, and report medians."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TUNER_DB": f"sqlite:///{folder}/studies.db"}
        seconds([TUNER, "db", "upgrade"], environment)  # without a database nothing is listed
        for command in COMMANDS.values():
            seconds(command, environment)  # fills the file cache
        for _ in range(RUNS):
            for name, command in COMMANDS.items():
                times[name].append(seconds(command, environment))
    rows = [
        {"command": name, "median_s": statistics.median(t), "min_s": min(t), "max_s": max(t)}
        for name, t in times.items()
    ]
    goals = [
        Goal(name=f"{name}, median seconds", goal=goal, value=statistics.median(times[name]))
        for name, goal in GOALS.items()
    ]
    report("cli", goals, rows)


if __name__ == "__main__":
    main()
