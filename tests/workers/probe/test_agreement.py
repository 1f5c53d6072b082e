"""Every settings trains what one process trains, with the collectives that it must cause.

Losses and gradient norms of four optimizer steps with accumulation 3, in fp32, against one
process without any of it. Step 0 alone shows nothing of some faults, such as a gathered
buffer that is used again before backward has read it.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.preloaded import Preloaded

TOLERANCE = 1e-5
"""Relative. Agreement is within 5e-7; planted faults were 7e-4 and more."""
GLOBAL_BATCH, ACCUMULATION, SEQUENCE = 24, 3, 32
LAYERS = 2
LONGEST_S = 900
"""For all specs of one launch: 95 to 132 s were seen for 4 ranks on two busy cores."""
RANKS_PER_NODE = {1: 1, 2: 2, 4: 2, 8: 4}

SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
MODELS = {
    "tied_llama": {
        **SHAPE, "model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": True,
    },
    "grouped_query_llama": {
        **SHAPE, "model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": False,
    },
    "mixtral": {
        **SHAPE, "model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 4,
        "num_experts_per_tok": 2, "tie_word_embeddings": False,
    },
}  # fmt: skip


def spec(model: str, ranks: int, **knobs: object) -> dict:
    """A spec of ``knobs`` whose global batch is always the same."""
    settings = {
        "sharding": "ddp", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
        "gradient_accumulation_steps": ACCUMULATION, "sync_each_batch": True,
        "activation_checkpointing": "none", "cpu_offload": False, **knobs,
    }  # fmt: skip
    settings["micro_batch_size"] = GLOBAL_BATCH * settings["tp_size"] // ranks // ACCUMULATION
    return {
        "format": 1, "model": MODELS[model], "settings": settings, "sequence_length": SEQUENCE,
        "global_batch_size": GLOBAL_BATCH, "optimizer": "adamw", "precision": "fp32",
        "reduce_dtype": "fp32", "world_size": ranks, "gpus_per_node": RANKS_PER_NODE[ranks],
        "device": "cpu", "memory_limit_bytes": None, "seed": 11,
        "accumulation_counts": [ACCUMULATION], "warmup_steps": 4, "tracked_steps": 4,
        "measured_steps": 1, "minimum_steps": 1, "time_budget_s": 1.0,
    }  # fmt: skip


def combinations(ranks: int) -> list[dict]:
    """Knobs to try on a number of ranks; live ones both ways."""
    on_off, checkpointing = (True, False), ("none", "full")
    names = ("sharding", "sync_each_batch", "tp_size", "tp_recompute_allgather")
    product = itertools.product
    cases: list[tuple] = []
    if ranks == 2:
        kinds = ("ddp", "shard_grad_op", "full_shard")
        cases += product(kinds, on_off, [1], [False], checkpointing)
        cases += product(["ddp"], [True], [2], on_off, checkpointing)
    if ranks == 4:
        cases += product(["hybrid_shard"], on_off, [1], [False], checkpointing)
        cases += product(("shard_grad_op", "full_shard"), on_off, [2], on_off, checkpointing)
    if ranks == 8:
        three_d = product(["hybrid_shard"], on_off, [2], on_off)
        cases += [(*case, "full" if case[3] else "none") for case in three_d]
    knobs = [dict(zip((*names, "activation_checkpointing"), case, strict=True)) for case in cases]
    if ranks == 2:
        knobs += [
            {"sharding": "full_shard", "sync_each_batch": sync, "cpu_offload": True}
            for sync in on_off
        ]
    return knobs


def start(
    preloaded: Preloaded, folder: Path, ranks: int, specs: list[dict]
) -> list[subprocess.Popen]:
    """Ranks that go through ``specs`` in ``folder``."""
    (folder / "specs.json").write_text(json.dumps(specs))
    environment = {**os.environ, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
                   "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    program = str(Path(__file__).with_name("agreement.py"))
    command = preloaded([sys.executable, program, str(folder)])
    processes = []
    for rank in range(ranks):
        with (folder / f"{rank}.log").open("w") as log:
            mine = {**environment, "RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=mine, stdout=log, stderr=log))
    return processes


def finish(folder: Path, processes: list[subprocess.Popen]) -> list[dict]:
    """The records, once all ranks are done; on a failure, the end of the logs."""
    try:
        codes = [process.wait(timeout=LONGEST_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
    assert codes == [0] * len(codes), logs
    return json.loads((folder / "records.json").read_text())


def run_all(preloaded: Preloaded, folder: Path, ranks: int, specs: list[dict]) -> list[dict]:
    """Records of ``specs`` on a number of ranks."""
    folder.mkdir()
    return finish(folder, start(preloaded, folder, ranks, specs))


@pytest.fixture(scope="session")
def references(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Each model on one process, nothing sharded, nothing checkpointed."""
    folder = tmp_path_factory.mktemp("agreement") / "reference"
    records = run_all(preloaded, folder, 1, [spec(model, 1) for model in MODELS])
    return dict(zip(MODELS, records, strict=True))


def differences(record: dict, reference: dict) -> list[float]:
    """Relative differences of losses and gradient norms, step by step."""
    pairs = zip(
        record["losses"][:4] + record["gradient_norms"],
        reference["losses"][:4] + reference["gradient_norms"],
        strict=True,
    )
    return [abs(got - want) / abs(want) for got, want in pairs]


def calls(record: dict, op: str, axis: str, phase: str | None = None) -> int:
    """How often a rank called a collective in one optimizer step."""
    return sum(
        c["count"]
        for c in record["collectives"]
        if c["op"] == op and c["axis"] == axis and phase in (None, c["phase"])
    )


def fsdp_groups(model: str) -> int:
    """Parameter groups of accelerate's FSDP2: layers, final norm and head, the embedding.

    A tied embedding is in the head's group.
    """
    return LAYERS + (1 if MODELS[model]["tie_word_embeddings"] else 2)


def check_collectives(case: dict, record: dict) -> None:
    """Exactly the data-parallel collectives that the knobs cause, per optimizer step."""
    model, knobs = case["model_name"], case["settings"]
    synced = ACCUMULATION if knobs["sync_each_batch"] else 1
    if knobs["sharding"] == "ddp":
        reduced = calls(record, "all_reduce", "dp", "backward")
        assert reduced == (synced if knobs["tp_size"] == 1 else 0)
        assert record["reducing_micro_batches"] == reduced
        return
    assert record["reducing_micro_batches"] == synced
    groups = fsdp_groups(model)
    assert calls(record, "reduce_scatter", "dp_shard") == groups * synced
    assert calls(record, "all_gather", "dp_shard", "forward") == groups * ACCUMULATION
    kept = 1 if knobs["sharding"] != "shard_grad_op" else groups  # the head's group always
    regathered = (groups - kept) * ACCUMULATION
    assert calls(record, "all_gather", "dp_shard", "backward") == regathered
    replicas = groups * synced if knobs["sharding"] == "hybrid_shard" else 0
    assert calls(record, "all_reduce", "dp_replicate") == replicas


@pytest.mark.xdist_group("ranks")  # many processes: not several launches at once
@pytest.mark.parametrize(
    ("ranks", "model"),
    [
        (2, "tied_llama"),
        *(
            pytest.param(ranks, model, marks=pytest.mark.slow)
            for ranks, model in itertools.product((2, 4, 8), MODELS)
            if (ranks, model) != (2, "tied_llama")
        ),
    ],
)
def test_every_settings_trains_what_one_process_trains(
    ranks: int,
    model: str,
    references: dict[str, dict],
    preloaded: Preloaded,
    tmp_path: Path,
) -> None:
    cases = [{**spec(model, ranks, **knobs), "model_name": model} for knobs in combinations(ranks)]
    specs = [{k: v for k, v in case.items() if k != "model_name"} for case in cases]
    records = run_all(preloaded, tmp_path / "ranks", ranks, specs)
    for case, record in zip(cases, records, strict=True):
        what = f"{case['model_name']} {case['settings']}"
        worst = max(differences(record, references[case["model_name"]]))
        assert worst <= TOLERANCE, f"{what}: off by {worst:.1e}"
        assert record["optimizer_steps"] == record["expected_optimizer_steps"], what
        check_collectives(case, record)
        check_tensor_parallel(case, record)


def check_tensor_parallel(case: dict, record: dict) -> None:
    """Gathers of the sequence: one before attention and MLP of each layer, and the head's.

    Backward scatters what forward gathered and gathers what it scattered; recompute gathers
    each once more, and checkpointing gathers again inside the layers. Experts run on the
    rank's own part of the sequence, so that an expert layer has one gather where others
    have two.
    """
    knobs = case["settings"]
    if knobs["tp_size"] == 1:
        return
    inside = LAYERS * (1 if case["model_name"] == "mixtral" else 2)
    per_micro_batch = 2 * (inside + 1)
    per_micro_batch += inside + 1 if knobs["tp_recompute_allgather"] else 0
    per_micro_batch += inside if knobs["activation_checkpointing"] == "full" else 0
    assert calls(record, "all_gather", "tp") == per_micro_batch * ACCUMULATION
