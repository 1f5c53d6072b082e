"""Predictions and identities that must not change by accident: golden values.

``cases.jsonl`` covers model families, kinds of GPU, frameworks, shardings and precisions with few
cases, and ``questions.jsonl`` has ten requests. After a change that is meant, ``python -m
tests.unit.golden.test_golden`` writes ``golden.json`` anew; its difference belongs into the commit.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.records import VERSIONS
from tuner.cli import main
from tuner.client.request import read_request
from tuner.space import enumerate_space

HERE = Path(__file__).parent
# Identities hold the versions of the stack: fixed here, whatever is installed.
GOLDEN = HERE / "golden.json"


def predictions() -> list[dict[str, Any]]:
    """The arithmetic's answer to each case, without a dry run."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        code = main(
            ["predict", "--cases", str(HERE / "cases.jsonl"), "--dry-runs", "none",
             "--db", f"sqlite:///{folder}/studies.db"]
        )  # fmt: skip
    assert code == 0
    return [_figures(json.loads(line)) for line in said.getvalue().splitlines()]


def _figures(answer: dict[str, Any]) -> dict[str, Any]:
    memory = answer["memory"]
    return {
        "fits": answer["fits"],
        "configuration": answer["canonical"],
        "allocated_gib": _bounds(memory["allocated_gib"]),
        "device_gib": _bounds(memory["device_gib"]),
        "limit_gib": memory["limit_gib"],
        "tokens_per_s_per_gpu": _bounds(answer["tokens_per_s_per_gpu"]),
        "step_time_s": _bounds(answer["step_time_s"]),
    }


def _bounds(quantity: dict[str, Any]) -> list[float] | None:
    if quantity["value"] is None:  # a machine whose rates nobody knows
        return None
    return [float(f"{quantity[end]:.9g}") for end in ("low", "value", "high")]


def identities() -> list[dict[str, Any]]:
    """The identity of each question, and how many configurations are legal for it."""
    found = []
    for line in (HERE / "questions.jsonl").read_text().splitlines():
        question = read_request(json.loads(line)).question(VERSIONS)
        legal = len(enumerate_space(question).legal)
        found.append({"identity": question.identity, "legal": legal})
    return found


def test_predictions_are_the_golden_ones() -> None:
    for number, (found, golden) in enumerate(
        zip(predictions(), json.loads(GOLDEN.read_text())["predictions"], strict=True)
    ):
        for name, value in golden.items():
            # Sums in another order may differ in the last digits.
            assert found[name] == (
                pytest.approx(value, rel=1e-7) if isinstance(value, list | float) else value
            ), (number, name)


def test_identities_are_the_golden_ones() -> None:
    """A database's studies are found by them."""
    assert identities() == json.loads(GOLDEN.read_text())["identities"]


if __name__ == "__main__":
    GOLDEN.write_text(
        json.dumps({"predictions": predictions(), "identities": identities()}, indent=1) + "\n"
    )
    sys.stdout.write(f"{GOLDEN.name} written\n")
