from math import ceil

import pytest

from tuner.catalog.models import names
from tuner.cost.memory.shards import Unit, largest_shard, model_units, shard_elements
from tuner.cost.memory.tensors import Tensor, model_tensors
from tuner.model import published_model as read


@pytest.mark.parametrize("name", names())
def test_units_hold_the_whole_model_once(name: str) -> None:
    model = read(name)
    found = model_units(model, 1, 1)
    units = (found.embedding, *found.layers, found.tail, found.root)
    assert sum(unit.whole for unit in units) == model.parameters
    assert all(unit.whole == unit.padded == unit.shard for unit in units)
    assert bool(found.root.whole) is (model.model_type == "gpt2")


def test_rows_are_padded_to_the_ranks() -> None:
    assert [shard_elements(Tensor(10, 4), ranks) for ranks in (1, 2, 4, 16)] == [40, 20, 12, 4]
    model, ranks = read("qwen2.5-0.5b"), 48
    layer = model_units(model, 1, ranks).layers[0]
    rows = [(t.rows, t.columns) for t in model_tensors(model).dense_layer]
    assert layer.shard == sum(ceil(many / ranks) * columns for many, columns in rows)
    assert layer.padded == ranks * layer.shard > layer.whole == model.layer_parameters


def test_experts_are_padded_to_whole_ones() -> None:
    model = read("mixtral-8x7b")
    experts = 3 * 8 * model.hidden_size * model.intermediate_size
    router = (64 - 8) * model.hidden_size  # it has a row for each expert
    layer, wide = (model_units(model, 1, ranks).layers[0] for ranks in (8, 64))
    assert wide.padded - layer.padded == 7 * experts + router
    assert largest_shard(model, 1, 64) == experts / 8 * 2 / 3  # gate and up of one expert


def test_replicated_weights_are_summed_over_tensor_parallel_ranks() -> None:
    mixtral, llama = read("mixtral-8x7b"), read("llama-3.1-8b")
    assert model_units(mixtral, 1, 8).layers[0].summed == 0
    packed = 2 * 8 * mixtral.hidden_size * mixtral.intermediate_size
    assert model_units(mixtral, 2, 8).layers[0].summed == packed
    assert model_units(llama, 2, 8).layers[0].summed == llama.hidden_size  # a norm's


def test_units_together() -> None:
    one = Unit(whole=3, padded=4, shard=2, summed=1)
    both = Unit(whole=6, padded=8, shard=4, summed=1)
    assert one.beside(one) == both
    assert one.beside(Unit()) == one
