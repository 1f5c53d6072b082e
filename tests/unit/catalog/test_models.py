"""Every published model is what its file says: built by transformers, counted, and compared."""

import tomllib
from importlib.resources import files

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tuner.catalog import models
from tuner.cost.memory.tensors import counts
from tuner.errors import UnknownNameError
from tuner.model import published_model
from tuner.model.fields import ARCHITECTURES

WITHOUT_SDPA = {"gemma2", "gpt_oss", "gptj", "mpt"}
"""Types whose attention, biased or with sinks, transformers runs in no fused kernel."""


def build(config):
    fields = {name: value for name, value in config.items() if name != "model_type"}
    settings = AutoConfig.for_model(config["model_type"], **fields)
    attention = "eager" if config["model_type"] in WITHOUT_SDPA else "sdpa"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings, attn_implementation=attention)
    model.tie_weights()
    return model


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def check_built(name):
    """That transformers builds what the file says, and as the formula counts where there is one."""
    model = published_model(name)
    built = build(model.as_config())
    assert count(built) == models.entry(name)["parameters"], name
    if model.is_traced:
        return
    layers = [m for m in built.modules() if type(m).__name__ in built._no_split_modules]
    assert len(layers) == model.layers, name
    of_layers = sum(count(layer) for layer in layers)
    norm = model.hidden_size * ARCHITECTURES[model.model_type].norm_weights
    assert of_layers + norm == round(counts(model).layer * model.layers), name


def test_the_smallest_of_each_type_is_built_as_its_formula_counts():
    smallest = {}
    for name in models.names():
        model = published_model(name)
        if not model.is_traced:
            parameters = models.entry(name)["parameters"]
            assert counts(model).parameters == parameters, name
            smallest[model.model_type] = min(
                smallest.get(model.model_type, (parameters, name)), (parameters, name)
            )
    for _, name in smallest.values():
        check_built(name)


@pytest.mark.slow
def test_every_model_is_built_as_its_file_says():
    for name in models.names():
        check_built(name)


def test_active_parameters_leave_out_the_experts_not_chosen():
    for name, active in [
        ("mixtral-8x7b", 12_879_925_248),  # arXiv 2401.04088 says 13B
        ("qwen3-30b-a3b", 3_353_032_704),  # the model card says 3.3B
        ("llama-3.1-8b", 8_030_261_248),
    ]:
        assert counts(published_model(name)).active_parameters == active


def test_names_are_found_as_people_write_them():
    for spec, name in [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("llama3.1_8b", "llama-3.1-8b"),
        ("stories15M", "stories15m"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("mistralai/mixtral-8x7b-v0.1", "mixtral-8x7b"),
        ("google/gemma-3-27b-pt", "gemma-3-27b-text"),
        ("someone-else/Llama-3.1-8B", None),
        ("llama-3-18b", None),
        ("../models/gpt2", None),
        ("", None),
    ]:
        assert models.find(spec) == name


def test_a_repository_is_as_large_as_one_that_is_known_by_its_name_or_the_list():
    for spec, name in [
        ("NousResearch/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("google/gemma-3-12b-it", "gemma-3-12b-text"),
        ("Qwen/Qwen2-1.5B-Instruct", "qwen2.5-1.5b"),  # of the list, trained further
        ("mistralai/Devstral-Small-2507", "mistral-small-24b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("llava-hf/llava-1.5-7b-hf", "llava-1.5-7b-text"),
        ("me/my-llama-3.1-8b-with-more", None),
        ("me/llama-3.1-9b", None),
    ]:
        assert models.alike(spec) == name, spec
        if name is not None:
            assert published_model(spec) == published_model(name)


def test_a_repository_of_the_list_has_a_source_and_the_shape_of_a_known_model():
    text = files("tuner.catalog").joinpath("same_shape.toml").read_text("utf-8")
    for repository, one in tomllib.loads(text).items():
        assert set(one) == {"like", "source"}, repository
        assert one["like"] in models.names(), repository
        assert one["source"].startswith("https://"), repository


def test_an_unknown_name_gets_the_nearest_and_the_other_way():
    with pytest.raises(UnknownNameError) as caught:
        published_model("lama-3.1-8b")
    assert "llama-3.1-8b" in caught.value.nearest
    assert "path of a config.json" in str(caught.value)
    with pytest.raises(UnknownNameError) as caught:
        published_model("x" * 10**6)
    assert len(str(caught.value)) < 500
