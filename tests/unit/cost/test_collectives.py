"""The list of collectives, held against dry runs of the probe program.

``data/step_collectives.jsonl`` holds recorded ones; its first line has the models and versions.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

from tuner.core.cluster import Cluster, Gpu, Link, parse_cluster
from tuner.core.configuration import Settings, parse_settings
from tuner.core.workload import Precision, ReduceDtype, TensorParallel, Workload
from tuner.cost.memory.shards import Axis
from tuner.cost.memory.tensors import counts
from tuner.cost.time.collectives import Op, Overlap, reducing_passes, step_collectives
from tuner.model import published_model as read
from tuner.model import read_model_config

RECORDED = Path(__file__).parent / "data" / "step_collectives.jsonl"
HEADER, *CASES = map(json.loads, RECORDED.read_text().splitlines())


def case_of(case):
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
        tensor_parallel=TensorParallel(case.get("tensor_parallel", "sequence_parallel")),
    )
    return workload, settings, cluster


def arithmetic(case):
    found = step_collectives(*case_of(case))
    return {(c.op, c.axis, c.phase, c.overlap): (c.count, c.bytes) for c in found}


def test_every_collective_of_recorded_dry_runs():
    for case in CASES:
        found = arithmetic(case)
        seen = {tuple(row[:4]): (row[4], row[5]) for row in case["collectives"]}
        assert found == seen


def listed(text, cluster="2x8xh100-80gb", model="llama-3.1-8b"):
    settings = parse_settings(text)
    workload = Workload(model=read(model), sequence_length=512, global_batch_size=64)
    return list(step_collectives(workload, settings, parse_cluster(cluster)))


def total(found, **wanted):
    chosen = [c for c in found if all(asdict(c)[k] == v for k, v in wanted.items())]
    return sum(c.count for c in chosen), sum(c.bytes for c in chosen)


def test_putting_off_synchronisation_reduces_once():
    text = "sharding={},gradient_accumulation_steps=4,sync_each_batch={}"
    for sharding, op in (("full_shard", Op.REDUCE_SCATTER), ("ddp", Op.ALL_REDUCE)):
        each = total(listed(text.format(sharding, "true")), op=op)
        last = total(listed(text.format(sharding, "false")), op=op)
        assert each == (4 * last[0], 4 * last[1])
    gathers = [total(listed(text.format("full_shard", sync)), op=Op.ALL_GATHER)
               for sync in ("true", "false")]  # fmt: skip
    assert gathers[0] == gathers[1]
    assert reducing_passes(parse_settings(text.format("ddp", "false"))) == 1


def test_putting_off_the_all_reduce_scatters_each_time_and_joins_replicas_once():
    text = "sharding=hybrid_shard,gradient_accumulation_steps=4,defer_all_reduce={}"
    each, last = (listed(text.format(value)) for value in ("false", "true"))
    joined = total(last, op=Op.ALL_REDUCE)
    assert total(each, op=Op.ALL_REDUCE) == (4 * joined[0], 4 * joined[1])
    rest = [[c for c in found if c.op is not Op.ALL_REDUCE] for found in (each, last)]
    assert rest[0] == rest[1]


def test_ddp_reduces_in_the_reductions_format():
    workload = Workload(
        model=read("llama-3.2-1b"), sequence_length=512, global_batch_size=64,
        precision=Precision.BF16_MIXED, reduce_dtype=ReduceDtype.FP32,
    )  # fmt: skip
    cluster = parse_cluster("8xh100-80gb")
    wide = step_collectives(workload, Settings(), cluster)
    narrow = step_collectives(replace(workload, reduce_dtype=ReduceDtype.BF16), Settings(), cluster)
    reduced = [total(list(found), op=Op.ALL_REDUCE) for found in (wide, narrow)]
    assert reduced[0][1] == 2 * reduced[1][1] == 4 * counts(workload.model).parameters
    assert total(list(wide), op=Op.ALL_REDUCE, overlap=Overlap.EXPOSED)[0] == 1
    assert total(list(wide), op=Op.BROADCAST, axis=Axis.DP) == (1, 2 * 4 * 32)  # rotary


def test_frameworks_reduce_unasked_in_fp32_under_ddp_and_in_bf16_under_fsdp():
    cluster = parse_cluster("8xh100-80gb")
    unasked, wide, narrow = (
        Workload(
            model=read("llama-3.2-1b"), sequence_length=512, global_batch_size=64,
            precision=Precision.BF16_MIXED, reduce_dtype=reduce,
        )
        for reduce in (ReduceDtype.FRAMEWORK, ReduceDtype.FP32, ReduceDtype.BF16)
    )  # fmt: skip
    ddp, sharded = parse_settings("sharding=ddp"), parse_settings("sharding=full_shard")
    assert step_collectives(unasked, ddp, cluster) == step_collectives(wide, ddp, cluster)
    assert step_collectives(unasked, sharded, cluster) == step_collectives(narrow, sharded, cluster)
    full = replace(unasked, precision=Precision.BF16, reduce_dtype=ReduceDtype.FRAMEWORK)
    assert full.reduce_dtype is ReduceDtype.BF16  # of one format there is nothing to choose
