"""Configurations are read as data: what is accepted builds as counted, the rest is refused."""

import builtins
import json
import os
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from tests.profiles import examples
from tuner.cost.memory.tensors import counts
from tuner.errors import ModelConfigError
from tuner.model import ModelConfig, load_model, read_model_config
from tuner.model.checks import check_fields
from tuner.model.fields import ARCHITECTURES

TYPES = sorted(ARCHITECTURES)
TINY = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOKENS = {"pad_token_id", "bos_token_id", "eos_token_id"}


def read(**changes):
    return read_model_config({**TINY, **changes}, name="tiny")


def refused(data):
    with pytest.raises(ModelConfigError) as caught:
        read_model_config(data, name="hostile")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return caught.value


def built_parameters(model):
    config = model.as_config()
    fields = AutoConfig.for_model(config.pop("model_type"), **config)
    attention = "eager" if model.model_type in ("gemma2", "mpt") else "sdpa"
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(fields, attn_implementation=attention)
    built.tie_weights()
    return sum(parameter.numel() for parameter in built.parameters())


def test_the_shape_is_read_from_the_fields():
    model = read(tie_word_embeddings=True, max_position_embeddings=128)
    assert (model.layers, model.hidden_size, model.heads, model.kv_heads) == (2, 32, 4, 2)
    assert (model.head_dim, model.intermediate_size, model.vocab_size) == (8, 48, 64)
    assert (model.experts, model.experts_per_token, model.expert_intermediate_size) == (0, 0, 0)
    assert model.tied_embeddings
    assert model.max_sequence_length == 128
    attention, mlp, norms = 32 * (32 + 2 * 16) + 32 * 32, 3 * 32 * 48, 2 * 32
    found, layer = counts(model), attention + mlp + norms
    assert found.parameters == 2 * layer + 64 * 32 + 32 == found.active_parameters


def test_defaults_are_those_of_transformers():
    for model_type in TYPES:
        config = read_model_config({"model_type": model_type}, name="default").as_config()
        ours = AutoConfig.for_model(**config).to_dict()
        theirs = AutoConfig.for_model(model_type).to_dict()
        for settled in ("head_dim", "n_inner", "sliding_window"):
            assert theirs.get(settled) in (None, 0, ours.get(settled))
        apart = TOKENS | {"head_dim", "n_inner", "sliding_window", "sliding_window_pattern"}
        assert {k: v for k, v in ours.items() if k not in apart} == {
            k: v for k, v in theirs.items() if k not in apart
        }


def test_each_type_spells_its_rotary_embeddings():
    for config, expected in [
        (
            {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 2000},
            {"rope_type": "default", "rope_theta": 2000.0, "partial_rotary_factor": 0.5},
        ),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        (
            {
                "model_type": "llama",
                "max_position_embeddings": 4096,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "finetuned": True},
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 4096,
            },
        ),
        (
            {
                "model_type": "phi3",
                "hidden_size": 64,
                "num_attention_heads": 4,
                "original_max_position_embeddings": 512,
                "partial_rotary_factor": 0.5,
                "rope_scaling": {
                    "type": "su",
                    "short_factor": [1, 1, 1, 1],
                    "long_factor": [2] * 4,
                },
            },
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 512,
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        ),
    ]:
        fields = read_model_config(config, name="x").as_config()
        assert fields["rope_parameters"] == expected
        assert AutoConfig.for_model(**fields).rope_parameters == expected


def test_the_fingerprint_is_of_the_shape_alone():
    model = read()
    assert read_model_config(TINY, name="other").fingerprint == model.fingerprint
    assert read(rope_theta=10000, rms_norm_eps=0.000001).fingerprint == model.fingerprint
    assert read(num_hidden_layers=3).fingerprint != model.fingerprint
    golden = "713ee7baa7335cf8e0734fd47a5017dee4dce3d1dd1955e121b8ad997ec4ff0c"
    assert model.fingerprint == golden, "studies are found by it: it may not change unnoticed"


def test_reading_what_was_read_changes_nothing():
    for model_type in TYPES:
        model = read_model_config({"model_type": model_type}, name="m")
        again = read_model_config(json.dumps(model.as_config()).encode(), name="m")
        assert again == model
        assert hash(again) == hash(model)
        assert again.as_config() == model.as_config()
        fields = check_fields(model_type, model.fields)
        assert {"model_type": model_type, **fields} == model.as_config()


@st.composite
def small_configs(draw):
    """Configurations of every type with small sizes and every flag, all of them acceptable."""
    model_type = draw(st.sampled_from(TYPES))
    heads, kv_groups = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    kv_heads = max(1, heads // kv_groups)
    layers = draw(st.integers(1, 3))
    sizes = {
        "vocab_size": draw(st.integers(1, 50)),
        "hidden_size": heads * 16,
        "intermediate_size": draw(st.integers(1, 40)),
        "n_inner": draw(st.none() | st.integers(1, 40)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([None, kv_heads])),
        "head_dim": draw(st.sampled_from([None, 8, 16])),
        "max_position_embeddings": draw(st.integers(1, 64)),
        "num_experts": draw(st.integers(3, 4)),
        "num_local_experts": draw(st.integers(3, 4)),
        "num_experts_per_tok": draw(st.integers(1, 3)),
        "moe_intermediate_size": draw(st.integers(1, 9)),
        "shared_expert_intermediate_size": draw(st.integers(1, 9)),
        "decoder_sparse_step": draw(st.integers(1, layers)),
        "mlp_only_layers": draw(st.sampled_from([[], [0]] if layers > 1 else [[]])),
        "sliding_window": 4,
    }
    known = ARCHITECTURES[model_type].fields
    config = {name: value for name, value in sizes.items() if name in known}
    for name in known:
        if isinstance(known[name].default, bool):
            config[name] = draw(st.booleans())
    if draw(st.booleans()) and ARCHITECTURES[model_type].rope and model_type != "phi3":
        factor = draw(st.floats(1, 64))
        kind = draw(st.sampled_from(["linear", "dynamic", "yarn"]))
        config["rope_scaling"] = {"rope_type": kind, "factor": factor}
    return {"model_type": model_type, **config}


@given(small_configs())
@settings(max_examples=examples(120))
def test_any_accepted_configuration_builds_with_the_parameters_counted(config):
    model = read_model_config(config, name="small")
    assert counts(model).parameters == built_parameters(model)


# Values that are refused by their field alone, and then fields that do not go together.
BAD = {
    "num_hidden_layers": [-3, 0, 10**30, 1025, True, "2", 2.0],
    "hidden_size": [[32]], "rms_norm_eps": [float("nan"), 0], "attention_dropout": [1.5],
    "tie_word_embeddings": [1], "hidden_act": ["xielu"], "num_attention_heads": [3],
    "num_key_value_heads": [3], "head_dim": [7], "model_type": ["lama", None, ["llama"]],
    "auto_map": [{"AutoConfig": "configuration_x.X"}], "trust_remote_code": [True],
    "attn_implementation": ["org/repo", {"": "org/repo"}],
    "_attn_implementation": ["org/repo:kernel"], "_attn_implementation_internal": ["org/repo"],
    "experts_implementation": ["org/repo"], "quantization_config": [{"bits": 4}],
    "per_layer_config": [{"0": {"hidden_size": 1}}], "vision_config": [{"hidden_size": 8}],
    "base_model_tp_plan": [{"layers.*": "colwise"}], "transformers_weights": ["x.bin"],
    "n_shared_experts": [2], "is_encoder_decoder": [True], "use_bidirectional_attention": [True],
    "rope_theta": [0.5], "rope_scaling": ["linear"], "partial_rotary_factor": [0.5],
}  # fmt: skip
TOGETHER = [
    ({"model_type": "gpt_neox", "head_dim": 4}, "head_dim"),
    ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
    ({"model_type": "mixtral", "num_local_experts": 4, "num_experts": 8}, "num_experts"),
    ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types"),
    ({"model_type": "qwen3", "layer_types": ["conv", "conv"]}, "layer_types[0]"),
    ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2}, "sliding_window"),
    ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    ({"model_type": "smollm3", "use_sliding_window": True}, "sliding_window"),
    ({"model_type": "qwen3_moe", "decoder_sparse_step": 3}, "decoder_sparse_step"),
    ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers"),
    ({"model_type": "qwen2", "mlp_bias": True}, "mlp_bias"),
    ({"bad\nname": 1}, r"'bad\nname'"),
    ({"rope_scaling": {"rope_type": "org/repo"}}, "rope_type"),
    ({"rope_scaling": {"rope_type": ["linear"]}}, "rope_type"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2, "x": 1}}, "x"),
    ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": 3}}, "full_attention"),
    ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {}, "x": {}}},
     "rope_parameters"),
]  # fmt: skip


def test_a_bad_field_is_named():
    alone = [({name: value}, name) for name, values in BAD.items() for value in values]
    for changes, field in alone + TOGETHER:
        assert refused({**TINY, **changes}).field == field, changes


# Of a type that only dry runs know, whatever names code or a place, at any depth, is refused.
TRACED_BAD = {
    "auto_map": {"AutoConfig": "configuration_x.X"}, "n_layer": 0, "n_embd": 2**25,
    "backbone": "org/repo", "part": {"trust_remote_code": True}, "parts": [{"name": "../x"}],
    "word": "x" * 101, "attn_implementation": "org/repo",
}  # fmt: skip


def test_types_without_arithmetic_are_read_as_data_too():
    given = {"model_type": "bloom", "n_layer": 4, "n_embd": 64, "architectures": ["X"]}
    model = read_model_config(given, name="m")
    assert (model.is_traced, model.layers) == (True, 4)
    assert model.as_config() == {"model_type": "bloom", "n_layer": 4, "n_embd": 64}
    for name, value in TRACED_BAD.items():
        with pytest.raises(ModelConfigError):
            read_model_config({**given, name: value}, name="m")
    with pytest.raises(ModelConfigError, match="must be given for bloom"):
        read_model_config({"model_type": "bloom"}, name="m")
    with pytest.raises(ModelConfigError, match="n_positions"):
        read_model_config({"model_type": "gptj", "n_layer": 4, "n_positions": 2**17}, name="m")


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["org/repo", "llama", "x" * 10**5, "\ud800", "\x00", -1, 2**63, 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
NAMES = st.sampled_from(
    sorted(
        {name for a in ARCHITECTURES.values() for name in a.fields}
        | {"rope_scaling", "rope_parameters", "rope_theta", "rotary_pct", "auto_map", "n_embd"}
        | {"attn_implementation", "quantization_config", "torch_dtype", "partial_rotary_factor"}
        | {"rope_local_base_freq", "architectures", "model_type"}
    )
)
ROPES = st.dictionaries(
    st.sampled_from(["rope_type", "type", "factor", "short_factor", "full_attention", "truncate"]),
    HOSTILE | st.sampled_from(["linear", "yarn", "longrope", "llama3", "su"]),
)


def touched(*_, **__):
    raise AssertionError("a file or the network was touched")


def outcome(data):
    """What reading gives, with files and the network out of reach; nothing else may come out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", touched)
        patch.setattr(os, "open", touched)
        patch.setattr(socket, "socket", touched)
        try:
            return read_model_config(data, name="hostile")
        except ModelConfigError as error:
            return error


def read_or_refused(data):
    result = outcome(data)
    if isinstance(result, ModelConfig):
        json.dumps(result.as_config(), allow_nan=False)
        assert result.is_traced or counts(result).parameters >= counts(result).active_parameters > 0
    else:
        assert "\n" not in str(result)
        str(result).encode()


@given(
    st.sampled_from(TYPES),
    st.dictionaries(NAMES | st.text(max_size=12), HOSTILE | ROPES, min_size=1, max_size=3),
)
@settings(max_examples=examples(200))
def test_hostile_objects_are_read_or_refused(model_type, changes):
    read_or_refused({"model_type": model_type, **changes})


@given(HOSTILE | st.binary(max_size=64))
@settings(max_examples=examples(100))
def test_hostile_bytes_are_read_or_refused(value):
    if isinstance(value, bytes):
        read_or_refused(value)
    else:
        read_or_refused(json.dumps(value).encode())


def test_a_name_must_be_fit_to_be_shown():
    for name in ["", "a\nb", "x" * 201, None, 3]:
        with pytest.raises(ModelConfigError):
            read_model_config(TINY, name=name)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def test_a_file_is_named_after_itself_or_its_folder(tmp_path):
    data = json.dumps(TINY).encode()
    assert load_model(write(tmp_path / "my-llama" / "config.json", data)).name == "my-llama"
    (tmp_path / "my-llama" / "runs").mkdir()
    above = tmp_path / "my-llama" / "runs" / ".." / "config.json"
    assert load_model(str(above)).name == "my-llama"
    assert load_model(write(tmp_path / "small.json", b"\xef\xbb\xbf" + data)).name == "small"
    assert load_model(write(tmp_path / "no-ending", data)) == load_model(
        write(tmp_path / "other" / "no-ending", data)
    )


def test_a_catalogue_name_wins_over_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "gpt2", json.dumps(TINY).encode())
    assert load_model("gpt2").model_type == "gpt2"
    assert load_model("GPT2").model_type == "gpt2"
    assert load_model("./gpt2").model_type == "llama"


def test_a_huge_file_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)

    def opened(*arguments):
        raise AssertionError("it was opened")

    monkeypatch.setattr("tuner.model.shape.os.open", opened)
    with pytest.raises(ModelConfigError, match="1 MiB"):
        load_model(str(path))


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "pipe.json")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    for path in (tmp_path, tmp_path / "pipe.json", tmp_path / "link.json", tmp_path / "loop.json"):
        with pytest.raises(ModelConfigError) as caught:
            load_model(str(path))
        assert caught.value.field == "model"
    for path in (Path("/dev/zero"), Path("/dev/null"), Path("/dev/stdin")):
        with pytest.raises(ModelConfigError):
            load_model(str(path))


def test_a_pipe_put_in_the_file_s_place_does_not_make_it_wait(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.json")
    regular = Path(write(tmp_path / "file.json", b"{}")).stat()
    monkeypatch.setattr(os, "stat", lambda *_, **__: regular)
    with pytest.raises(ModelConfigError, match="regular"):
        load_model(str(tmp_path / "pipe.json"))
