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
