"""Score a tuner on published training runs: ``python benchmarks/search my_tuner.py:MyTuner``.

It prints the mean and median regret after 1, 3, 5 and 8 probes, below those of other searches.
Only the standard library is needed; ``game.py`` says what a tuner is, ``example.py`` is one.
"""

import argparse
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any
from zlib import crc32

from game import DATA, Game, games

PROBES = (1, 3, 5, 8)
TABLES = ("sweep", "vTrain")
PARTS, SHARE = 20, 0.6


def scored(
    kind: Any, table: str, seeds: int, *, history: bool, parts: bool
) -> list[Sequence[float]]:
    """A curve of regrets for each workload, mean over its seeds and parts."""
    found, whole = [], games(table)
    for one in whole:
        others = [(o.workload, o.outcomes) for o in whole if o is not one] if history else []
        played = [one.part(SHARE, seed) for seed in range(PARTS)] if parts else [one]
        curves = [_curve(kind, game, others, seed) for game in played for seed in range(seeds)]
        found.append([mean(values) for values in zip(*curves, strict=True)])
    return found


def _curve(kind: Any, game: Game, others: Sequence[Any], seed: int) -> list[float]:
    # Workloads draw differently: a lucky seed is not lucky everywhere.
    tuner = kind(game.workload, others, seed + crc32(game.workload.name.encode()))
    return game.play(tuner, max(PROBES))


def line(name: str, curves: Sequence[Sequence[float]]) -> str:
    figures = [of([curve[k - 1] for curve in curves]) for of in (mean, median) for k in PROBES]
    return _row(name, figures)


def _row(name: str, figures: Sequence[float]) -> str:
    return f"{name:42}" + "".join(f"{100 * figure:7.1f}%" for figure in figures)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks/search", description=__doc__)
    parser.add_argument("tuner", help="file.py:Class")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each workload")
    parser.add_argument("--history", action="store_true", help="tell it of the other workloads")
    parser.add_argument("--parts", action="store_true",
                        help=f"{PARTS} random parts, {SHARE:.0%} of each workload")  # fmt: skip
    options = parser.parse_args()
    path, _, name = options.tuner.partition(":")
    if not Path(path).is_file():
        parser.error(f"tuner: {path!r} is no file; FILE.py:CLASS is meant")
    sys.path.insert(0, str(Path(path).resolve().parent))
    if (kind := runpy.run_path(path).get(name)) is None:
        parser.error(f"tuner: {path} defines no {name!r}")
    kept = json.loads((DATA / "search_curves.json").read_text(encoding="utf-8"))
    result = DATA.parent / "results" / "search.json"
    parts = json.loads(result.read_text(encoding="utf-8"))["stability"]
    for table in TABLES:
        curves = scored(kind, table, options.seeds, history=options.history, parts=options.parts)
        print(
            f"\n{table:42}"
            + "".join(f"{f'{of} {k}':>8}" for of in ("mean", "med.") for k in PROBES)
        )
        if options.parts:  # on other draws of such parts
            for one in (one for one in parts if one["table"] == table):
                print(_row(one["search"], [one[f"mean@{k}"] for k in PROBES]))
        else:
            for one in (one for one in kept if one["table"] == table):
                print(line(one["search"], one["curves"]))
        print(line(name, curves))


if __name__ == "__main__":
    main()
