"""How long the main job takes on this machine: ``make bench-suggest``.

The command of ``make suggest``, asked anew in an empty database, and asked a second time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, Goal, report

TUNER = str(Path(sys.executable).with_name("tuner"))


def command() -> list[str]:
    """The arguments that the Makefile gives, so that the two cannot differ."""
    shown = subprocess.run(
        ["make", "--dry-run", "suggest"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    text = shown.stdout.replace("\\\n", " ")
    words = next(line for line in text.splitlines() if "tuner suggest" in line).split()
    return [TUNER, *words[words.index("suggest") :], "--json"]


def ask(folder: str) -> tuple[float, dict[str, Any]]:
    environment = {**os.environ, "TUNER_DB": f"sqlite:///{folder}/studies.db"}
    started = time.perf_counter()
    done = subprocess.run(
        command(), env=environment, cwd=folder, check=True, capture_output=True, text=True
    )
    return time.perf_counter() - started, json.loads(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asked = [(name, *ask(folder)) for name in ("first asking", "asked again")]
    rows = [
        {
            "asking": name,
            "wall_s": wall_s,
            "probes": sum(answer["probes"].values()),
            "device_s": answer["cost"]["gpu_s"],
            "best": ",".join(f"{k}={v}" for k, v in answer["best"]["settings"].items()),
            "tokens_per_s_per_rank": answer["best"]["tokens_per_s_per_gpu"]["value"],
        }
        for name, wall_s, answer in asked
    ]
    goals = [
        Goal(name="first asking, seconds", goal="<= 240", value=rows[0]["wall_s"]),
        Goal(name="real probes", goal=">= 8", value=float(rows[0]["probes"])),
    ]
    report("suggest", goals, rows)


if __name__ == "__main__":
    main()
