"""A probe reports the same memory after any other in its processes as in new ones, to the byte.

The probes of a table run one after another in the same processes, and once more from the last to
the first: each then has others before it, and what is first in one series is last in the other.
"""

import pytest

from tests.cuda.probing import LLAMA, probe_all, spec
from workers.measuring.records import BadRecord

MODEL = LLAMA | {"hidden_size": 512, "num_hidden_layers": 2, "intermediate_size": 1408}
CHECKPOINTED = {"activation_checkpointing": "full"}

ALONE = [
    dict(micro=4),
    dict(micro=1, optimizer="sgd"),
    dict(precision="bf16_mixed", **CHECKPOINTED),
    dict(precision="fp32", micro=1, count=1),
    dict(optimizer="adamw_8bit"),
]
"""On one rank, where nothing is sharded."""
SHARDED = [
    dict(sharding="ddp", micro=4),
    dict(sharding="full_shard", micro=1),
    dict(sharding="ddp", sync_each_batch=False),
    dict(sharding="shard_grad_op", precision="bf16_mixed", sync_each_batch=False),
    dict(sharding="ddp", reduce_dtype="fp32", count=3),
    dict(sharding="full_shard", tp_size=2, micro=4),
    dict(sharding="full_shard", precision="fp32", **CHECKPOINTED),
    dict(sharding="ddp", activation_checkpointing="offload"),
    dict(sharding="ddp", precision="bf16_mixed", optimizer="adamw_8bit"),
    dict(sharding="full_shard", tp_size=2, tp_recompute_allgather=True),
    dict(sharding="full_shard", precision="bf16_mixed", optimizer="sgd"),
    dict(sharding="full_shard", cpu_offload=True),
]
"""On two ranks."""
EMULATED = [
    dict(sharding="ddp", micro=4),
    dict(sharding="full_shard", tp_size=2, micro=1),
    dict(sharding="shard_grad_op", precision="bf16_mixed", sync_each_batch=False),
    dict(sharding="ddp", reduce_dtype="fp32", count=3),
    dict(sharding="full_shard", precision="fp32", **CHECKPOINTED),
]
"""On one rank that stands for eight."""
ON_FOUR = [
    dict(sharding="ddp", micro=4),
    dict(sharding="hybrid_shard", micro=1),
    dict(sharding="shard_grad_op", tp_size=2, tp_recompute_allgather=True, **CHECKPOINTED),
    dict(sharding="full_shard", precision="bf16_mixed"),
]
"""On four ranks of two nodes."""


@pytest.mark.parametrize(
    ("ranks", "fidelity", "table"),
    [
        pytest.param(1, "measured", ALONE, id="1-rank"),
        pytest.param(2, "measured", SHARDED, id="2-ranks"),
        pytest.param(4, "measured", ON_FOUR, id="4-ranks"),
        pytest.param(8, "emulated", EMULATED, id="8-ranks-emulated"),
    ],
)
def test_memory_does_not_depend_on_the_probes_before(gpus, tmp_path, ranks, fidelity, table):
    gpus(ranks)
    specs = [spec(ranks, model=MODEL, fidelity=fidelity, **choices) for choices in table]
    # torch times a kernel that it compiles for the first time on copies of what the kernel changes
    # (clone_args in torch/_inductor/runtime/triton_heuristics.py); from then on it is kept on disk
    compiled = [one for one in specs if one["optimizer"] == "adamw_8bit"]
    down = _memory([*compiled, *specs], tmp_path / "down")[len(compiled) :]
    up = _memory(specs[::-1], tmp_path / "up")
    for choices, one, another in zip(table, down, up[::-1], strict=True):
        assert one == another, choices


def _memory(specs, folder):
    """Memory of each probe's ranks."""
    found = []
    for probed in probe_all(specs, folder):
        assert probed.measurement.outcome == "ok", probed.measurement.detail
        found.append([])
        for record in probed.records:
            assert not isinstance(record, BadRecord)
            assert record.memory is not None
            found[-1].append(record.memory)
    return found
