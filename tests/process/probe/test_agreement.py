"""Every configuration trains what one process trains, with the collectives that it must cause.

The same CPU ranks are what dry runs and rank 0 alone are held to: their peaks and collectives.

Losses and gradient norms of four optimizer steps with accumulation 3, in fp32, are compared with
one process without any of it. Step 0 alone shows nothing of some faults, such as a gathered buffer
that is used again before backward has read it.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.process.preloaded import Preloaded
from tests.process.probe.specs import (
    ACCUMULATION,
    GLOBAL_BATCH,
    MODELS,
    dry_runs,
    measure,
    peak_bytes,
    spec,
)

pytestmark = pytest.mark.xdist_group("ranks")  # many processes: not several launches at once

LAYERS = 2
SMALL = {
    "num_hidden_layers": LAYERS, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip
"""Of the models that training is compared of."""
SAME = 1e-5
"""Relative difference of training. Agreement is within 5e-7; planted faults were 7e-4 and more."""
NEAR = 0.01
"""Relative difference of peaks."""
Spec = dict[str, Any]
Record = dict[str, Any]

CASES: dict[str, dict[str, Any]] = {
    "ddp": {"precision": "bf16_mixed", "sync_each_batch": False},
    "ddp reduce fp32": {"precision": "bf16", "reduce_dtype": "fp32", "sync_each_batch": False},
    "shard_grad_op": {"sharding": "shard_grad_op", "sync_each_batch": False, "optimizer": "sgd"},
    "checkpointing": {"sharding": "full_shard", "activation_checkpointing": "full"},
    "reduce fp32": {
        "sharding": "full_shard", "precision": "bf16", "reduce_dtype": "fp32",
        "sync_each_batch": False,
    },
    "tp": {
        "model": "tied", "tp_size": 2, "tp_recompute_allgather": True,
        "activation_checkpointing": "full",
    },
    "experts": {"model": "mixtral", "sharding": "full_shard", "precision": "bf16"},
    "offload": {"sharding": "full_shard", "cpu_offload": True},
}  # fmt: skip
"""Those that differ most from one another in memory, on two ranks."""
FIRST = ["ddp", "checkpointing", "tp", "experts"]


def training_spec(model: str, ranks: int, **knobs: Any) -> Spec:
    """A spec whose global batch is always the same."""
    tp_size = knobs.get("tp_size", 1)
    return spec(
        {**MODELS[model], **SMALL}, ranks, gradient_accumulation_steps=ACCUMULATION, seed=11,
        warmup_steps=4,
        tracked_steps=4, measured_steps=1, minimum_steps=1, time_budget_s=1.0,
        micro_batch_size=GLOBAL_BATCH * tp_size // ranks // ACCUMULATION, **knobs,
    )  # fmt: skip


def combinations(
    ranks: int, model: str, make: Callable[..., Spec] = training_spec
) -> dict[str, Spec]:
    """Specs over all knobs for a number of ranks, live ones both ways, by their knobs."""
    on_off, how = (True, False), ("none", "full")
    names = ("sharding", "sync_each_batch", "tp_size", "tp_recompute_allgather")
    product, cases = itertools.product, list[tuple[Any, ...]]()
    if ranks == 2:
        cases += product(("ddp", "shard_grad_op", "full_shard"), on_off, [1], [False], how)
        cases += product(["ddp"], [True], [2], on_off, how)
    if ranks == 4:
        cases += product(["hybrid_shard"], on_off, [1], [False], how)
        cases += product(("shard_grad_op", "full_shard"), on_off, [2], on_off, how)
    if ranks == 8:
        cases += [
            (*case, "full" if case[3] else "none")
            for case in product(["hybrid_shard"], on_off, [2], on_off)
        ]
    keys = (*names, "activation_checkpointing")
    specs = {str(case): make(model, ranks, **dict(zip(keys, case, strict=True)))
             for case in cases}  # fmt: skip
    if ranks == 2:
        for sync in on_off:
            knobs = {"sharding": "full_shard", "sync_each_batch": sync, "cpu_offload": True}
            specs[f"offload {sync}"] = make(model, ranks, **knobs)
    return specs


@pytest.fixture(scope="module")
def references(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Each model on one process, nothing sharded, nothing checkpointed."""
    models = [model for model in MODELS if model != "gpt2"]
    folder = tmp_path_factory.mktemp("reference")
    records = measure(preloaded, folder, [training_spec(model, 1) for model in models])
    return dict(zip(models, records, strict=True))


@pytest.mark.parametrize(
    ("ranks", "model"),
    [
        pytest.param(ranks, model, marks=() if (ranks, model) == (2, "tied") else pytest.mark.slow)
        for ranks, model in itertools.product((2, 4, 8), ("tied", "llama", "mixtral"))
    ],
)
def test_all_knobs_train_what_one_process_trains(
    ranks: int, model: str, references: dict[str, Record], preloaded: Preloaded, tmp_path: Path
) -> None:
    specs = combinations(ranks, model)
    records = measure(preloaded, tmp_path / "ranks", list(specs.values()))
    for values, record in zip(specs.values(), records, strict=True):
        knobs, expected = values["settings"], references[model]
        pairs = zip(
            record["losses"][:4] + record["gradient_norms"],
            expected["losses"][:4] + expected["gradient_norms"],
            strict=True,
        )
        worst = max(abs(got - want) / abs(want) for got, want in pairs)
        assert worst <= SAME, f"{knobs}: off by {worst:.1e}"
        assert record["optimizer_steps"] == record["expected_optimizer_steps"], knobs
        check_data_parallel(model, knobs, record)
        check_tensor_parallel(model, knobs, record)


def memory_spec(model: str, ranks: int, **choices: Any) -> Spec:
    """A spec whose third step and on are in steady state."""
    return spec(
        model, ranks, sequence_length=64, tracked_steps=3, measured_steps=1, minimum_steps=1,
        **choices,
    )  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(FIRST, id="first"),
        pytest.param(sorted(CASES.keys() - FIRST), id="rest", marks=pytest.mark.slow),
    ],
)
def test_memory_of_two_ranks_is_that_of_a_dry_run_and_of_rank_0_alone(
    names: list[str], preloaded: Preloaded, tmp_path: Path
) -> None:
    hold_predictions(
        preloaded, tmp_path, {name: memory_spec(**{"model": "llama", "ranks": 2, **CASES[name]})
                              for name in names}
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "mixtral"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_memory_of_all_knobs(ranks: int, model: str, preloaded: Preloaded, tmp_path: Path) -> None:
    hold_predictions(preloaded, tmp_path, combinations(ranks, model, memory_spec))


def hold_predictions(preloaded: Preloaded, folder: Path, specs: Mapping[str, Spec]) -> None:
    """Peaks within 1%, the very same collectives, and the same knobs that act."""
    records = measure(preloaded, folder / "ranks", list(specs.values()))
    traces = dry_runs(preloaded, dict(specs))
    emulated_specs = [{**values, "fidelity": "emulated"} for values in specs.values()]
    alone = measure(preloaded, folder / "alone", emulated_specs)
    for (name, values), record, emulated in zip(specs.items(), records, alone, strict=True):
        what, memory, trace = (name, values["settings"]), record["memory"], traces[name]
        low, high = memory["low_peak_bytes"], memory["peak_allocated_bytes"]
        assert peak_bytes(trace) == pytest.approx(low, rel=NEAR), what
        # on a busy machine real ranks free what they gathered later, and peak a block higher
        peak, block = emulated["memory"]["low_peak_bytes"], trace["block_bytes"]
        assert low - max(NEAR * low, block) <= peak <= (1 + NEAR) * high, what
        rows = [trace["steps"][0]["collectives"], emulated["collectives"], record["collectives"]]
        first, second, third = map(by_operator, rows)
        assert first == second == third, what
        assert emulated["reducing_micro_batches"] == record["reducing_micro_batches"], what
        assert emulated["optimizer_steps"] == emulated["expected_optimizer_steps"], what
        assert emulated["losses"] == emulated["gradient_norms"] == []


def by_operator(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Counts and bytes by operator and pass (axes get other names in a shared process)."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        key = (row["op"], row["phase"].replace("loss", "forward"))
        size = row["bytes"][0] if isinstance(row["bytes"], list) else row["bytes"]
        count, total = found.get(key, (0, 0))
        found[key] = (count + row["count"], total + size)
    return found


def calls(record: Record, op: str, axis: str, phase: str | None = None) -> int:
    """How often a rank called a collective in one optimizer step."""
    return sum(
        c["count"]
        for c in record["collectives"]
        if c["op"] == op and c["axis"] == axis and phase in (None, c["phase"])
    )


def check_data_parallel(model: str, knobs: Mapping[str, Any], record: Record) -> None:
    """Exactly the data-parallel collectives that the knobs cause, per optimizer step."""
    synced = ACCUMULATION if knobs["sync_each_batch"] else 1
    if knobs["sharding"] == "ddp":
        reduced = calls(record, "all_reduce", "dp", "backward")
        buckets = reduced // synced
        assert reduced == (synced * buckets if knobs["tp_size"] == 1 else 0)
        assert (buckets >= 1) is (knobs["tp_size"] == 1)
        assert record["reducing_micro_batches"] == (synced if buckets else 0)
        return
    assert record["reducing_micro_batches"] == synced
    # of accelerate's FSDP2: layers, final norm and head, the embedding unless it is the head's
    groups = LAYERS + (1 if MODELS[model]["tie_word_embeddings"] else 2)
    assert calls(record, "reduce_scatter", "dp_shard") == groups * synced
    assert calls(record, "all_gather", "dp_shard", "forward") == groups * ACCUMULATION
    kept = 1 if knobs["sharding"] != "shard_grad_op" else groups  # the head's group always
    regathered = (groups - kept) * ACCUMULATION
    assert calls(record, "all_gather", "dp_shard", "backward") == regathered
    replicas = groups * synced if knobs["sharding"] == "hybrid_shard" else 0
    assert calls(record, "all_reduce", "dp_replicate") == replicas


def check_tensor_parallel(model: str, knobs: Mapping[str, Any], record: Record) -> None:
    """Gathers of the sequence: one before attention and MLP of each layer, and the head's.

    Backward scatters what forward gathered and gathers what it scattered; recompute gathers
    each once more, and checkpointing gathers again inside the layers. Experts run on the
    rank's own part of the sequence, so that an expert layer has one gather where others
    have two.
    """
    if knobs["tp_size"] == 1:
        return
    inside = LAYERS * (1 if model == "mixtral" else 2)
    per_micro_batch = 2 * (inside + 1)
    per_micro_batch += inside + 1 if knobs["tp_recompute_allgather"] else 0
    per_micro_batch += inside if knobs["activation_checkpointing"] == "full" else 0
    assert calls(record, "all_gather", "tp") == per_micro_batch * ACCUMULATION
