"""What is said of nanotron's sweep and of vTrain's runs, in figures.

Constants are fitted on every second workload of the sweep (``Run.fitted_on``); the lines "held"
are of the others, and are what the goals are held to. Only constants are held back: the formulas
were written with all of the sweep in view, so "held" is a little optimistic. Whether settings fit
is asked as whether they ran: the sweep does not tell out of memory from other failures.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from common import Goal
from sweep import Run

from tuner.cost.constants import default_costs
from tuner.cost.pipeline_memory import stage_memory
from tuner.cost.prediction import Prediction, predict
from tuner.framework import FrameworkName
from tuner.settings import Settings

Pair = tuple[Run, Prediction]


def predicted(runs: Iterable[Run]) -> list[Pair]:
    """Each with its prediction."""
    name = FrameworkName.NANOTRON
    return [(run, predict(run.workload, run.cluster, name, run.settings)) for run in runs]


def is_unknown(prediction: Prediction) -> bool:
    """Whether memory or speed is not answered."""
    return prediction.allocated_bytes.value is None or prediction.step_time_s.value is None


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Rank correlation; ties share their mean rank."""
    ranks = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    mean = (len(pairs) + 1) / 2
    top = sum((a - mean) * (b - mean) for a, b in zip(*ranks, strict=True))
    spread = [sum((a - mean) ** 2 for a in rank) for rank in ranks]
    return top / (spread[0] * spread[1]) ** 0.5 if all(spread) else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    number: dict[float, int] = defaultdict(int)
    for value in values:
        number[value] += 1
    return [first[value] + (number[value] + 1) / 2 for value in values]


def printed_gib(run: Run) -> float:
    """Reserved memory of the first stage, which is what nanotron's figures agree with."""
    found = stage_memory(run.workload, run.settings, run.gpus, default_costs())
    return found.reserved_bytes / 2**30


def memory_errors(pairs: Iterable[Pair]) -> list[float]:
    """Relative, of runs whose memory is known."""
    return [abs(printed_gib(r) / r.memory_gib - 1) for r, _ in pairs if r.memory_gib]


def speeds(pairs: Iterable[Pair]) -> list[tuple[float, float]]:
    """Predicted and measured tokens per second and GPU."""
    return [(p.tokens_per_s_per_gpu.value or 0.0, r.tokens_per_s) for r, p in pairs]


def speed_errors(pairs: Iterable[Pair]) -> list[float]:
    """Relative."""
    return [abs(predicted / measured - 1) for predicted, measured in speeds(pairs)]


def by_workload(pairs: Iterable[Pair], least: int = 5) -> dict[str, list[Pair]]:
    """Workloads with at least so many runs."""
    found: dict[str, list[Pair]] = defaultdict(list)
    for run, prediction in pairs:
        found[run.name].append((run, prediction))
    return {name: rows for name, rows in found.items() if len(rows) >= least}


def conflicting(pairs: Sequence[Pair]) -> list[tuple[Pair, Pair]]:
    """Siblings that differ in ZeRO 0 or 1 only, or in nothing, and by more than 2x in speed."""
    groups: dict[Any, list[Pair]] = defaultdict(list)
    for run, prediction in pairs:
        alike = replace(run.settings, sharding=Settings().sharding)
        groups[run.name, run.workload, alike].append((run, prediction))
    return [
        (first, second)
        for rows in groups.values()
        for i, first in enumerate(rows)
        for second in rows[i + 1 :]
        if max(first[0].tokens_per_s, second[0].tokens_per_s)
        > 2 * min(first[0].tokens_per_s, second[0].tokens_per_s)
    ]


def sibling(first: Pair, second: Pair) -> dict[str, Any]:
    """Two conflicting runs, for the result file."""
    one, other = first[0], second[0]
    return {
        "workload": one.name,
        "settings": str(one.settings),
        "other": str(other.settings.sharding),
        "tokens_per_s": one.tokens_per_s,
        "other_tokens_per_s": other.tokens_per_s,
    }


def balanced_accuracy(pairs: Sequence[Pair]) -> float:
    """Mean of the shares of successes and of failures that were told."""
    return balanced([(p.fits, r.ok) for r, p in pairs])


def balanced(told: Sequence[tuple[bool, bool]]) -> float:
    """The same of what was said and what was so."""
    shares = []
    for outcome in (True, False):
        right = [said is outcome for said, so in told if so is outcome]
        shares.append(sum(right) / len(right))
    return sum(shares) / 2


def inside(pairs: Iterable[Pair], which: str) -> float:
    """Share of measurements within the 80% intervals."""
    told = []
    for run, prediction in pairs:
        if which == "memory" and run.memory_gib:
            q, value = prediction.reserved_bytes, run.memory_gib / printed_gib(run)
            assert q.value
            assert q.low is not None
            assert q.high is not None
            told.append(q.low <= value * q.value <= q.high)
        elif which == "time":
            q, value = prediction.tokens_per_s_per_gpu, run.tokens_per_s
            assert q.low is not None
            assert q.high is not None
            told.append(q.low <= value <= q.high)
    return sum(told) / len(told)


def regret(pairs: Iterable[Pair]) -> float:
    """Mean over workloads of what the run predicted fastest, of those that ran, loses."""
    lost = []
    for rows in by_workload(pairs).values():
        chosen = max(rows, key=lambda row: row[1].tokens_per_s_per_gpu.value or 0.0)
        lost.append(1 - chosen[0].tokens_per_s / max(run.tokens_per_s for run, _ in rows))
    return sum(lost) / len(lost)


def line(name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """One row of the table; ``pairs`` ran."""
    per_workload = [spearman(speeds(rows)) for rows in by_workload(pairs).values()]
    memory = memory_errors(pairs)
    return {
        "runs": name,
        "n": len(pairs),
        "memory_median_error": median(memory) if memory else None,
        "speed_median_error": median(speed_errors(pairs)),
        "spearman_pooled": spearman(speeds(pairs)),
        "spearman_median": median(per_workload) if per_workload else None,
        "inside_memory": inside(pairs, "memory") if memory else None,
        "inside_speed": inside(pairs, "time"),
        "regret_of_fastest": regret(pairs),
    }


def pick(pairs: Iterable[Pair], wanted: Callable[[Run], bool]) -> list[Pair]:
    """Those whose run is wanted."""
    return [pair for pair in pairs if wanted(pair[0])]


def lines(ran: Sequence[Pair]) -> list[dict[str, Any]]:
    """The table of runs that succeeded: by size and half, with and without conflicting ones."""
    strange = frozenset(id(run) for pair in conflicting(ran) for run, _ in pair)
    found = []
    for name, size in (("<= 64 GPUs", small), ("> 64 GPUs", lambda run: not small(run))):
        rows = pick(ran, size)
        held = pick(rows, lambda run: not run.fitted_on)
        clean = pick(held, lambda run: id(run) not in strange)
        found += [
            line(f"sweep, {name}, all", rows),
            line(f"sweep, {name}, fitted", pick(rows, lambda run: run.fitted_on)),
            line(f"sweep, {name}, held", held),
            line("  the same without conflicting siblings", clean),
        ]
    return found + [line(f"  {name}", rows) for name, rows in by_workload(ran).items()]


def small(run: Run) -> bool:
    """64 GPUs or fewer, which the goals are about."""
    return run.gpus <= 64


def goals(everything: Sequence[Pair]) -> list[Goal]:
    """What is asked of the sweep, of workloads that nothing was fitted on."""
    held_all = pick(everything, lambda run: not run.fitted_on)
    held = pick(held_all, lambda run: run.ok)
    few = pick(held, small)
    per_workload = [spearman(speeds(rows)) for rows in by_workload(few).values()]
    figures = [
        ("held, <= 64 GPUs: memory, median error", "<= 0.06", median(memory_errors(few))),
        ("held, <= 64 GPUs: tokens/s, median error", "<= 0.15", median(speed_errors(few))),
        ("held, <= 64 GPUs: tokens/s, pooled Spearman", ">= 0.95", spearman(speeds(few))),
        ("held, <= 64 GPUs: tokens/s, median Spearman over workloads", ">= 0.85",
         median(per_workload)),
        ("all runs: fits or not, balanced accuracy", ">= 0.9", balanced_accuracy(everything)),
        ("held: fits or not, balanced accuracy", ">= 0.9", balanced_accuracy(held_all)),
        ("held, <= 64 GPUs: memory inside intervals", ">= 0.8", inside(few, "memory")),
        ("held, <= 64 GPUs: tokens/s inside intervals", ">= 0.8", inside(few, "time")),
        ("held, all sizes: memory inside intervals", ">= 0.8", inside(held, "memory")),
        ("held, all sizes: tokens/s inside intervals", ">= 0.8", inside(held, "time")),
        ("all runs: share answered unknown", "<= 0.02",
         sum(is_unknown(p) for _, p in everything) / len(everything)),
    ]  # fmt: skip
    return [Goal(name=f"sweep, {name}", goal=goal, value=value) for name, goal, value in figures]
