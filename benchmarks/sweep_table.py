"""What is said of nanotron's sweep and of vTrain's runs, in figures.

Constants are fitted on every second workload of the sweep (``Run.fitted_on``); the lines "held"
are of the others, and are what the goals are held to. Only constants are held back: the formulas
were written with all of the sweep in view, so "held" is a little optimistic. Whether settings fit
is asked as whether they ran: the sweep does not tell out of memory from other failures.

Memory is compared twice. What nanotron prints is rank 0's, which is in the first stage of a
pipeline, so the like of it is the first stage's. What users are told is the stage that needs most.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from common import Goal
from judging import balanced, holds, interval_width, share, spearman
from sweep import Run

from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.framework import Framework, FrameworkName
from tuner.cost.constants import default_costs
from tuner.cost.pipeline import stage_memory
from tuner.cost.prediction import predict

Pair = tuple[Run, Evaluation]
Figure = tuple[str, str, float]
"""A goal's name, what is asked, and what was seen."""
GIB = 2**30
WORKLOAD = "workload "
"""What the names of lines of single workloads begin with."""
FIRST, WORST = STAGES = ("first", "worst")
"""The pipeline stage whose memory is compared: rank 0's, or the one that needs most."""


def predicted(runs: Iterable[Run]) -> list[Pair]:
    name = Framework(name=FrameworkName.NANOTRON)
    return [(run, predict(run.workload, run.cluster, name, run.settings)) for run in runs]


def is_unknown(prediction: Evaluation) -> bool:
    """Whether memory or speed is not answered."""
    return prediction.allocated_bytes.value is None or prediction.step_time_s.value is None


def printed_gib(run: Run) -> float:
    """Reserved memory of the first stage, which is what nanotron's figures agree with."""
    found = stage_memory(run.workload, run.settings, run.cluster, default_costs())
    return found.reserved_bytes / GIB


def told_gib(prediction: Evaluation) -> float:
    """Reserved memory as users are told it: of the stage that needs most."""
    assert prediction.reserved_bytes.value is not None
    return prediction.reserved_bytes.value / GIB


def memory_errors(pairs: Iterable[Pair], stage: str) -> list[float]:
    """Relative, of runs whose memory is known, at one of :data:`STAGES`."""
    return [
        abs((printed_gib(run) if stage == FIRST else told_gib(p)) / run.memory_gib - 1)
        for run, p in pairs
        if run.memory_gib
    ]


def speeds(pairs: Iterable[Pair]) -> list[tuple[float, float]]:
    """Predicted and measured tokens per second and GPU."""
    return [(p.tokens_per_s_per_gpu.value or 0.0, r.tokens_per_s) for r, p in pairs]


def speed_errors(pairs: Iterable[Pair]) -> list[float]:
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


def inside_memory(pairs: Iterable[Pair], stage: str) -> float:
    """Share of printed memory within the 80% intervals, at one of :data:`STAGES`.

    The first stage's interval is as wide, in relation to its value, as the one that users are told.
    """
    held = []
    for run, prediction in pairs:
        q, measured = prediction.reserved_bytes, run.memory_gib
        if measured is not None:
            assert q.value is not None
            scale = q.value / printed_gib(run) if stage == FIRST else GIB
            held.append(holds(q, measured * scale))
    return share(held)


def inside_speed(pairs: Iterable[Pair]) -> float:
    """Share of measured tokens per second within the 80% intervals."""
    return share([holds(p.tokens_per_s_per_gpu, run.tokens_per_s) for run, p in pairs])


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
    known = any(run.memory_gib for run, _ in pairs)
    return {
        "runs": name,
        "n": len(pairs),
        "memory_first_stage_error": median(memory_errors(pairs, FIRST)) if known else None,
        "memory_worst_stage_error": median(memory_errors(pairs, WORST)) if known else None,
        "speed_error": median(speed_errors(pairs)),
        "spearman_pooled": spearman(speeds(pairs)),
        "spearman_median": median(per_workload) if per_workload else None,
        "inside_first_stage": inside_memory(pairs, FIRST) if known else None,
        "inside_worst_stage": inside_memory(pairs, WORST) if known else None,
        "inside_speed": inside_speed(pairs),
        "speed_interval_width": interval_width(p.tokens_per_s_per_gpu for _, p in pairs),
        "regret_of_fastest": regret(pairs),
    }


def pick(pairs: Iterable[Pair], wanted: Callable[[Run], bool]) -> list[Pair]:
    """Those whose run is wanted."""
    return [pair for pair in pairs if wanted(pair[0])]


def lines(ran: Sequence[Pair]) -> list[dict[str, Any]]:
    """The table of runs that succeeded: by size and half, with and without conflicting ones."""
    found = []
    for name, size in (("<= 64 GPUs", small), ("> 64 GPUs", lambda run: not small(run))):
        rows = pick(ran, size)
        held = pick(rows, lambda run: not run.fitted_on)
        found += [
            line(f"sweep, {name}, all", rows),
            line(f"sweep, {name}, fitted", pick(rows, lambda run: run.fitted_on)),
            line(f"sweep, {name}, held", held),
            line(f"sweep, {name}, held, without conflicting siblings", without_conflicting(held)),
        ]
    for name, rows in by_workload(ran).items():
        half = "fitted" if rows[0][0].fitted_on else "held"
        found.append(line(f"{WORKLOAD}{name}, {half}", rows))
    return found


def without_conflicting(ran: Sequence[Pair]) -> list[Pair]:
    """The others; siblings are of one workload, so of one half and size."""
    strange = frozenset(id(run) for pair in conflicting(ran) for run, _ in pair)
    return pick(ran, lambda run: id(run) not in strange)


def small(run: Run) -> bool:
    """64 GPUs or fewer, which the goals are about."""
    return run.gpus <= 64


def goals(everything: Sequence[Pair]) -> list[Goal]:
    held_all = pick(everything, lambda run: not run.fitted_on)
    held = pick(held_all, lambda run: run.ok)
    unknown = [is_unknown(prediction) for _, prediction in everything]
    figures = [
        *_accuracy(pick(held, small)),
        ("all runs: fits or not, balanced accuracy", ">= 0.9", balanced_accuracy(everything)),
        ("held: fits or not, balanced accuracy", ">= 0.9", balanced_accuracy(held_all)),
        *_intervals("held, <= 64 GPUs", pick(held, small)),
        *_intervals("held, all sizes", held),
        ("all runs: share answered unknown", "<= 0.02", share(unknown)),
    ]
    return [Goal(name=f"sweep, {name}", goal=goal, value=value) for name, goal, value in figures]


def _accuracy(few: Sequence[Pair]) -> list[Figure]:
    """Of 64 GPUs or fewer."""
    clean = without_conflicting(few)
    per_workload = [spearman(speeds(rows)) for rows in by_workload(few).values()]
    of, ranked = "held, <= 64 GPUs", "held, <= 64 GPUs: tokens/s, pooled Spearman"
    return [
        *((f"{of}: memory of the {stage} stage, median error", "<= 0.06",
           median(memory_errors(few, stage))) for stage in STAGES),
        (f"{of}: tokens/s, median error", "<= 0.15", median(speed_errors(few))),
        (f"{ranked}, conflicting siblings too", ">= 0.95", spearman(speeds(few))),
        (f"{ranked}, without conflicting siblings", ">= 0.95", spearman(speeds(clean))),
        (f"{of}: tokens/s, median Spearman over workloads", ">= 0.85", median(per_workload)),
    ]  # fmt: skip


def _intervals(of: str, ran: Sequence[Pair]) -> list[Figure]:
    return [
        *((f"{of}: memory of the {stage} stage inside intervals", ">= 0.8",
           inside_memory(ran, stage)) for stage in STAGES),
        (f"{of}: tokens/s inside intervals", ">= 0.8", inside_speed(ran)),
    ]  # fmt: skip
