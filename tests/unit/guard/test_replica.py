"""Replicas have their settings' knobs, few ranks, and one reference for all of a model."""

from dataclasses import replace
from importlib.resources import files

import pytest

from tests.questions import question_about
from tests.records import VERSIONS
from tuner.core.adapter import Adapter
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.packing import Packing
from tuner.core.workload import Optimizer, Precision
from tuner.cost.memory.tensors import counts
from tuner.errors import UsageError
from tuner.guard.replica import (
    GLOBAL_BATCH,
    MOST_EXPERTS,
    MOST_RANKS,
    VOCABULARY,
    NoReplicaError,
    family_of,
    replica_of,
    small_model,
)
from tuner.model import load_model, read_model_config

FULL = "sharding=full_shard,gradient_accumulation_steps=16"


def question(cluster="8xa100-80gb", model="llama-3.1-8b", name="torch", **versions):
    stated = {"nanotron": "0.4"} if name == "nanotron" else {**VERSIONS, **versions}
    return question_about(model, cluster, framework(name, stated, {}), tokens=2048, batch=256)


def settings(text):
    return parse_settings(text)


def test_few_ranks_keep_the_structure():
    for cluster, text, ranks, nodes, tp, micro in [
        ("8xa100-80gb", FULL, 2, 1, 1, 4),
        ("8xa100-80gb", f"{FULL},tp_size=8", 2, 1, 2, 8),
        ("8xa100-80gb", f"{FULL},tp_size=4", 4, 1, 2, 4),
        ("4x8xa100-80gb", FULL.replace("full", "hybrid"), 4, 2, 1, 2),
        ("4x8xa100-80gb", f"{FULL.replace('full', 'hybrid')},tp_size=4", 8, 2, 2, 2),
        ("a100-80gb", FULL.replace("full_shard", "ddp"), 1, 1, 1, 8),
    ]:
        replica = replica_of(question(cluster), settings(text))
        assert (replica.cluster.world_size, replica.cluster.nodes) == (ranks, nodes)
        assert replica.cluster.world_size <= MOST_RANKS
        assert replica.settings.tp_size == tp
        assert replica.settings.micro_batch_size == micro
        spec = replica.spec()
        replicas = ranks // tp
        steps = replica.settings.gradient_accumulation_steps
        assert micro * steps * replicas == spec["global_batch_size"] == GLOBAL_BATCH
        assert replica.workload.precision is Precision.FP32


def test_what_differs_has_another_verdict():
    keys = {
        replica_of(asked, settings(text), precision).key(versions)
        for asked, text, precision, versions in (
            (question(), FULL, None, VERSIONS),
            (question(), FULL, None, VERSIONS | {"accelerate": "1.14.0"}),
            (question(), FULL, Precision.BF16, VERSIONS),
            (question(), "sharding=full_shard", None, VERSIONS),  # does not accumulate
            (question(), f"{FULL},sync_each_batch=false", None, VERSIONS),
            (question(model="mixtral-8x7b"), FULL, None, VERSIONS),
        )
    }
    assert len(keys) == 6


def with_optimizer(optimizer):
    asked = question()
    return replace(asked, workload=replace(asked.workload, optimizer=optimizer))


def test_a_replica_is_trained_with_the_workloads_optimizer():
    replicas = {kind: replica_of(with_optimizer(kind), settings(FULL)) for kind in Optimizer}
    used = {kind: replica.spec()["optimizer"] for kind, replica in replicas.items()}
    assert used == {**{one: str(one) for one in Optimizer}, "adamw_8bit": "adamw"}
    assert replicas[Optimizer.SGD].reference.spec()["optimizer"] == "sgd"
    assert replicas[Optimizer.SGD].notes == ()
    assert replicas[Optimizer.ADAMW_8BIT].notes == (
        "the replica was trained with adamw in the place of adamw_8bit",
    )


def test_verdicts_are_of_the_optimizer_that_trained():
    adamw, eight_bit, sgd = (
        (replica_of(asked, settings(FULL)).key(VERSIONS), family_of(asked))
        for asked in map(with_optimizer, (Optimizer.ADAMW, Optimizer.ADAMW_8BIT, Optimizer.SGD))
    )
    assert adamw == eight_bit
    assert not set(adamw) & set(sgd)


def test_no_family_where_a_version_is_not_known():
    asked = replace(question(), framework=framework("torch", {"torch": "2.13.0"}, {}))
    assert family_of(question())
    assert family_of(asked) == ""


def test_one_process_is_the_reference_of_all():
    replicas = [
        replica_of(question(), settings(t)) for t in (FULL, f"{FULL},sync_each_batch=false")
    ]
    references = {replica.reference.key(VERSIONS) for replica in replicas}
    assert len(references) == 1
    alone = replicas[0].reference
    assert alone.cluster.world_size == alone.settings.gradient_accumulation_steps == 1
    assert alone.settings.micro_batch_size == GLOBAL_BATCH
    assert alone.workload == replicas[0].workload


def test_what_has_no_replica():
    with pytest.raises(NoReplicaError, match="nanotron"):
        replica_of(question(name="nanotron"), settings(FULL))
    hybrid = "sharding=hybrid_shard,tp_size=3"
    with pytest.raises(NoReplicaError, match="12 ranks"):
        replica_of(question("4x6xa100-80gb"), settings(hybrid))


def with_adapter(**fields):
    asked = question()
    return replace(asked, workload=replace(asked.workload, adapter=Adapter(**fields)))


def test_a_replicas_rows_are_of_several_documents():
    """Kept apart as the workload's are, but for windows, which are shorter in the small model."""
    for model, wanted in (("llama-3.1-8b", "varlen"), ("mistral-7b-v0.1", "position_ids")):
        asked = question()
        work = replace(asked.workload, model=load_model(model), sequence_length=2048)
        packed = replace(asked, workload=replace(work, packing=Packing()))
        replica = replica_of(packed, settings(FULL))
        assert replica.workload.packing.variant == wanted
        assert len(replica.workload.row) == 3
        assert any("FlashAttention" in one for one in replica.notes) == (wanted == "varlen")
        assert family_of(packed) != family_of(replace(asked, workload=work))


def test_a_replicas_adapter_is_scaled_as_usual():
    """Whatever the workload's alpha: cut with the rank alone it would scale updates by hundreds."""
    asked = [
        with_adapter(), with_adapter(rank=256, alpha=512), with_adapter(alpha=2**16, dropout=0),
    ]  # fmt: skip
    replicas = [replica_of(one, settings(FULL)) for one in asked]
    assert {(one.workload.adapter.rank, one.workload.adapter.alpha) for one in replicas} == {
        (4, 8.0)
    }
    assert (
        len({one.key(VERSIONS) for one in replicas}) == len({family_of(one) for one in asked}) == 1
    )
    newer, other = VERSIONS | {"peft": "0.21.0"}, VERSIONS | {"peft": "0.22.0"}
    replica = replicas[0]
    assert len({replica.key(VERSIONS), replica.key(newer), replica.key(other)}) == 3
    whole = replica_of(question(), settings(FULL))
    assert whole.key(newer) == whole.key(VERSIONS)  # which needs no library of adapters
    with pytest.raises(UsageError, match=r"alpha.*above 0"):
        Adapter(alpha=0)


NAMES = sorted(
    path.name.removesuffix(".json") for path in files("tuner.catalog").joinpath("models").iterdir()
)
LLAMA = {
    "model_type": "llama", "hidden_size": 768, "num_hidden_layers": 8, "num_attention_heads": 12,
    "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 999, "head_dim": 64,
    "max_position_embeddings": 256,
}  # fmt: skip


def small(name, parts=2):
    return small_model(load_model(name), parts)[0]


def test_every_model_of_the_catalogue_has_a_small_one():
    for name in NAMES:
        whole = load_model(name)
        if whole.is_traced:
            with pytest.raises(NoReplicaError, match="known by dry runs alone"):
                small(name)
            continue
        found = small(name)
        assert found.model_type == whole.model_type
        assert counts(found).parameters < 4_000_000
        assert found.vocab_size == VOCABULARY
        assert found.tied_embeddings == whole.tied_embeddings
        assert set(found.layer_kinds) == set(whole.layer_kinds)
        if whole.kv_heads not in (1, whole.heads):
            assert found.heads // found.kv_heads == whole.heads // whole.kv_heads
            assert found.kv_heads % 2 == 0
        assert (found.kv_heads == found.heads) == (whole.kv_heads == whole.heads)
        assert found.intermediate_size % 16 == 0


def test_experts_are_fewer_and_several_are_chosen():
    whole = load_model("qwen3-235b-a22b")
    assert (whole.experts, whole.experts_per_token) == (128, 8)
    found = small("qwen3-235b-a22b")
    assert (found.experts, found.experts_per_token) == (MOST_EXPERTS, 2)
    assert (small("mixtral-8x7b").experts, small("mixtral-8x7b").experts_per_token) == (8, 2)


def test_many_layers_without_a_pattern():
    config = LLAMA | {"model_type": "smollm3", "num_hidden_layers": 80}
    kinds = [int(i * i % 7 < 3 or i % 11 == 0) for i in range(80)]
    with pytest.raises(NoReplicaError, match="no pattern"):
        small_model(read_model_config(config | {"no_rope_layers": kinds}, "m"), 1)
