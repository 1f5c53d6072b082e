from dataclasses import replace

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.workload import Loss, Precision, Workload
from tuner.cost.constants import default_costs
from tuner.cost.memory.tensors import counts
from tuner.cost.time.compute import attention_work, ends_compute_s, layer_compute_s, moved_bytes
from tuner.model import published_model as read
from tuner.model import read_model_config

CLUSTER, COSTS = parse_cluster("h100-80gb"), default_costs()


def of(model, tokens, precision=Precision.BF16):
    return Workload(
        model=read(model), sequence_length=tokens, global_batch_size=8, precision=precision
    )


def keys_of(workload, gpu="h100-80gb"):
    """Keys that each query is multiplied with, from the work of forward alone."""
    once, twice = (
        attention_work(workload, parse_cluster(gpu), WHOLE, again=(again, again))
        for again in (0, 1)
    )
    return (twice - once) / (2 * 2 * workload.model.heads * workload.model.head_dim)


# Attention as fast as wide products, in heads of any size.
WHOLE = replace(COSTS.torch, attention_forward=1.0, attention_backward=1.0, attention_dim=0.0)
HALF_A_TILE = 64


def test_keys_of_a_query():
    for model, tokens, keys in [
        ("llama-3.1-8b", 4096, 2048 + HALF_A_TILE),  # what follows a query is skipped
        ("mistral-7b-v0.1", 4095, 4095 / 2 + HALF_A_TILE),  # its window holds the sequence
        ("mistral-7b-v0.1", 4096, 4096),  # it comes as a mask, with which all is computed
        # every sixth layer is full
        ("gemma-3-1b", 4096, (4096 * 22 + (2048 + HALF_A_TILE) * 4) / 26),
        ("gemma-2-2b", 1024, 1024),  # scores are capped
    ]:
        assert keys_of(of(model, tokens)) == pytest.approx(keys)


def test_torchs_own_operators_attend_to_all_keys():
    for model, precision, gpu, keys in [
        ("llama-3.1-8b", Precision.FP32, "h100-80gb", 1024),  # no kernel takes grouped fp32
        ("llama-2-7b", Precision.FP32, "h100-80gb", 512 + HALF_A_TILE),
        ("llama-2-7b", Precision.BF16, "t4", 1024),  # nor bf16 before Ampere
    ]:
        assert keys_of(of(model, 1024, precision), gpu) == pytest.approx(keys)


def test_backward_of_fused_attention_computes_scores_again():
    """Five products after two, where torch's own operators have four."""
    for model, backward in (("llama-3.1-8b", 5), ("gemma-2-2b", 4)):
        asked = of(model, 4096)
        once, twice = (
            attention_work(asked, CLUSTER, WHOLE, again=(again, again)) for again in (0, 1)
        )
        assert once / (twice - once) == pytest.approx((2 + backward) / 2)


def test_traffic_of_a_layer_by_hand():
    gpt = read("gpt2")  # two LayerNorms, two residuals, GELU between 768 and 3072
    assert moved_bytes(gpt, 2) == 2 * (2 * 2 * 768 + 2 * 3 * 768 + 2 * 3072)
    assert moved_bytes(gpt, 4) == 2 * moved_bytes(gpt, 2)
    llama = read("llama-3.1-8b")
    heads = 10 * 2 * (4096 + 1024)  # rotated queries and keys
    assert moved_bytes(llama, 2) == 2 * 36 * 4096 + heads + 2 * 3 * 2 * 4096 + 5 * 2 * 14336


def test_only_traffic_is_left_where_products_take_no_time():
    gpu = replace(CLUSTER.gpu, dense_bf16_flops_per_s=1e21, fp32_flops_per_s=1e21)
    cluster, asked = replace(CLUSTER, gpu=gpu), of("gpt2", 1024)
    narrow, mixed, wide = (
        layer_compute_s(replace(asked, precision=precision), Settings(), cluster, COSTS)
        for precision in (Precision.BF16, Precision.BF16_MIXED, Precision.FP32)
    )
    assert narrow == mixed
    assert wide == pytest.approx(2 * narrow, rel=1e-4)
    assert gpu.memory_bytes_per_s is not None
    weights = 3 * 2 * counts(asked.model).layer  # read twice, written
    elements = 3 * 1024 * moved_bytes(asked.model, 2)
    moved = weights + COSTS.torch.traffic_factor * elements
    assert narrow == pytest.approx(moved / gpu.memory_bytes_per_s, rel=1e-3)


def test_large_products_reach_what_was_measured_and_small_ones_less():
    """FLOPs per second of a layer without attention and traffic, over the published best."""
    fast = replace(CLUSTER, gpu=replace(CLUSTER.gpu, memory_bytes_per_s=1e18))
    quick = replace(COSTS.torch, attention_forward=1e9, attention_backward=1e9)
    costs, reached = replace(COSTS, torch=quick), []
    for model in ("gpt2", "llama-3.1-8b", "llama-3.1-405b"):
        asked, one = of(model, 1024), Settings(micro_batch_size=16)
        found = layer_compute_s(asked, one, fast, costs)
        reached.append(6 * counts(asked.model).layer * 16 * 1024 / found / 794.5e12)
    assert reached[0] < 0.6 < 0.7 < reached[1] < 0.9 < reached[2] < 1


def test_an_odd_vocabulary_takes_slower_kernels():
    odd, one = of("gpt2", 1024), Settings(micro_batch_size=8)
    padded = odd.model.as_config() | {"vocab_size": 50_304}
    even = replace(odd, model=read_model_config(padded, "even"))
    seconds = [ends_compute_s(each, one, CLUSTER, COSTS) for each in (odd, even)]
    flops = 6 * 768 * 50_257 * 8 * 1024 * (1 + COSTS.torch.small_dim * (1 / 768 + 1 / 50_257))
    more = flops * (1 / COSTS.torch.unaligned_flops_per_s - 1 / 794.5e12)
    assert seconds[0] - seconds[1] == pytest.approx(more, rel=0.01)
    exact = [ends_compute_s(replace(each, precision=Precision.FP32), one, CLUSTER, COSTS)
             for each in (odd, even)]  # fmt: skip
    assert exact[0] < exact[1]


def test_capped_scores_pass_through_memory():
    """In bf16 the operators of modeling_gemma2 move 44 bytes of each score forward, 62 backward."""
    capped, tokens = of("gemma-2-2b", 8192), 8192
    fields = {**capped.model.as_config(), "attn_logit_softcapping": None}
    plain = replace(capped, model=read_model_config(fields, "plain"))
    rate = CLUSTER.gpu.memory_bytes_per_s
    assert rate is not None
    at_once = replace(CLUSTER, gpu=replace(CLUSTER.gpu, dense_bf16_flops_per_s=1e21))
    for one, moved in (
        (Settings(), 44 + 62),
        (Settings(activation_checkpointing=Checkpointing.FULL), 2 * 44 + 62),
    ):
        with_cap, without = (
            layer_compute_s(asked, one, at_once, COSTS) for asked in (capped, plain)
        )
        scores = capped.model.heads * tokens**2
        assert with_cap - without == pytest.approx(moved * scores / rate, rel=1e-4)


def test_autocast_takes_the_loss_in_fp32_whatever_comes_in():
    """And FSDP, which casts what it gathers, does not."""
    cluster = parse_cluster("2xh100-80gb")
    for precision, sharding, is_wide in (
        (Precision.BF16_MIXED, Sharding.DDP, True),
        (Precision.BF16_MIXED, Sharding.FULL_SHARD, False),
        (Precision.BF16, Sharding.DDP, False),
    ):
        hf = of("llama-3.1-8b", 4096, precision)
        settings = Settings(sharding=sharding)
        own, fused = replace(hf, loss=Loss.OWN_DTYPE), replace(settings, fused_loss=True)
        theirs, ours = (ends_compute_s(w, settings, cluster, COSTS) for w in (hf, own))
        assert ours == theirs if is_wide else ours < 0.95 * theirs
        first, second = (ends_compute_s(w, fused, cluster, COSTS) for w in (hf, own))
        assert first == second
