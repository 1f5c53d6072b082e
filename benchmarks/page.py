"""The tables of ``benchmarks/results/predict.md``, by the benchmark: page and file agree."""

from common import ROOT
from markdown import Row, Sections, goals, percent, table
from sweep_table import WORKLOAD

PAGE = ROOT / "benchmarks" / "results" / "predict.md"
LOST = 0.1
"""Workloads are named whose fastest predicted run loses more than this share."""


def sweep(result: Row) -> list[str]:
    """nanotron's sweep and vTrain's runs; and where choosing by prediction would lose most."""
    workloads = [row for row in result["rows"] if row["runs"].startswith(WORKLOAD)]
    others = [row for row in result["rows"] if not row["runs"].startswith(WORKLOAD)]
    lost = {row["runs"].removeprefix(WORKLOAD): row["regret_of_fastest"] for row in workloads}
    named = [f"{name}: {percent(of)}" for name, of in lost.items() if of > LOST]
    header = ("runs", "n", "memory, first stage", "worst stage", "inside, first", "worst",
              "tokens/s", "inside", "Spearman, pooled", "by workload", "regret")  # fmt: skip
    return [
        *table(header, [_sweep_row(row) for row in others]),
        "",
        f"Of {len(lost)} workloads, the run predicted fastest is more than {LOST:.0%} slower than"
        f" the fastest in {len(named)} ({'; '.join(named)}).",
    ]


def _sweep_row(row: Row) -> tuple[str, ...]:
    shares = ("memory_first_stage_error", "memory_worst_stage_error", "inside_first_stage",
              "inside_worst_stage", "speed_error", "inside_speed")  # fmt: skip
    ranks = [row[name] for name in ("spearman_pooled", "spearman_median")]
    return (
        row["runs"],
        str(row["n"]),
        *(percent(row[name]) for name in shares),
        *("" if rank is None else f"{rank:.3f}" for rank in ranks),
        percent(row["regret_of_fastest"]),
    )


def stated(result: Row) -> list[str]:
    """DLRover's rows by what is stated of their script: GiB by GPUs."""
    rows = result["dlrover_stated"]
    sizes = [name for name in rows[0] if name.endswith("GPUs")]
    ways: dict[tuple[str, ...], list[str]] = {}  # that come to the same figures
    for row in rows:
        figures = ["" if row[name] is None else f"{row[name]:.1f}" for name in sizes]
        told = (row["stated"], *figures, percent(row["largest_error"]))
        ways.setdefault(told, []).append(row["by"].replace("_", " "))
    lines = [(name, ", ".join(by), *figures) for (name, *figures), by in ways.items()]
    return table(("stated", "by", *sizes, "largest error"), lines)


def rivals(result: Row) -> list[str]:
    """Median errors and verdicts, ours and other tools'."""
    header = ("on", "by", "rows", "median error", "largest error", "verdicts")
    return table(header, [_rival(row) for row in result["rivals"]])


def _rival(row: Row) -> tuple[str, ...]:
    errors = (percent(row["median_error"]), percent(row["largest_error"]))
    return (row["on"], row["by"], str(row["n"]), *errors, _verdicts(row))


def _verdicts(row: Row) -> str:
    accuracy = row["balanced_accuracy"]
    if accuracy is None:
        return ""
    return f"{row['verdicts_right']} (balanced accuracy {accuracy:.2f})"


SECTIONS: Sections = {
    "goals": goals,
    "sweep": sweep,
    "stated": stated,
    "rivals": rivals,
}
