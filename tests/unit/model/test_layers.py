from dataclasses import replace

import pytest

from tuner.model import published_model as read
from tuner.model.shape import SLIDING, layer_kinds


def sliding(name: str) -> list[bool]:
    return [kind.attention == SLIDING for kind in layer_kinds(read(name))]


@pytest.mark.parametrize("name", ["gemma-2-2b", "gemma-2-9b"])
def test_every_second_layer_of_gemma_2_slides(name: str) -> None:
    found = sliding(name)
    assert found[:4] == [True, False, True, False]
    assert sum(found) == len(found) // 2


def test_a_llama_has_one_kind_of_layer() -> None:
    assert len(set(layer_kinds(read("llama-3.1-8b")))) == 1


def test_all_layers_of_a_mistral_with_a_window_slide() -> None:
    model = read("mistral-7b-v0.1")
    windowed = replace(model, fields={**model.fields, "sliding_window": 4096})
    assert all(kind.attention == SLIDING for kind in layer_kinds(windowed))
