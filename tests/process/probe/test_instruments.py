"""The norm of all gradients, layers that backward computes again, and what hides collectives."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from workers.probe.checkpointing import checkpoint_layers, host_bytes
from workers.probe.collectives import Call, overlaps
from workers.probe.model import build_on_meta, decoder_layers
from workers.probe.quantized import quantize
from workers.probe.tracker import (
    Phase,
    StorageTracker,
    frozen_sums,
    recomputing,
    total_gradient_norm,
)


def with_gradient(gradient):
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


@pytest.mark.parametrize(
    ("gradients", "norm"),
    [
        ([torch.tensor([3.0]), None, torch.full((2, 2), 2.0)], 5.0),
        ([torch.full((10_000,), 1.0, dtype=torch.bfloat16)], 100.0),  # bf16 is not rounded
        ([None], 0.0),
        ([], 0.0),
    ],
)
def test_the_norm_of_all_gradients_together(gradients, norm):
    """Of plain tensors; split ones are in test_tensor_parallel."""
    parameters = [nn.Parameter(torch.ones(3)) if g is None else with_gradient(g) for g in gradients]
    found = total_gradient_norm(parameter for parameter in parameters)
    assert (found.dtype, found.shape) == (torch.float64, ())
    assert found.item() == pytest.approx(norm, rel=1e-6)


LLAMA = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("how", "layers", "products", "on_host"),
    [
        ("none", 0, 0, 0),
        ("selective", 3, 0, 0),
        ("every_2", 2, 2 * 6, 0),
        ("full", 3, 3 * 6, 0),
        ("offload", 3, 3 * 6, 3 * 8 * 16 * 4),  # of each layer its input, in fp32
    ],
)
def test_transformers_checkpointing_is_seen(how, layers, products, on_host):
    """A layer has seven products, of which torch does not come to the last one again."""
    model = build_on_meta(LLAMA, torch.float32)
    checkpoint_layers(model, how)
    found, tracker = trained(model)
    assert (found.calls, tracker.recomputed_products) == (layers, products)
    assert host_bytes(decoder_layers(model)) == on_host


def test_inputs_go_to_the_host_as_transformers_itself_sends_them(monkeypatch):
    """Exported code asks transformers for it: on a CPU its copies are storages too."""
    monkeypatch.setattr(torch.cpu, "is_available", lambda: False)  # it would pin for a "cpu" device
    peaks = []
    for own in (False, True):
        model = build_on_meta(LLAMA, torch.float32)
        if own:
            model.activation_checkpointing_enable({"use_reentrant": False}, offload=True)
        else:
            checkpoint_layers(model, "offload")
        found, tracker = trained(model)
        peaks.append((found.calls, tracker.peak_by_phase))
    assert peaks[0] == peaks[1]


def trained(model):
    """What is seen of forward and backward of a model on the meta device."""
    model._apply(lambda t: torch.full(t.shape, 0.02) if t.is_meta else t)
    tokens, phase = torch.arange(8).view(1, 8), Phase()
    tracker = StorageTracker(phase)
    with recomputing(decoder_layers(model), phase) as found, tracker:
        phase.name = "forward"
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        phase.name = "backward"
        loss.backward()
    return found, tracker


GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"
SHARD, TENSOR, DATA = "0", "1", "2"
E, P, B = "exposed", "prefetched", "behind_backward"


@pytest.mark.parametrize(
    ("calls", "hidden"),
    [
        # forward waits for the first gather of each micro-batch, also where backward, whose
        # parameters stayed gathered, has no collectives between
        ([(GATHER, "forward", m, SHARD) for m in (1, 1, 2, 2, 2)], [E, P, E, P, P]),
        # backward hides all reductions but the last of each micro-batch
        ([(REDUCE, "backward", m, DATA) for m in (1, 1, 2, 2)], [B, E, B, E]),
        # kinds do not hide one another
        ([(GATHER, "backward", 1, SHARD), (SCATTER, "backward", 1, SHARD),
          (GATHER, "forward", 2, SHARD)], [P, E, E]),
        # tensor parallelism waits for everything, and the optimizer hides nothing
        ([(GATHER, "forward", 1, TENSOR)] * 3, [E] * 3),
        ([(REDUCE, "optimizer", 1, SHARD)] * 2, [E] * 2),
    ],
)  # fmt: skip
def test_what_hides_collectives(calls, hidden):
    planted = [Call(op, group, phase, number, 1) for op, phase, number, group in calls]
    found = overlaps(planted, {SHARD: "dp_shard", TENSOR: "tp", DATA: "dp"})
    assert [str(overlap) for overlap in found] == hidden


def test_a_frozen_parameter_that_moved_is_seen_by_its_bits():
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False, dtype=torch.bfloat16) for _ in range(3)))
    model[2].requires_grad_(False)
    model[1].requires_grad_(False)
    before = frozen_sums(model)
    with torch.no_grad():
        model[0].weight.add_(1)  # trained
        assert frozen_sums(model) == before
        model[1].weight[0, 0] *= 1.0078125  # by one unit in the last place
    assert [a == b for a, b in zip(before, frozen_sums(model), strict=True)] == [False, True]


def test_scales_of_frozen_weights_must_not_move_either():
    from bitsandbytes.nn import Linear4bit

    linear = Linear4bit(64, 64, bias=False, quant_storage=torch.bfloat16)
    linear.weight_type, linear.weight_compresses = "nf4", True
    linear.weight = nn.Parameter(quantize(linear, torch.randn(64, 64)), requires_grad=False)
    model = nn.Sequential(linear)
    before = frozen_sums(model)
    assert frozen_sums(model) == before
    linear.quant_state.absmax[0] ^= 1
    assert sum(a != b for a, b in zip(before, frozen_sums(model), strict=True)) == 1


def test_frozen_bits_are_summed_in_little_memory():
    """torch makes 64-bit integers of what it sums: four times a whole embedding in bf16."""
    model = nn.Embedding(2**16, 2**9, dtype=torch.bfloat16).requires_grad_(False)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        frozen_sums(model)
    largest = max(event.self_cpu_memory_usage for event in seen.events())
    assert 0 < largest <= model.weight.nbytes
