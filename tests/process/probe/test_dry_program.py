"""The dry-run program: requests in, traces and errors out."""

import json
from typing import Any

import pytest
import torch

from tests.process.probe.specs import MODELS, SHAPE, answers, peak_bytes, request
from tests.process.probe.specs import spec as spec_of
from tuner.cost.time.compute import LAYER_KERNELS
from workers.probe.dry.run import show_whole
from workers.probe.model import build_on_meta

# one run of the program for all
pytestmark = pytest.mark.xdist_group("dry_program")

Answers = dict[str, Any]

GPT2 = {
    "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64,
    "n_positions": 64,
}  # fmt: skip


# Each eighth layer of its class has attention, which its fields do not say.
JAMBA = {**SHAPE, "model_type": "jamba", "num_experts": 4}
QWEN3_NEXT = {
    **SHAPE, "model_type": "qwen3_next", "head_dim": 32, "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2,
}  # fmt: skip
# A layer that neither shallow copy has.
COPIES = [
    {**MODELS["qwen3_moe"], "num_hidden_layers": depth, "mlp_only_layers": [7]}
    for depth in (4, 6, 9)
]


def spec(*given, **choices):
    return spec_of(*given, sequence_length=64, **choices)


@pytest.fixture(scope="module")
def found(preloaded):
    """The answers of one run of the program."""
    cuda = {"device": "cuda", "precision": "bf16"}
    llama = spec("llama", 8, sharding="full_shard", **cuda)
    tensor_parallel = {"tp_size": 2, "tp_recompute_allgather": True}
    requests = [
        {**request("sizes", llama, micro_batch_sizes=[1, 2], accumulation_counts=[1, 2]),
         "work": True},
        request("at 5", llama, micro_batch_sizes=[5], accumulation_counts=[1, 2]),
        request("no sync", spec("llama", 8, sharding="full_shard", sync_each_batch=False, **cuda)),
        request("ddp", spec("llama", 2, precision="bf16_mixed", device="cuda")),
        request("casts", spec("llama", 2, precision="bf16", reduce_dtype="fp32",
                              sync_each_batch=False)),
        request("512", spec("mixtral", 512, sharding="hybrid_shard", **tensor_parallel, **cuda)),
        request("tp", spec("llama", 4, sharding="full_shard", **tensor_parallel, **cuda),
                micro_batch_sizes=[2, 3]),
        request("tp at 5", spec("llama", 4, sharding="full_shard", **tensor_parallel, **cuda),
                micro_batch_sizes=[5]),
        request("three sizes", llama, micro_batch_sizes=[1, 2, 3]),
        request("no count", llama, accumulation_counts=[0]),
        request("no plan", spec(GPT2, 2, tp_size=2)),
        request("refused", spec({**GPT2, "n_head": 5}, 2)),
        *(
            {**request(f"copy of {copy['num_hidden_layers']}", spec(copy)), "copies": COPIES}
            for copy in COPIES[:2]
        ),
        {**request("odd copies", llama), "copies": COPIES},
        request("unknown", spec({"model_type": "xyz", "vocab_size": 8}, 2)),
        request("linear attention", spec(QWEN3_NEXT, 2)),
    ]  # fmt: skip
    lines = ["{", *map(json.dumps, requests), '{"id": "odd", "spec": 1}', "[]"]
    limits = ("--limit-s", "200", "--wall-s", "600", "--jobs", "2")
    return answers(preloaded, lines, ("-m", "workers.probe.dry", *limits))


def trace(found, name):
    assert "trace" in found[name], found[name]
    return found[name]["trace"]


def envelope(trace, step, size):
    low, high = trace["micro_batch_sizes"]
    lines = [x["bytes"] for s in trace["steps"][step]["segments"] for x in s["lines"]]
    return max(a + (b - a) * (size - low) // (high - low) for a, b in lines)


def test_segments_are_the_steps_parts_in_order(found):
    once, twice = trace(found, "sizes")["steps"]
    layers = [f"layer {i}" for i in range(4)]
    expected = [("forward", part) for part in ("before", *layers, "after")]
    expected += [("loss", "after")]
    expected += [("backward", part) for part in ("after", *layers[::-1], "before")]
    expected += [("optimizer", "after")]
    parts = [(s["micro_batch"], s["phase"], s["part"]) for s in twice["segments"]]
    assert parts == [(m, *part) for m in (0, 1) for part in expected]
    assert [once["accumulation"], twice["accumulation"]] == [1, 2]


def test_what_is_computed_is_counted_of_operators(found):
    """Of a Llama's layers: products 2 FLOPs a parameter and token, and twice that in backward."""
    trace_ = trace(found, "sizes")
    hidden, kv, inner = SHAPE["hidden_size"], SHAPE["hidden_size"] // 2, SHAPE["intermediate_size"]
    layers, vocabulary = 4, SHAPE["vocab_size"]
    weights = layers * (2 * hidden**2 + 2 * hidden * kv + 3 * hidden * inner)
    work = {(one["phase"], one["part"]): one["amounts"] for one in trace_["work"]}
    for index, tokens in enumerate((64, 128)):
        products = {key: one["product_flops"][index] for key, one in work.items()}
        # the angles of rotary embeddings are a product too
        assert products["forward", "layers"] == 2 * tokens * weights
        assert products["backward", "layers"] == 4 * tokens * weights
        head = 2 * tokens * hidden * vocabulary
        assert products["forward", "ends"] == pytest.approx(head, rel=0.001)
        assert products["backward", "ends"] == 2 * head
        # two products of half of the keys and half a tile, and five in backward
        scores = layers * 2 * tokens * (64 + 128) / 2 * hidden
        assert work["forward", "layers"]["attention_flops"][index] == 2 * scores
        assert work["backward", "layers"]["attention_backward_flops"][index] == 5 * scores
    forward, backward = work["forward", "layers"], work["backward", "layers"]
    assert forward["weight_bytes"] == [2 * weights, 2 * weights]
    assert backward["weight_bytes"] == [4 * weights, 4 * weights]
    assert forward["kernels"][0] + backward["kernels"][0] == layers * LAYER_KERNELS
    assert trace_["updated_elements"] * 8 == trace_["trained_elements"]
    assert "work" not in trace(found, "ddp")


def test_functions_that_run_for_want_of_kernels_are_named(found):
    notes = [one for one in trace(found, "linear attention")["notes"] if "for want of" in one]
    functions = "causal_conv1d_fn and chunk_gated_delta_rule ran as operators of torch's"
    packages = "for want of causal_conv1d and flash-linear-attention"
    assert [one.startswith(f"{functions}, {packages}") for one in notes] == [True]
    assert not [one for one in trace(found, "sizes")["notes"] if "for want of" in one]


def test_a_model_that_its_copies_do_not_show_is_run_whole(found):
    assert found["copy of 4"] == {"id": "copy of 4", "trace": None}
    assert trace(found, "copy of 6")["layers"] == 9
    assert "copies" in found["odd copies"]["error"]["message"]


def test_building_a_model_leaves_its_configuration_as_it_is():
    """transformers fills in rotary parameters in place, and copies are told apart afterwards."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    config = {**SHAPE, "model_type": "llama", "rope_theta": 1e4, "rope_parameters": dict(rope)}
    build_on_meta(config, torch.bfloat16)
    assert config["rope_parameters"] == rope


def test_copies_show_a_model_whose_parts_grow_in_proportion():
    moe = QWEN3_NEXT
    bamba = {**SHAPE, "model_type": "bamba", "mamba_n_heads": 8, "mamba_d_head": 32}
    periods = {"attn_layer_period": 2, "attn_layer_offset": 1}
    for shows, models in [
        (False, [{**JAMBA, "num_hidden_layers": n} for n in (4, 6, 14)]),
        (True, [{**JAMBA, **periods, "num_hidden_layers": n} for n in (4, 6, 14)]),
        (False, [{**moe, "num_hidden_layers": n, "mlp_only_layers": [8, 9]} for n in (4, 8, 12)]),
        (False, [{**bamba, "num_hidden_layers": n, "attn_layer_indices": [7]} for n in (4, 6, 9)]),
        (True, [{**moe, "num_hidden_layers": n} for n in (4, 8, 16)]),
        (False, [{**moe, "num_hidden_layers": n} for n in (4, 6, 16)]),  # each fourth by default
        (False, [{**moe, "num_hidden_layers": 8}] * 3),  # copies that are no shallower
    ]:
        assert show_whole(*models) is shows, models


def test_categories_add_up_to_bytes(found):
    for name in ("sizes", "ddp", "512"):
        for step in trace(found, name)["steps"]:
            for line in (x for s in step["segments"] for x in s["lines"]):
                for i, total in enumerate(line["bytes"]):
                    assert total == sum(sizes[i] for sizes in line["categories"].values())


def test_state_is_as_large_as_arithmetic_says(found):
    """Rank 0 of 8 in bf16: 2 bytes a parameter, twice that for adamw's moments."""
    shape = SHAPE
    hidden, kv = shape["hidden_size"], shape["hidden_size"] // 2
    layer = 2 * hidden**2 + 2 * hidden * kv + 3 * hidden * shape["intermediate_size"] + 2 * hidden
    parameters = 4 * layer + 2 * hidden * shape["vocab_size"] + hidden
    segment = trace(found, "sizes")["steps"][0]["segments"][0]
    categories = segment["lines"][0]["categories"]
    assert categories["parameters"][0] == pytest.approx(2 * parameters / 8, rel=0.05)
    assert categories["optimizer_state"][0] == pytest.approx(4 * parameters / 8, rel=0.05)


@pytest.mark.parametrize(("name", "direct"), [("sizes", "at 5"), ("tp", "tp at 5")])
def test_lines_are_exact_at_other_sizes(found, name, direct):
    """Exact but for the allocator's rounding of what grows with the micro-batch."""
    from_lines, at_size = trace(found, name), trace(found, direct)
    for step in range(len(at_size["steps"])):
        peak = peak_bytes(at_size, step)
        assert envelope(from_lines, step, 5) == pytest.approx(peak, rel=2e-3)


def test_without_sync_whole_gradients_are_held(found):
    def held(name):
        step = trace(found, name)["steps"][-1]
        forward = next(s for s in step["segments"] if s["micro_batch"] == 1)
        return int(forward["lines"][0]["categories"].get("gradients_unsharded", [0])[0])

    assert held("sizes") == 0
    assert held("no sync") > 7 * trace(found, "sizes")["block_bytes"] / 4


def test_ddp_has_buckets_and_casts_by_arithmetic(found):
    answer = trace(found, "ddp")
    lines = [x for s in answer["steps"][0]["segments"] for x in s["lines"]]
    ((buckets,),) = {tuple(line["categories"]["ddp_buckets"]) for line in lines}
    (reduction,) = {c["bytes"][0] for c in answer["steps"][0]["collectives"]
                    if c["op"] == "all_reduce" and c["overlap"] == "behind_backward"}  # fmt: skip
    assert 0 < reduction < 2 * buckets
    assert any("ddp_buckets" in note for note in answer["notes"])


def test_collectives_are_counted_with_what_hides_them(found):
    """FSDP2's units are the root, four layers, and one of accelerate's own for the head."""
    _, twice = trace(found, "sizes")["steps"]
    counts = {(c["op"], c["phase"], c["overlap"]): c["count"] for c in twice["collectives"]}
    assert counts == {
        ("all_gather", "forward", "exposed"): 2,
        ("all_gather", "forward", "prefetched"): 2 * 5,
        ("all_gather", "backward", "prefetched"): 2 * 5,
        ("reduce_scatter", "backward", "behind_backward"): 2 * 5,
        ("reduce_scatter", "backward", "exposed"): 2 * 1,
    }


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "spec"), ("odd", "spec"), ("three sizes", "spec"), ("no count", "spec"),
        ("no plan", "tensor_parallel_plan"),
    ],
)  # fmt: skip
def test_wrong_requests_name_their_rule(found, name, rule):
    error = found[name]["error"]
    assert error["rule"] == rule, error
    assert error["message"]


def test_what_the_stack_refuses_names_its_phase(found):
    for name in ("refused", "unknown"):
        assert found[name]["error"]["phase"] == "build"
        assert found[name]["error"]["message"]
