"""How quickly the command line answers, and how briefly: ``make bench-cli``.

One part of it alone is ``python benchmarks/cli.py answers``, or ``times``.

Times are of whole processes, alternating with an interpreter that does nothing, medians of 11 runs.
Lines and words are of the answer at a terminal of 80 columns: what stands below the table.
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
PREDICTED = ["--global-batch-size", "256", "--sequence-length", "4k", "--fidelity", "predicted"]
MEASURED = ["--global-batch-size", "8", "--sequence-length", "128", "--precision", "fp32"]
# Questions whose answers are counted; the last one fits nowhere.
QUESTIONS = {
    "predicted, llama-3.1-8b on 8xh100-80gb": [
        *("--model", "llama-3.1-8b", "--cluster", "8xh100-80gb"), *PREDICTED, "--tokens", "1T",
    ],
    "predicted, mixtral-8x7b on 4x8xa100-80gb": [
        *("--model", "mixtral-8x7b", "--cluster", "4x8xa100-80gb"), *PREDICTED,
    ],
    "measured, stories15m on cpu:2": [
        *("--model", "stories15m", "--cluster", "cpu:2", "--framework", "accelerate"), *MEASURED,
        *("--max-probes", "4"),
    ],
    "nothing fits, llama-3.1-70b on 8xh100-80gb": [
        *("--model", "llama-3.1-70b", "--cluster", "8xh100-80gb"), *PREDICTED,
    ],
}  # fmt: skip
MOST_LINES, MOST_WORDS, COLUMNS = 25, 180, 80
NOTHING_FITS = 3
GOALS = {"tuner --help": "<= 0.3", "tuner studies list": "<= 0.6"}


def seconds(command: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def answer_of(question: list[str], environment: dict[str, str]) -> list[str]:
    """The lines of an answer: all that stands below the table."""
    command = [TUNER, "suggest", *question]
    done = subprocess.run(
        command, env={**environment, "COLUMNS": str(COLUMNS)}, check=False, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode in (0, NOTHING_FITS), done.stderr
    lines = done.stdout.splitlines()
    begins = ("Answer ", "Nothing ")
    first = next(number for number, line in enumerate(lines) if line.startswith(begins))
    return lines[first:]


def answers() -> None:
    """Ask all questions at a terminal of 80 columns, and report how long the answers are."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TUNER_DB": f"sqlite:///{folder}/studies.db"}
        for name, question in QUESTIONS.items():
            lines = answer_of(question, environment)
            widest = max(map(len, (line.rstrip() for line in lines)))
            words = sum(len(line.split()) for line in lines)
            rows.append({"answer": name, "lines": len(lines), "words": words, "columns": widest})
    most = {"lines": MOST_LINES, "words": MOST_WORDS, "columns": COLUMNS}
    goals = [
        Goal(name=f"answer, most {unit}", goal=f"<= {limit}", value=max(r[unit] for r in rows))
        for unit, limit in most.items()
    ]
    report("answers", goals, rows)


def times() -> None:
    """Run all commands in turn, and report medians."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TUNER_DB": f"sqlite:///{folder}/studies.db"}
        seconds([TUNER, "db", "upgrade"], environment)  # without a database nothing is listed
        for command in COMMANDS.values():
            seconds(command, environment)  # fills the file cache
        for _ in range(RUNS):
            for name, command in COMMANDS.items():
                found[name].append(seconds(command, environment))
    rows = [
        {"command": name, "median_s": statistics.median(t), "min_s": min(t), "max_s": max(t)}
        for name, t in found.items()
    ]
    goals = [
        Goal(name=f"{name}, median seconds", goal=goal, value=statistics.median(found[name]))
        for name, goal in GOALS.items()
    ]
    report("cli", goals, rows)


if __name__ == "__main__":
    parts = {"answers": answers, "times": times}
    for part in sys.argv[1:] or parts:
        parts[part]()
