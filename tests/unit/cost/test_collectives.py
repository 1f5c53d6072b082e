"""The list of collectives, held against dry runs of the probe program.

``data/step_collectives.jsonl`` holds recorded ones; its first line has the models and versions.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tuner.core.cluster import Cluster, Gpu, Link, parse_cluster
from tuner.core.configuration import Settings, parse_settings
from tuner.core.workload import Precision, ReduceDtype, Workload
from tuner.cost.memory.shards import Axis
from tuner.cost.time.collectives import Op, Overlap, reducing_passes, step_collectives
from tuner.model import published_model as read
from tuner.model import read_model_config

RECORDED = Path(__file__).parent / "data" / "step_collectives.jsonl"
HEADER, *CASES = map(json.loads, RECORDED.read_text().splitlines())
LIVE: list[tuple[str, int, str, Mapping[str, Any]]] = [
    ("llama", 4, "full_shard", {"activation_checkpointing": "full", "sync_each_batch": False}),
    ("mixtral", 8, "full_shard", {"tp_size": 2, "tp_recompute_allgather": True}),
    ("qwen3_moe", 8, "hybrid_shard", {}),
    ("tied", 4, "ddp", {}),
]

Key = tuple[str, str, str, str]


def case_of(case: Mapping[str, Any]) -> tuple[Workload, Settings, Cluster]:
    settings = Settings.from_dict(case["settings"])
    cluster = Cluster(
        nodes=case["nodes"],
        gpus_per_node=case["gpus_per_node"],
        gpu=Gpu(name="some-gpu", memory_bytes=2**35),
        intra_node=Link(),
        inter_node=Link(),
    )
    sequences = settings.micro_batch_size * settings.gradient_accumulation_steps
    workload = Workload(
        model=read_model_config(HEADER["models"][case["model"]], case["model"]),
        sequence_length=HEADER["sequence_length"],
        global_batch_size=sequences * settings.data_parallel_size(cluster.world_size),
        precision=Precision(case["precision"]),
        reduce_dtype=ReduceDtype(case["reduce_dtype"]),
    )
    return workload, settings, cluster


def arithmetic(case: Mapping[str, Any]) -> dict[Key, tuple[int, float]]:
    found = step_collectives(*case_of(case))
    return {(c.op, c.axis, c.phase, c.overlap): (c.count, c.bytes) for c in found}


def name(case: Mapping[str, Any]) -> str:
    return f"{case['model']}-{case['nodes']}x{case['gpus_per_node']}-{case['precision']}"


def test_every_collective_of_recorded_dry_runs() -> None:
    for case in CASES:
        found = arithmetic(case)
        seen = {tuple(row[:4]): (row[4], row[5]) for row in case["collectives"]}
        assert found == seen


@pytest.mark.slow
def test_live_dry_runs_agree() -> None:
    """Those of the versions that are installed."""
    cases = [live_case(*case) for case in LIVE]
    lines = "".join(json.dumps(request(str(i), case)) + "\n" for i, case in enumerate(cases))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "workers.probe.dry"],
        input=lines, capture_output=True, text=True, timeout=1200, check=True,
    )  # fmt: skip
    answers = {a["id"]: a for a in map(json.loads, done.stdout.splitlines())}
    for i, case in enumerate(cases):
        (step,) = answers[str(i)]["trace"]["steps"]
        seen = {
            (c["op"], c["axis"], c["phase"], c["overlap"]): (c["count"], c["bytes"][0])
            for c in step["collectives"]
        }
        assert arithmetic(case) == seen


def live_case(model: str, ranks: int, sharding: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    settings = {"sharding": sharding, "micro_batch_size": 2, "gradient_accumulation_steps": 2}
    nodes = 2 if sharding == "hybrid_shard" else 1
    return {
        "model": model, "nodes": nodes, "gpus_per_node": ranks // nodes, "precision": "bf16",
        "reduce_dtype": "bf16", "settings": {**settings, **knobs},
    }  # fmt: skip


def request(identity: str, case: Mapping[str, Any]) -> dict[str, Any]:
    workload, settings, cluster = case_of(case)
    spec = {
        "format": 1, "model": workload.model.as_config(), "settings": settings.as_dict(),
        "sequence_length": workload.sequence_length, "optimizer": "sgd",
        "global_batch_size": workload.global_batch_size, "precision": str(workload.precision),
        "reduce_dtype": str(workload.reduce_dtype), "world_size": cluster.world_size,
        "gpus_per_node": cluster.gpus_per_node, "device": "cuda", "memory_limit_bytes": None,
        "seed": 0, "accumulation_counts": [2], "warmup_steps": 1, "tracked_steps": 1,
        "measured_steps": 1, "minimum_steps": 1, "time_budget_s": 1.0,
    }  # fmt: skip
    return {"id": identity, "spec": spec, "micro_batch_sizes": [2], "accumulation_counts": [2]}


def listed(text: str, cluster: str = "2x8xh100-80gb", model: str = "llama-3.1-8b") -> list[Any]:
    settings = parse_settings(text)
    workload = Workload(model=read(model), sequence_length=512, global_batch_size=64)
    return list(step_collectives(workload, settings, parse_cluster(cluster)))


def total(found: list[Any], **wanted: object) -> tuple[int, float]:
    chosen = [c for c in found if all(asdict(c)[k] == v for k, v in wanted.items())]
    return sum(c.count for c in chosen), sum(c.bytes for c in chosen)


def test_putting_off_synchronisation_reduces_once() -> None:
    text = "sharding={},gradient_accumulation_steps=4,sync_each_batch={}"
    for sharding, op in (("full_shard", Op.REDUCE_SCATTER), ("ddp", Op.ALL_REDUCE)):
        each = total(listed(text.format(sharding, "true")), op=op)
        last = total(listed(text.format(sharding, "false")), op=op)
        assert each == (4 * last[0], 4 * last[1])
    gathers = [total(listed(text.format("full_shard", sync)), op=Op.ALL_GATHER)
               for sync in ("true", "false")]  # fmt: skip
    assert gathers[0] == gathers[1]
    assert reducing_passes(parse_settings(text.format("ddp", "false"))) == 1


def test_ddp_reduces_in_the_reductions_format() -> None:
    workload = Workload(
        model=read("llama-3.2-1b"), sequence_length=512, global_batch_size=64,
        precision=Precision.BF16_MIXED, reduce_dtype=ReduceDtype.FP32,
    )  # fmt: skip
    cluster = parse_cluster("8xh100-80gb")
    wide = step_collectives(workload, Settings(), cluster)
    narrow = step_collectives(replace(workload, reduce_dtype=ReduceDtype.BF16), Settings(), cluster)
    reduced = [total(list(found), op=Op.ALL_REDUCE) for found in (wide, narrow)]
    assert reduced[0][1] == 2 * reduced[1][1] == 4 * workload.model.parameters
    assert total(list(wide), op=Op.ALL_REDUCE, overlap=Overlap.EXPOSED)[0] == 1
    assert total(list(wide), op=Op.BROADCAST, axis=Axis.DP) == (1, 2 * 4 * 32)  # rotary
