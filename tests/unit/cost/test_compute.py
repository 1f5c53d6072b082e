from dataclasses import replace

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.workload import Precision, Workload
from tuner.cost.constants import default_costs
from tuner.cost.memory.pipeline import Stage
from tuner.cost.time.compute import attended_keys, peak_flops_per_s, stage_compute_s
from tuner.model import published_model as read
from tuner.model import read_model_config

CLUSTER, COSTS = parse_cluster("h100-80gb"), default_costs()
LAYER = Stage(layers=1, embedding=False, head=False, blocks=1)
HEAD = Stage(layers=0, embedding=False, head=True, blocks=1)


def seconds(model: str, tokens: int, stage: Stage = LAYER) -> float:
    workload = Workload(model=read(model), sequence_length=tokens, global_batch_size=8)
    return stage_compute_s(workload, Settings(), CLUSTER, COSTS, stage)


def test_the_rate_is_the_precisions() -> None:
    rates = [
        peak_flops_per_s(
            Workload(
                model=read("gpt2"), sequence_length=8, global_batch_size=1, precision=precision
            ),
            CLUSTER,
        )
        for precision in Precision
    ]
    assert rates == [989.5e12, 989.5e12, 67e12]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt2"])
def test_a_layer_takes_longer_than_at_the_peak(model: str) -> None:
    config = read(model)
    flops = 6 * (config.active_parameters - config.embedding_parameters) / config.layers
    ideal = flops * 1024 / 989.5e12
    assert ideal < seconds(model, 1024) < 50 * ideal


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


@pytest.mark.parametrize(
    ("model", "tokens", "keys"),
    [
        ("llama-3.1-8b", 4096, 2048),  # what follows a query is skipped
        ("mistral-7b-v0.1", 4095, 4095 / 2),  # its window holds the sequence
        ("mistral-7b-v0.1", 4096, 4096),  # it comes as a mask, with which all is computed
        ("gemma-3-1b", 4096, 4096 * (22 / 26 + 4 / 26 / 2)),  # every sixth layer is full
        ("gemma-2-2b", 1024, 1024),  # scores are capped
    ],
)
def test_keys_of_a_query(model: str, tokens: int, keys: float) -> None:
    assert attended_keys(of(model, tokens), CLUSTER) == pytest.approx(keys)


@pytest.mark.parametrize(
    ("model", "precision", "gpu", "keys"),
    [
        ("llama-3.1-8b", Precision.FP32, "h100-80gb", 1024),  # no kernel takes grouped fp32
        ("llama-2-7b", Precision.FP32, "h100-80gb", 512),
        ("llama-2-7b", Precision.BF16, "t4", 1024),  # nor bf16 before Ampere
    ],
)
def test_torchs_own_operators_attend_to_all_keys(
    model: str, precision: Precision, gpu: str, keys: int
) -> None:
    assert attended_keys(of(model, 1024, precision), parse_cluster(gpu)) == keys


def test_more_keys_take_longer_by_their_flops() -> None:
    config, tokens = read("mistral-7b-v0.1"), 8192
    workload = of("mistral-7b-v0.1", tokens)
    few, many = (
        stage_compute_s(workload, Settings(), CLUSTER, COSTS, LAYER, keys=keys)
        for keys in (tokens / 2, tokens)
    )
    flops = 12 * tokens / 2 * config.heads * config.head_dim * tokens
    least = flops / 989.5e12
    assert least < many - few < 3 * least
    assert few == stage_compute_s(workload, Settings(), CLUSTER, COSTS, LAYER)


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


def test_the_head_costs_its_vocabulary() -> None:
    assert seconds("llama-3.1-8b", 1024, HEAD) > 3 * seconds("llama-2-7b", 1024, HEAD)


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
