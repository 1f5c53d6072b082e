"""Tensor parallelism trains what one process trains, with the collectives it must cause.

Cases run in two launches of ``tensor_parallel_ranks.py``, four processes over gloo each: those of
two models that differ most from one another, and, slow, those of the others.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.probe.tensor_parallel import (
    VERIFIED_MODEL_TYPES,
    UnsupportedByTensorParallel,
    check,
)

pytestmark = pytest.mark.xdist_group("tensor_parallel")

SCRIPT = Path(__file__).with_name("tensor_parallel_ranks.py")
ROOT = SCRIPT.parents[3]
TIMEOUT_S = 900
TOLERANCE = 1e-5
"""Relative, of losses and gradient norms; seen: 3e-6, and 7e-4 and more with the fault."""
ON_AND_OFF = ("tied_llama", "mixtral")
MODELS = (*ON_AND_OFF, "grouped_query_llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
LAYERS = 2
OTHERS = tuple(model for model in MODELS if model not in ON_AND_OFF)
DENSE_LAYERS = {"mixtral": 0, "qwen3_moe": 1}
GATHERED_BYTES = 2 * 16 * 32 * 4
"""One gathered activation of the tiny models: micro-batch, sequence, hidden, float32."""


class Results(dict[str, Any]):
    """What the ranks wrote: by case, and by model for training without parallelism."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        super().__init__()
        self._new_folder = new_folder

    def __missing__(self, name: str) -> Any:
        """Launch the half that has it."""
        is_of_others = name.split("-")[0] in OTHERS
        self.update(launch(self._new_folder(), OTHERS if is_of_others else ON_AND_OFF))
        assert name in self
        return self[name]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(lambda: tmp_path_factory.mktemp("ranks"))


def launch(folder: Path, models: Sequence[str]) -> dict[str, Any]:
    """What the ranks write of the cases of some models."""
    path = os.pathsep.join((str(ROOT), str(SCRIPT.parent)))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), str(folder), *models],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert status == 0, log.read_text()[-5000:]
    written = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 2)]
    return written[0] | written[1]


def largest_error(results: dict[str, Any], case: str) -> float:
    """Of losses and gradient norms, relative to training without parallelism."""
    alone, parallel = results[case.split("-")[0]], results[case]
    expected = alone["losses"] + alone["norms"]
    got = parallel["losses"] + parallel["norms"]
    assert len(got) == len(expected) == 8
    return max(abs(g - e) / abs(e) for g, e in zip(got, expected, strict=True))


def slow_of_others(*cases: str) -> list[Any]:
    """The cases, marked."""
    marks = {True: (pytest.mark.slow,), False: ()}
    return [pytest.param(case, marks=marks[case.split("-")[0] in OTHERS]) for case in cases]


PLAIN = [f"{m}-fp32{on}" for m in MODELS for on in ("", "-recompute_allgather-checkpointing")]
APART = [f"{m}-fp32-{on}" for m in ON_AND_OFF for on in ("recompute_allgather", "checkpointing")]
WITH_DATA_PARALLEL = [
    f"{model}-{how}"
    for model in ON_AND_OFF
    for how in (
        "fully_shard-fp32",
        "fully_shard-fp32-recompute_allgather-checkpointing-no_sync",
        "replicate-fp32-recompute_allgather-checkpointing",
        "replicate-fp32-no_sync",
    )
]


@pytest.mark.parametrize(
    "case",
    slow_of_others(*PLAIN, *APART, *WITH_DATA_PARALLEL, "qwen3-hybrid_shard-fp32-no_sync"),
)
def test_trains_as_one_process_does(results: dict[str, Any], case: str) -> None:
    assert largest_error(results, case) < TOLERANCE
    assert results[case]["parameter_error"] < 1e-3  # a step moves a parameter by up to 1e-2


def test_unsummed_gradients_of_norms_are_seen(results: dict[str, Any]) -> None:
    assert largest_error(results, "tied_llama-fp32-fault") > 100 * TOLERANCE
    assert results["tied_llama-fp32-fault"]["parameter_error"] > 1e-2


@pytest.mark.parametrize(
    ("case", "tolerance"),
    [
        ("tied_llama-autocast-recompute_allgather", 0.03),
        ("tied_llama-fully_shard-fsdp_mixed-no_sync", 0.03),
        ("mixtral-bf16-checkpointing", 0.15),  # rounding changes which experts are chosen
    ],
)
def test_low_precision_stays_near(results: dict[str, Any], case: str, tolerance: float) -> None:
    assert largest_error(results, case) < tolerance


def expected_collectives(
    case: str, *, hooks_are_checkpointed: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Of one micro-batch, forward and backward, without data parallelism."""
    dense = DENSE_LAYERS.get(case.split("-")[0], LAYERS)
    in_layers = LAYERS + dense
    forward = {"all_gather": in_layers + 1, "reduce_scatter": in_layers + 1, "all_reduce": 2}
    backward = {"all_gather": in_layers + 1, "reduce_scatter": in_layers + 1}
    if "recompute_allgather" in case:
        backward["all_gather"] += in_layers + 1
    if "checkpointing" in case:
        backward["all_gather"] += in_layers
        backward["reduce_scatter"] += LAYERS + hooks_are_checkpointed
    return forward, backward


@pytest.mark.parametrize("case", slow_of_others(*PLAIN, *APART))
def test_collectives_of_a_micro_batch(results: dict[str, Any], case: str) -> None:
    hooks = results["hooks_are_checkpointed"]
    forward, backward = expected_collectives(case, hooks_are_checkpointed=hooks)
    assert results[case]["forward"] == forward
    assert results[case]["backward"] == backward


@pytest.mark.parametrize(
    ("model", "replicated"),
    [
        ("tied_llama", 2 * 2 + 1 + 2 * 2),  # norms, biases of o and down
        ("mixtral", 2 * 2 + 1 + 2 * 3),  # norms, router and experts
    ],
)
def test_fsdp_sums_replicated_parameters(
    results: dict[str, Any], model: str, replicated: int
) -> None:
    assert results[f"{model}-fully_shard-fp32"]["backward"]["all_reduce"] == replicated


@pytest.mark.parametrize(("model", "gathers"), [("tied_llama", 5), ("mixtral", 3)])
def test_recompute_saves_only_shards(results: dict[str, Any], model: str, gathers: int) -> None:
    off = results[f"{model}-fp32"]["saved_bytes"]
    on = results[f"{model}-fp32-recompute_allgather"]["saved_bytes"]
    assert off - on == gathers * GATHERED_BYTES / 2


def test_recompute_changes_no_bit(results: dict[str, Any]) -> None:
    for model in ON_AND_OFF:
        off, on = results[f"{model}-fp32"], results[f"{model}-fp32-recompute_allgather"]
        assert (off["losses"], off["norms"]) == (on["losses"], on["norms"])


def test_sizes_that_do_not_fit_are_refused(results: dict[str, Any]) -> None:
    said = results["refusals"]
    assert "num_key_value_heads is 1, which 2 does not divide" in said["heads"]
    assert "intermediate_size is 49, which 2 does not divide" in said["mlp"]
    assert "a mesh of one axis" in said["mesh"]
    assert "15 tokens does not split over 2 ranks" in said["sequence"]


def test_gradient_norm_of_any_placements(results: dict[str, Any]) -> None:
    norms = results["norms_of_placements"]
    assert norms["split"] == pytest.approx(norms["whole"], rel=1e-6)


def test_partial_gradients_are_refused_until_they_are_summed(results: dict[str, Any]) -> None:
    assert "not yet summed" in results["partial_gradient"]["refused"]
    assert results["partial_gradient"]["summed"] == 4.0  # the norm of (2, 2, 2, 2)


def test_loss_is_that_of_transformers(results: dict[str, Any]) -> None:
    assert set(results["loss_errors"]) == {"mean", "sum", "shifted"}
    assert max(results["loss_errors"].values()) < 1e-6


def test_check_accepts_verified_types() -> None:
    for model_type in VERIFIED_MODEL_TYPES:
        check(model_type, SimpleNamespace(attention_dropout=0.0, output_router_logits=False))


@pytest.mark.parametrize(
    ("model_type", "field", "value", "reason"),
    [
        ("gpt2", "n_layer", 2, "no verified tensor-parallel plan"),
        ("llama", "attention_dropout", 0.1, "random stream"),
        ("mixtral", "router_jitter_noise", 0.01, "random stream"),
        ("qwen3_moe", "output_router_logits", True, "auxiliary loss"),
    ],
)
def test_check_refuses_with_the_reason(
    model_type: str, field: str, value: object, reason: str
) -> None:
    with pytest.raises(UnsupportedByTensorParallel, match=reason):
        check(model_type, SimpleNamespace(**{field: value}))
