"""The published benchmark plays the same tables as ours, and anybody's tuner."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "search"


def scores(tmp_path, tuner, *options):
    """Last lines of its two tables."""
    path = tmp_path / "mine.py"
    path.write_text(tuner)
    argv = [sys.executable, "-S", str(FOLDER), f"{path}:Mine", *options]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if line.startswith("Mine")]


def test_a_grid_has_the_regrets_of_ours(tmp_path):
    """By the standard library alone (``-S``), and with a tuner that only its file knows."""
    tuner = """
class Mine:
    def __init__(self, workload, history, seed):
        assert not history
        names = ("zero_stage", "tp", "pp", "micro_batch_size")
        rows = workload.candidates
        self.left = sorted(range(len(rows)), key=lambda n: [rows[n].get(a, 0) for a in names])
    def ask(self):
        return self.left.pop(0)
    def tell(self, candidate, outcome):
        assert outcome is None or outcome.tokens_per_s > 0
"""
    kept = json.loads((FOLDER.parent / "data" / "search_curves.json").read_text())
    for line, table in zip(scores(tmp_path, tuner), ("sweep", "vTrain"), strict=True):
        [grid] = [one for one in kept if one["table"] == table and one["search"] == "grid"]
        after = [[curve[k - 1] for curve in grid["curves"]] for k in (1, 3, 5, 8)]
        means = [f"{100 * sum(one) / len(one):.1f}%" for one in after]
        assert line.split()[1:5] == means


def test_a_candidate_is_probed_once(tmp_path):
    tuner = """
class Mine:
    def __init__(self, workload, history, seed): assert len(history) > 10
    def ask(self): return 0
    def tell(self, candidate, outcome): pass
"""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        scores(tmp_path, tuner, "--history")
    assert "0 cannot be probed" in caught.value.stderr
