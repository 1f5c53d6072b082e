"""Shallow copies keep the pattern of the model's layers."""

from tuner.catalog.models import names
from tuner.core.configuration import Checkpointing
from tuner.cost.memory.tensors import counts
from tuner.dryrun.plan import at_depth, depths_of
from tuner.model import published_model as read
from tuner.model import read_model_config

FULL, SLIDING = "full_attention", "sliding_attention"


def model(model_type, **fields):
    return read_model_config({"model_type": model_type, **fields}, name="model")


def test_parameters_grow_on_a_straight_line_to_the_whole_model():
    for name in {read(one).model_type: one for one in names()}.values():
        config = read(name)
        depths = depths_of(config)
        if config.is_traced or len(depths) == 1:
            continue
        copies = (read_model_config(at_depth(config, depth), name="x") for depth in depths)
        low, high = (counts(copy).parameters for copy in copies)
        slope = (high - low) / (depths[1] - depths[0])
        assert low + slope * (config.layers - depths[0]) == counts(config).parameters


def test_depths_of_known_models():
    for name, depths in [
        ("llama-3.1-8b", (4, 6)),
        ("mixtral-8x7b", (4, 6)),
        ("gemma-2-2b", (6, 8)),  # full and sliding layers alternate
        ("smollm3-3b", (12, 16)),  # each fourth layer does not rotate
        ("gemma-3-1b", (26,)),  # a period of six: two shallow copies would cost more
        ("stories15m", (6,)),
    ]:
        assert depths_of(read(name)) == depths


def test_layers_of_every_2_are_kept_in_pairs():
    for name, depths in [
        ("llama-3.1-8b", (6, 8)),
        ("gemma-2-2b", (6, 8)),
        ("smollm2-135m", (6, 8)),
    ]:
        assert depths_of(read(name), Checkpointing.EVERY_2) == depths
    odd = model("llama", num_hidden_layers=33)
    assert depths_of(odd, Checkpointing.EVERY_2) == (7, 9)
    assert at_depth(odd, 7, Checkpointing.EVERY_2)["num_hidden_layers"] == 7


def test_layers_of_types_without_arithmetic_follow_what_their_fields_say():
    sizes = {"num_hidden_layers": 48, "hidden_size": 64}
    assert depths_of(model("starcoder2", **sizes)) == (4, 6)
    jamba = model("jamba", num_hidden_layers=96, attn_layer_period=8, expert_layer_period=2)
    assert depths_of(jamba) == (24, 32)
    deep = model("deepseek_v3", **sizes, first_k_dense_replace=3)
    assert depths_of(deep) == (8, 10)
    listed = model("cohere2", **sizes, layer_types=[SLIDING, SLIDING, FULL] * 16)
    assert depths_of(listed) == (9, 12)
    assert at_depth(listed, 9)["layer_types"] == [SLIDING, SLIDING, FULL] * 3
    nested = model("llama4", text_config=sizes)
    assert at_depth(nested, 6)["text_config"]["num_hidden_layers"] == 6
    assert at_depth(deep, 8)["first_k_dense_replace"] == 3


def test_layers_that_are_named_by_number_are_numbered_anew():
    halves = model("qwen3_next", num_hidden_layers=48, mlp_only_layers=list(range(24, 48)))
    assert depths_of(halves) == (48,)
    few = model("bamba", num_hidden_layers=32, attn_layer_indices=[9, 18, 27])
    assert depths_of(few) == (32,)
    deep = model("bamba", num_hidden_layers=100, attn_layer_indices=[*range(9, 100, 9)])
    assert depths_of(deep) == (28, 37)
    assert at_depth(deep, 28)["attn_layer_indices"] == [9, 18, 27]
    assert len(at_depth(deep, 37)["attn_layer_indices"]) == 4
    of_all = model("qwen3_next", num_hidden_layers=48, mlp_only_layers=list(range(48)))
    assert depths_of(of_all) == (4, 6)
    assert at_depth(of_all, 4)["mlp_only_layers"] == [0, 1, 2, 3]


def test_layers_that_are_spelled_by_letters_are_cut_like_a_list():
    spelled = model("nemotron_h", num_hidden_layers=48, hybrid_override_pattern="ME*E" * 12)
    assert depths_of(spelled) == (12, 16)
    assert at_depth(spelled, 12)["hybrid_override_pattern"] == "ME*E" * 3
    odd = model("nemotron_h", num_hidden_layers=24, hybrid_override_pattern="ME*E" * 3 + "M" * 12)
    assert depths_of(odd) == (24,)


def test_leading_dense_layers_are_kept():
    config = model("qwen3_moe", num_hidden_layers=48, mlp_only_layers=[0, 1, 2])
    assert depths_of(config) == (8, 10)
    shallow = read_model_config(at_depth(config, 8), name="shallow")
    assert [kind.sparse for kind in shallow.layer_kinds] == [False] * 3 + [True] * 5
    assert at_depth(config, 8)["mlp_only_layers"] == [0, 1, 2]


def test_layers_without_a_pattern_are_run_whole():
    dense = [0, 1, 4, 5, 9, 11, 15]
    config = model("qwen3_moe", num_hidden_layers=16, mlp_only_layers=dense)
    assert depths_of(config) == (16,)
    assert at_depth(config, 16) == config.as_config()
