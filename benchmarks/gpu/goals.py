"""What the rows are held to, and the figures of each part. Plain arithmetic over JSON values."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from common import Goal

Rows = Sequence[Mapping[str, Any]]

GIB = 2**30
NOT_RUN = "not_run"
"""In the place of an outcome: nothing was tried, and it is tried when there is another chance."""
WAYS = {"dry_run": "dry run", "arithmetic": "arithmetic"}
WARM_S = {"llama-3.2-1b": 5, "llama-3.1-8b": 10}
"""Seconds of a warm probe, by model."""
PART_S = 480
"""Seconds of one run of a part."""


def goals(rows: Rows, runs: Rows) -> list[Goal]:
    """Every figure that is asked for; those of parts that have no rows are not measured."""
    return [
        *_memory_goals(of_part(rows, "memory")),
        *_seed_goals([row for row in rows if row["part"] == "seed"]),
        *_time_goals(of_part(rows, "time")),
        Goal(name="grid: settings kept", goal=">= 80", value=_count(of_part(rows, "grid"))),
        *_warm_goals(of_part(rows, "warm")),
        Goal(name="longest run of a part, s", goal=f"<= {PART_S}",
             value=max((run["wall_s"] for run in runs), default=None)),
    ]  # fmt: skip


def of_part(rows: Rows, part: str) -> Rows:
    """The rows of a part that were tried."""
    return [row for row in rows if row["part"] == part and row["outcome"] != NOT_RUN]


def _memory_goals(rows: Rows) -> list[Goal]:
    found = []
    for way, name in WAYS.items():
        off = errors(rows, way)
        what = f"memory, {name}: peak allocated against emulated"
        found += [
            Goal(name=f"{what}, median error", goal="<= 0.02", value=_median(off)),
            Goal(name=f"{what}, largest error", goal="<= 0.05", value=max(off, default=None)),
        ]
    done = [row for row in rows if row["outcome"] == "ok" and row["predicted"]["dry_run"]]
    models = {row["model"] for row in done}
    return [
        *found,
        Goal(name="memory: settings compared", goal=">= 40", value=_count(done)),
        Goal(name="memory: models compared", goal=">= 3", value=len(models) or None),
    ]


def errors(rows: Rows, way: str) -> list[float]:
    """Relative errors, without sign, of predicted peaks of probes that ended well."""
    told = [row["predicted"][way] for row in rows if row["outcome"] == "ok"]
    return [abs(one["error"]) for one in told if one]


def _seed_goals(rows: Rows) -> list[Goal]:
    """A row that was not run is no right verdict of a probe; it is predicted all the same."""
    what = "issue 29425 under an 80 GiB cap"
    right = {"emulated": [emulated_right(row) for row in rows]}
    for way, name in WAYS.items():
        right[name] = [predicted_right(row, way) for row in rows]
    return [
        Goal(name=f"{what}, {name}: verdicts right of 7", goal=">= 7",
             value=sum(each) if each else None)
        for name, each in right.items()
    ]  # fmt: skip


def emulated_right(row: Mapping[str, Any]) -> bool:
    """Whether a probe ended as the published run did: well, or out of memory."""
    return bool(row["outcome"] == ("ok" if row["published"]["fits"] else "oom"))


def predicted_right(row: Mapping[str, Any], way: str) -> bool:
    """Whether what was predicted to fit is what was published to."""
    told = row["predicted"][way]
    return told is not None and told["fits"] is row["published"]["fits"]


def _time_goals(rows: Rows) -> list[Goal]:
    named = {"calibrated_s": "after calibration", "catalogue_s": "with the catalogue's rates"}
    return [
        Goal(name=f"computing, {name}: median error", goal="<= 0.08",
             value=_median(computing_errors(rows, rate)))
        for rate, name in named.items()
    ]  # fmt: skip


def computing_errors(rows: Rows, rate: str) -> list[float]:
    """Relative errors, without sign, of predicted seconds of computing."""
    each = [row["computing"] for row in rows if row["outcome"] == "ok"]
    known = [one for one in each if one["measured_s"] and one[rate]]
    return [abs(one[rate] / one["measured_s"] - 1) for one in known]


def _warm_goals(rows: Rows) -> list[Goal]:
    warm = [row for row in rows if row["way"] == "warm" and row["outcome"] == "ok"]
    found = []
    for model, limit in WARM_S.items():
        own = [row for row in warm if row["model"] == model]
        found += [
            Goal(name=f"warm probes of {model}: s each, median", goal=f"<= {limit}",
                 value=_median([row["measurement"]["wall_s"] for row in own])),
            Goal(name=f"warm probes of {model}: share of measured steps, median", goal=">= 0.5",
                 value=_median([measured_share(row) for row in own])),
        ]  # fmt: skip
    return [
        *found,
        Goal(name="warm against cold: peak allocated, largest difference", goal="<= 0.01",
             value=max((abs(m - 1) for m, _ in warm_over_cold(rows).values()), default=None)),
    ]  # fmt: skip


def measured_share(row: Mapping[str, Any]) -> float:
    """Of a probe's wall time, what the timed steps took on the device."""
    computed = row["measurement"]["emulation"]["compute_s"]
    return float(sum(map(sum, computed.values())) / row["measurement"]["wall_s"])


def warm_over_cold(rows: Rows) -> dict[str, tuple[float, float]]:
    """Peak allocated and computing of a warm probe over those of the cold one, by case."""
    pairs: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["part"] == "warm" and row["outcome"] == "ok":
            name = row["key"].replace(f" {row['way']} ", " ", 1)
            pairs.setdefault(name, {})[row["way"]] = row
    found = {}
    for name, pair in pairs.items():
        if len(pair) == 2:
            memory, seconds = (
                [look(pair[way]) for way in ("warm", "cold")] for look in (allocated, computing_s)
            )
            found[name] = memory[0] / memory[1], seconds[0] / seconds[1]
    return found


def recompute_pairs(rows: Rows) -> list[dict[str, Any]]:
    """What keeping gathered activations takes and saves, at each tensor-parallel size.

    Medians over repetitions; the step's time has its priced communication in it.
    """
    done = [row for row in of_part(rows, "recompute") if row["outcome"] == "ok"]
    found = []
    for tp in sorted({row["settings"]["tp_size"] for row in done}):
        kept, again = (
            [row for row in done if row["settings"]["tp_size"] == tp
             and row["settings"]["tp_recompute_allgather"] is on]
            for on in (False, True)
        )  # fmt: skip
        if kept and again:
            found.append({"tp_size": tp, **_compared(kept, again)})
    return found


def _compared(kept: Rows, again: Rows) -> dict[str, Any]:
    def middle(rows: Rows, look: Any) -> float | None:
        seen = [value for row in rows if (value := look(row)) is not None]
        return _median(seen)

    memory = [(middle(rows, allocated) or 0.0) / GIB for rows in (kept, again)]
    computing = [middle(rows, computing_s) for rows in (kept, again)]
    step = [middle(rows, step_s) for rows in (kept, again)]
    return {
        "repetitions": min(len(kept), len(again)),
        "kept_gib": memory[0],
        "recomputed_gib": memory[1],
        "saved_gib": memory[0] - memory[1],
        "computing_paid": _paid(computing),
        "step_paid": _paid(step),
    }


def _paid(pair: Sequence[float | None]) -> float | None:
    kept, again = pair
    return None if not kept or not again else again / kept - 1


def allocated(row: Mapping[str, Any]) -> float:
    """Peak allocated bytes of a probe that ended well."""
    return float(row["measurement"]["memory"]["allocated_bytes"])


def computing_s(row: Mapping[str, Any]) -> float:
    """Seconds that the typical step computed, at the largest count that was run."""
    computed = row["measurement"]["emulation"]["compute_s"]
    return float(median(computed[max(computed, key=int)]))


def step_s(row: Mapping[str, Any]) -> float | None:
    """Seconds of the typical step; ``None`` where its communication has no price."""
    times = row["measurement"]["step_times_s"]
    return float(median(times[max(times, key=int)])) if times else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return median(known) if known else None


def _count(rows: Rows) -> int | None:
    return len(rows) or None
