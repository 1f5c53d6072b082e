from dataclasses import replace

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.workload import Precision, Workload
from tuner.cost.constants import default_costs
from tuner.cost.memory.pipeline import Stage
from tuner.cost.time.compute import attended_keys, stage_compute_s
from tuner.model import published_model as read
from tuner.model import read_model_config

CLUSTER, COSTS = parse_cluster("h100-80gb"), default_costs()
LAYER = Stage(layers=1, embedding=False, head=False, blocks=1)


def seconds(model: str, tokens: int, stage: Stage = LAYER) -> float:
    workload = Workload(model=read(model), sequence_length=tokens, global_batch_size=8)
    return stage_compute_s(workload, Settings(), CLUSTER, COSTS, stage)


def test_experts_with_few_tokens_read_their_weights() -> None:
    """128 experts' weights are read for 64 tokens nearly as for 1024."""
    few, many = (seconds("qwen3-30b-a3b", tokens) for tokens in (64, 1024))
    assert many / few < 4
    dense_few, dense_many = (seconds("qwen3-4b", tokens) for tokens in (64, 1024))
    assert dense_many / dense_few > 15


def of(model: str, tokens: int, precision: Precision = Precision.BF16) -> Workload:
    return Workload(
        model=read(model), sequence_length=tokens, global_batch_size=8, precision=precision
    )


def test_keys_of_a_query() -> None:
    for model, tokens, keys in [
        ("llama-3.1-8b", 4096, 2048),  # what follows a query is skipped
        ("mistral-7b-v0.1", 4095, 4095 / 2),  # its window holds the sequence
        ("mistral-7b-v0.1", 4096, 4096),  # it comes as a mask, with which all is computed
        ("gemma-3-1b", 4096, 4096 * (22 / 26 + 4 / 26 / 2)),  # every sixth layer is full
        ("gemma-2-2b", 1024, 1024),  # scores are capped
    ]:
        assert attended_keys(of(model, tokens), CLUSTER) == pytest.approx(keys)


def test_torchs_own_operators_attend_to_all_keys() -> None:
    for model, precision, gpu, keys in [
        ("llama-3.1-8b", Precision.FP32, "h100-80gb", 1024),  # no kernel takes grouped fp32
        ("llama-2-7b", Precision.FP32, "h100-80gb", 512),
        ("llama-2-7b", Precision.BF16, "t4", 1024),  # nor bf16 before Ampere
    ]:
        assert attended_keys(of(model, 1024, precision), parse_cluster(gpu)) == keys


def test_traffic_is_as_wide_as_the_precision() -> None:
    """Without FLOPs to speak of, the same activations take twice the bytes in fp32."""
    gpu = replace(CLUSTER.gpu, dense_bf16_flops_per_s=1e21, fp32_flops_per_s=1e21)
    cluster = replace(CLUSTER, gpu=gpu)
    for name in ("llama-3.1-8b", "qwen3-30b-a3b"):
        fields = read(name).as_config()
        fields["num_key_value_heads"] = fields["num_attention_heads"]  # grouped fp32 has no kernel
        asked = replace(of(name, 1024), model=read_model_config(fields, name))
        narrow, mixed, wide = (
            stage_compute_s(replace(asked, precision=precision), Settings(), cluster, COSTS, LAYER)
            for precision in (Precision.BF16, Precision.BF16_MIXED, Precision.FP32)
        )
        assert narrow == mixed
        assert wide == pytest.approx(2 * narrow, rel=1e-4)


def test_capped_scores_pass_through_memory() -> None:
    """In bf16 the operators of modeling_gemma2 move 44 bytes of each score forward, 62 backward."""
    capped, tokens = of("gemma-2-2b", 8192), 8192
    fields = {**capped.model.as_config(), "attn_logit_softcapping": None}
    plain = replace(capped, model=read_model_config(fields, "plain"))
    rate = CLUSTER.gpu.memory_bytes_per_s
    assert rate is not None
    for one, moved in (
        (Settings(), 44 + 62),
        (Settings(activation_checkpointing=Checkpointing.FULL), 2 * 44 + 62),
    ):
        with_cap, without = (
            stage_compute_s(asked, one, CLUSTER, COSTS, LAYER) for asked in (capped, plain)
        )
        scores = capped.model.heads * tokens**2
        assert with_cap - without == pytest.approx(moved * scores / rate)


def test_scores_of_torchs_own_operators_pass_through_memory() -> None:
    """On a T4 they move 44 bytes of each score forward, all in fp32 but for a copy, 40 backward."""
    asked, tokens, cluster = of("llama-3.1-8b", 8192), 8192, parse_cluster("t4")
    known = replace(cluster.gpu, dense_bf16_flops_per_s=6.5e13)
    ampere = replace(known, compute_capability="8.0")
    scores, rate = asked.model.heads * tokens**2, cluster.gpu.memory_bytes_per_s
    assert rate is not None
    for one, moved in (
        (Settings(), 44 + 40),
        (Settings(activation_checkpointing=Checkpointing.FULL), 2 * 44 + 40),
    ):
        by_operators, fused = (
            stage_compute_s(asked, one, replace(cluster, gpu=gpu), COSTS, LAYER)
            for gpu in (known, ampere)
        )
        assert by_operators - fused == pytest.approx(moved * scores / rate)
