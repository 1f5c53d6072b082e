"""Published training runs as a game: find a workload's fastest settings in few probes.

A workload is one model on a number of GPUs with one global batch; its candidates are the settings
that were run, and probing one reveals its row. A failed run costs a probe too. The regret after
``k`` probes is 1 - fastest found / fastest of the workload. Only the standard library is needed.
"""

import csv
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

DATA = Path(__file__).resolve().parent.parent / "data"
Numbers = Mapping[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run took."""

    tokens_per_s: float  # of one GPU
    memory_gib: float | None
    """Of the first pipeline stage, as printed; ``None`` where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A question, and its candidates."""

    table: str
    name: str
    facts: Numbers  # the model's shape, GPUs, sequence length, global batch
    candidates: Sequence[Numbers]  # settings by name: `dp`, `tp`, `pp` ...


class Tuner(Protocol):
    """What plays. It is made anew for each workload."""

    def __init__(
        self,
        workload: Workload,
        history: Sequence[tuple[Workload, Sequence[Outcome | None]]],
        seed: int,
    ) -> None:
        """``history`` holds other workloads with all their outcomes; it is empty by default."""

    def ask(self) -> int:
        """The candidate to probe next, by its place; each may be probed once."""

    def tell(self, candidate: int, outcome: Outcome | None) -> None:
        """What probing it revealed: ``None`` where it failed, for memory or not."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """A workload with what its candidates reveal."""

    workload: Workload
    outcomes: Sequence[Outcome | None]
    best_tokens_per_s: float
    """Of all its rows: settings that occur twice reveal their first row only."""

    def part(self, share: float, seed: int) -> "Game":
        """A random part of the candidates, of which at least one runs; the best is of these."""
        draw, count = random.Random(seed), max(2, round(share * len(self.outcomes)))
        while True:
            rows = sorted(draw.sample(range(len(self.outcomes)), count))
            outcomes = [self.outcomes[row] for row in rows]
            if ran := [one.tokens_per_s for one in outcomes if one]:
                candidates = [self.workload.candidates[row] for row in rows]
                workload = replace(self.workload, candidates=candidates)
                return Game(workload=workload, outcomes=outcomes, best_tokens_per_s=max(ran))

    def play(self, tuner: Tuner, probes: int) -> list[float]:
        """Regrets after 1 to ``probes`` probes; the last stays where all candidates are probed.

        Raises:
            ValueError: the tuner asked for a candidate twice, or for one that is not there.
        """
        left, best, regrets = set(range(len(self.outcomes))), 0.0, []
        for _ in range(min(probes, len(left))):
            candidate = tuner.ask()
            if candidate not in left:
                raise ValueError(f"{self.workload.name}: {candidate} cannot be probed")
            left.remove(candidate)
            outcome = self.outcomes[candidate]
            best = max(best, outcome.tokens_per_s if outcome else 0.0)
            regrets.append(1 - best / self.best_tokens_per_s)
            tuner.tell(candidate, outcome)
        return regrets + regrets[-1:] * (probes - len(regrets))


def games(table: str) -> list[Game]:
    """All workloads of ``sweep`` (nanotron on H100s) or ``vTrain`` (Megatron-DeepSpeed on A100s).

    Of a workload the most frequent global batch counts: another one is another question. It has at
    least 5 (vTrain: 6) successful runs.
    """
    by_name: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in _rows(table):
        by_name[_name(table, row)].append(row)
    found = []
    for name, rows in by_name.items():
        batches = Counter(row["global_batch_size"] for row in rows)
        (batch, _), *_ = batches.most_common(1)
        rows = [row for row in rows if row["global_batch_size"] == batch]
        if sum(_outcome(table, row) is not None for row in rows) >= (5 if table == "sweep" else 6):
            found.append(_game(table, name, rows))
    return found


FACTS = {
    "sweep": ("model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gpus",
              "sequence_length", "global_batch_size"),
    "vTrain": ("layers", "hidden", "heads", "gpus", "sequence_length", "global_batch_size"),
}  # fmt: skip
SETTINGS = {
    "sweep": ("dp", "tp", "pp", "zero_stage", "micro_batch_size", "gradient_accumulation_steps"),
    "vTrain": ("dp", "tp", "pp", "micro_batch_size"),
}
FILES = {"sweep": "nanotron_sweep_h100.csv", "vTrain": "vtrain_single_node_a100.csv"}


def _rows(table: str) -> list[dict[str, str]]:
    with (DATA / FILES[table]).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _name(table: str, row: Mapping[str, str]) -> str:
    if table == "sweep":
        return f"{row['model']}, {row['gpus']} GPUs"
    sizes = (f"{short}{row[name]}" for short, name in (
        ("h", "hidden"), ("l", "layers"), ("s", "sequence_length"), ("b", "global_batch_size")
    ))  # fmt: skip
    return f"{' '.join(sizes)}, {row['gpus']} GPUs"


def _outcome(table: str, row: Mapping[str, str]) -> Outcome | None:
    if table == "vTrain":
        tokens = int(row["global_batch_size"]) * int(row["sequence_length"])
        seconds = float(row["iteration_time_ms"]) / 1e3
        return Outcome(tokens_per_s=tokens / seconds / int(row["gpus"]), memory_gib=None)
    if row["outcome"] != "ok":
        return None
    memory = float(row["memory_gib"]) if row["memory_gib"] else None
    return Outcome(tokens_per_s=float(row["tokens_per_s_per_gpu"]), memory_gib=memory)


def _game(table: str, name: str, rows: Sequence[dict[str, str]]) -> Game:
    first: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        first.setdefault(tuple(row[knob] for knob in SETTINGS[table]), row)
    speeds = [one.tokens_per_s for row in rows if (one := _outcome(table, row))]
    return Game(
        workload=Workload(
            table=table,
            name=name,
            facts=_numbers(rows[0], FACTS[table]),
            candidates=[_numbers(row, SETTINGS[table]) for row in first.values()],
        ),
        outcomes=[_outcome(table, row) for row in first.values()],
        best_tokens_per_s=max(speeds),
    )


def _numbers(row: Mapping[str, str], names: Sequence[str]) -> dict[str, int | str]:
    return {name: int(row[name]) if row[name].isdigit() else row[name] for name in names}
