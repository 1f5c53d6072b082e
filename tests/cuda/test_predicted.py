"""What is predicted is what torch's caching allocator shows, on small models."""

import pytest

from tests.cuda.probing import LLAMA, probe_all, spec
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.cost.prediction import predict
from tuner.dryrun import DryRunner, dry_run_versions, plan_dry_runs
from tuner.model import read_model_config

SPLIT, UNSPLIT = 0.005, 0.01
"""How far off predictions may be; the second where blocks are larger than their tensors."""
EVEN = {**LLAMA, "intermediate_size": 4096, "vocab_size": 32_768}
"""Its tensors fill segments, or leave enough of them for others."""
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2048,
    "vocab_size": 32_768, "max_position_embeddings": 4096, "num_local_experts": 8,
    "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 1024, "n_layer": 4, "n_head": 16, "vocab_size": 49_152,
    "n_positions": 1024,
}  # fmt: skip
ODD = {**LLAMA, "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 6}
"""Its MLP's matrices are 21.5 MiB in bf16, and 43 MiB in fp32."""

CASES = [
    ("ddp", 8, SPLIT, {"sharding": "ddp", "micro": 4}),
    ("ddp, the last synchronized", 8, SPLIT,
     {"sharding": "ddp", "precision": "bf16_mixed", "sync_each_batch": False}),
    ("full_shard", 8, SPLIT, {"sharding": "full_shard", "micro": 4}),
    ("full_shard, unsharded gradients kept", 8, SPLIT,
     {"sharding": "full_shard", "sync_each_batch": False, "activation_checkpointing": "full"}),
    ("inputs of layers on the host", 8, SPLIT,
     {"sharding": "full_shard", "micro": 4, "activation_checkpointing": "offload",
      "fused_loss": True, "sequence_length": 2048, "model": {**EVEN, "num_hidden_layers": 12}}),
    ("shard_grad_op", 8, SPLIT, {"sharding": "shard_grad_op", "precision": "bf16_mixed"}),
    ("hybrid_shard of experts", 16, SPLIT,
     {"sharding": "hybrid_shard", "count": 1, "model": MIXTRAL}),
    ("gpt2, sgd", 8, SPLIT, {"sharding": "full_shard", "model": GPT2, "optimizer": "sgd"}),
    ("tensor parallelism", 4, SPLIT,
     {"sharding": "ddp", "tp_size": 4, "tp_recompute_allgather": True, "micro": 4}),
    ("both", 8, SPLIT, {"sharding": "full_shard", "tp_size": 2, "micro": 4}),
    ("8-bit, in the optimizer's step", 8, SPLIT,
     {"sharding": "ddp", "optimizer": "adamw_8bit", "micro": 1, "count": 1,
      "sequence_length": 128}),
    ("blocks that are not split", 2, UNSPLIT,
     {"sharding": "ddp", "model": ODD, "count": 1, "micro": 1, "precision": "bf16_mixed",
      "activation_checkpointing": "full"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def dry_runner():
    """A process for the dry runs of all cases; it sees no GPU."""
    with DryRunner(limit_s=300.0, jobs=1) as runner:
        yield runner


@pytest.mark.parametrize(
    ("ranks", "within", "choices"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_dry_run_says_what_the_allocator_shows(
    ranks, within, choices, gpus, dry_runner,
    tmp_path
):  # fmt: skip
    values = spec(ranks, **{"model": EVEN, **choices}, fidelity="emulated")
    values["gpus_per_node"] = min(ranks, 8)
    said = _predicted(values, dry_runner)
    gpus(1)
    (probed,) = probe_all([values], tmp_path)
    memory = probed.measurement.memory
    assert memory is not None, probed.measurement.detail
    assert said == pytest.approx(memory.allocated_bytes, rel=within)


def _predicted(values, runner):
    workload, settings = _workload(values), Settings.from_dict(values["settings"])
    cluster, of = _cluster(values), framework("torch")
    plan = plan_dry_runs(workload, cluster, of, settings, dry_run_versions())
    (dry_run,) = runner.made([plan])
    assert not dry_run.error
    found = predict(workload, cluster, of, settings, profile=dry_run.profile)
    assert found.allocated_bytes.value is not None
    return found.allocated_bytes.value


def _cluster(values):
    """Of GPUs as the stand-in's."""
    nodes = values["world_size"] // values["gpus_per_node"]
    return parse_cluster(f"{nodes}x{values['gpus_per_node']}xh200")


def _workload(values):
    return Workload(
        model=read_model_config(values["model"], "small"),
        sequence_length=values["sequence_length"],
        global_batch_size=values["global_batch_size"],
        optimizer=Optimizer(values["optimizer"]),
        precision=Precision(values["precision"]),
        reduce_dtype=ReduceDtype(values["reduce_dtype"]),
    )
