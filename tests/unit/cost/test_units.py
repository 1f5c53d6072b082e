from tuner.catalog.models import names
from tuner.cost.memory.shards import model_units
from tuner.model import published_model as read


def test_units_hold_the_whole_model_once() -> None:
    for name in {read(one).model_type: one for one in names()}.values():
        model = read(name)
        found = model_units(model, 1, 1)
        units = (found.embedding, *found.layers, found.tail, found.root)
        assert sum(unit.whole for unit in units) == model.parameters
        assert all(unit.whole == unit.padded == unit.shard for unit in units)
        assert bool(found.root.whole) is (model.model_type == "gpt2")


def test_replicated_weights_are_summed_over_tensor_parallel_ranks() -> None:
    mixtral, llama = read("mixtral-8x7b"), read("llama-3.1-8b")
    assert model_units(mixtral, 1, 8).layers[0].summed == 0
    packed = 2 * 8 * mixtral.hidden_size * mixtral.intermediate_size
    assert model_units(mixtral, 2, 8).layers[0].summed == packed
    assert model_units(llama, 2, 8).layers[0].summed == llama.hidden_size  # a norm's
