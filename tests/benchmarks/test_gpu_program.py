"""The GPU benchmark as it is run where only the training stack is, in small, on CPU ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MISSING = ("sqlalchemy", "alembic", "optuna", "typer", "rich", "fastapi", "uvicorn",
           "platformdirs", "torchao", "pytest")  # fmt: skip
"""Of our dependencies, what a machine with the training stack and pydantic need not have."""
HIDE = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {MISSING!r} else find(name, path, target)
PathFinder.find_spec = find_spec
"""


def run(tmp_path, *arguments):
    """The program as on that machine: not installed, started from elsewhere, without git."""
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "BENCH_COMMIT": "abc1234"}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "bench_gpu.py"), *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


def reduced(tmp_path, part):
    out = str(tmp_path / "cpu.json")
    return run(tmp_path, part, "--device", "cpu", "--reduced", "--out", out)


def read(tmp_path):
    return json.loads((tmp_path / "cpu.json").read_text())


@pytest.mark.slow
def test_all_parts_run_in_small(tmp_path):
    done = reduced(tmp_path, "all")
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path)["rows"]
    by_part = {part: [row for row in rows if row["part"] == part]
               for part in ("memory", "seed", "recompute", "time", "grid", "warm")}  # fmt: skip
    assert all(by_part.values())
    for row in by_part["memory"] + by_part["recompute"]:
        assert row["outcome"] == "ok"
        assert abs(row["predicted"]["dry_run"]["error"]) < 0.01
    fits, does_not = by_part["seed"]
    assert (fits["outcome"], does_not["outcome"]) == ("ok", "oom")
    assert does_not["measurement"]["oom"]["limit_bytes"] == does_not["limit_bytes"]
    kept, again = (row["measurement"]["collectives"] for row in by_part["recompute"])
    assert kept != again  # the knob acted
    assert [row["way"] for row in by_part["warm"]] == ["cold", "cold", "warm", "warm"]
    sizes = [row["measurement"]["memory"]["allocated_bytes"] for row in by_part["warm"]]
    assert sizes[2:] == pytest.approx(sizes[:2], rel=0.01)
