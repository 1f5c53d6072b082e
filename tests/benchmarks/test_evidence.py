"""The page of evidence says what the result files hold, and what was not measured."""

import pytest

from tests.benchmarks.gpu_rows import SETTINGS, measurement, no_memory, row, told

pytestmark = pytest.mark.long


@pytest.fixture
def report(benchmark):
    return benchmark("report")


def card(benchmark, rows: list) -> dict:
    goals, common = benchmark("gpu.goals"), benchmark("common")
    runs = [{"part": "memory", "rows": len(rows), "wall_s": 400.0}]
    return {
        "name": "h200", "date": "2026-01-01", "commit": "abc1234", "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "transformers": "5.17.0"},
        "goals": common.as_rows(goals.goals(rows, runs)), "runs": runs, "rows": rows,
    }  # fmt: skip


def test_peaks_are_shown_by_model_and_the_worst_by_name(benchmark) -> None:
    rows = [
        row("memory", str(n), predicted={"dry_run": told(1, n / 100), "arithmetic": told(1, 0.0)})
        for n in range(8)
    ]
    rows.append(no_memory("memory", "x"))
    text = "\n".join(benchmark("evidence").cards([card(benchmark, rows)]))
    assert "| llama-3.2-1b | 9 | 8 | 3.5% | 7% | 0% | 0% |" in text
    worst = text.split("The five furthest off:")[1].split("####")[0]
    assert [f"| {n}% |" in worst for n in (7, 6, 5, 4, 3, 2)] == [True] * 5 + [False]


def test_the_issue_is_shown_with_its_evidence_and_wrong_verdicts_stand_out(benchmark) -> None:
    fits = {"fits": True, "gib": 55.0}
    wrong = {"dry_run": told(1024, 0.0, fits=False), "arithmetic": told(1024, 0.0)}
    rows = [
        row("seed", "right", published=fits),
        no_memory("seed", "wrong", published=fits, predicted=wrong),
        no_memory("seed", "too large", published={"fits": False, "gib": None}, predicted=wrong),
    ]
    text = "\n".join(benchmark("evidence").cards([card(benchmark, rows)]))
    assert "| right | 55 | ok | 0.98 | 0.98, fits | 0.99, fits |" in text
    wrong_row = (
        "| wrong | 55 | **oom** | > 0.99 in backward | **1.00, does not fit** | 1.00, fits |"
    )
    assert wrong_row in text
    assert "| too large | out of memory | oom | > 0.99 in backward | 1.00, does not fit |" in text


def test_all_parts_of_a_card_are_shown(benchmark) -> None:
    on = {**SETTINGS, "tp_size": 4, "tp_recompute_allgather": True}
    rows = [
        row("recompute", "kept", settings={**on, "tp_recompute_allgather": False}),
        row("recompute", "again", settings=on, measurement=measurement(488, [0.2], 0.0, 9.0)),
        row("time", "a"),
        row("grid", "a"), no_memory("grid", "b"),
        row("warm", "", key="warm cold x #0"),
        row("warm", "", key="warm warm x #0", way="warm",
            measurement=measurement(1001, [0.5], 0.0, 2.0)),
    ]  # fmt: skip
    text = "\n".join(benchmark("evidence").cards([card(benchmark, rows)]))
    assert "| 4 | 1 | 0.98 | 0.48 | 0.50 | 100% | 66.7% |" in text
    assert "Median error: 20% with the catalogue's rates, not measured after calibration." in text
    assert "llama-3.2-1b on 8xh200, 2 settings: 1 ok, 1 oom." in text
    assert "| llama-3.2-1b | warm | 1 | 2 | 25% |" in text
    assert "0.1% of peak allocated" in text
