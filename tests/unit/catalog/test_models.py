"""Every published model is what its file says: built by transformers, counted, and compared."""

import json
import re
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tuner.catalog import models
from tuner.errors import UnknownNameError
from tuner.model import published_model

WITHOUT_SDPA = {"gemma2"}
"""Types whose soft-capped attention transformers runs in no fused kernel."""


def build(config: dict[str, object]) -> PreTrainedModel:
    fields = {name: value for name, value in config.items() if name != "model_type"}
    settings = AutoConfig.for_model(config["model_type"], **fields)
    attention = "eager" if config["model_type"] in WITHOUT_SDPA else "sdpa"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings, attn_implementation=attention)
    model.tie_weights()
    return model


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", models.names())
def test_file_formula_and_built_model_have_the_same_parameters(name: str) -> None:
    model = published_model(name)
    built = build(model.as_config())
    layers = [m for m in built.modules() if type(m).__name__ in built._no_split_modules]
    assert count(built) == models.entry(name)["parameters"] == model.parameters
    assert len(layers) == model.layers
    assert max(count(layer) for layer in layers) == model.layer_parameters
    outside = count(built) - sum(count(layer) for layer in layers)
    norm = model.hidden_size * (2 if model.model_type in {"gpt2", "gpt_neox", "phi"} else 1)
    assert outside == model.embedding_parameters + norm


@pytest.mark.parametrize("name", models.names())
def test_a_file_holds_its_source_and_its_exact_count(name: str) -> None:
    entry = models.entry(name)
    assert set(entry) == {"source", "parameters", "config"}
    assert re.fullmatch(r"https://(huggingface\.co|github\.com)/[\w.-]+/[\w.-]+", entry["source"])
    assert type(entry["parameters"]) is int
    assert name == name.lower()
    assert published_model(name).name == name


def test_the_catalogue_has_the_families_that_people_train() -> None:
    names = models.names()
    assert len(names) >= 50
    assert list(names) == sorted(names)
    for prefix in ("llama-2", "llama-3", "codellama", "mistral", "mixtral", "qwen2.5", "qwen3"):
        assert any(name.startswith(prefix) for name in names), prefix
    for prefix in ("gemma-", "phi-", "smollm2", "gpt2", "pythia", "olmo-2", "stories15m"):
        assert any(name.startswith(prefix) for name in names), prefix


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12_879_925_248),  # arXiv 2401.04088 says 13B
        ("qwen3-30b-a3b", 3_353_032_704),  # the model card says 3.3B
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_active_parameters_leave_out_the_experts_not_chosen(name: str, active: int) -> None:
    assert published_model(name).active_parameters == active


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("llama3.1_8b", "llama-3.1-8b"),
        ("stories15M", "stories15m"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("mistralai/mixtral-8x7b-v0.1", "mixtral-8x7b"),
        ("someone-else/Llama-3.1-8B", None),
        ("llama-3-18b", None),
        ("../models/gpt2", None),
        ("", None),
    ],
)
def test_names_are_found_as_people_write_them(spec: str, name: str | None) -> None:
    assert models.find(spec) == name


def test_no_two_names_are_written_alike() -> None:
    assert len(models._by_letters()) == len(models.names())


def test_an_unknown_name_gets_the_nearest_and_the_other_way() -> None:
    with pytest.raises(UnknownNameError) as caught:
        published_model("lama-3.1-8b")
    assert "llama-3.1-8b" in caught.value.nearest
    assert "path of a config.json" in str(caught.value)
    with pytest.raises(UnknownNameError) as caught:
        published_model("x" * 10**6)
    assert len(str(caught.value)) < 500


def test_only_the_asked_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    entry = models.entry

    def noted(name: str) -> dict[str, Any]:
        read.append(name)
        return entry(name)

    monkeypatch.setattr(models, "entry", noted)
    published_model("gpt2")
    assert read == ["gpt2"]


def test_files_are_written_alike() -> None:
    for name in models.names():
        text = models._folder().joinpath(f"{name}.json").read_text(encoding="utf-8")
        assert text == json.dumps(models.entry(name), indent=2) + "\n"
