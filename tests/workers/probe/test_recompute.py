"""What backward computes again is counted, layer by layer."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workers.probe.model import build_on_meta, decoder_layers
from workers.probe.recompute import recomputing
from workers.probe.tracker import Phase


class Layer(nn.Module):
    """Checkpoints what is in it; its own hooks are run once."""

    def __init__(self, *, checkpoints: bool) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.first, self.last = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False) if self.checkpoints else self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def step(layers: list[Layer], phase: Phase) -> None:
    phase.name, x = "forward", torch.ones(2, 4, requires_grad=True)
    for layer in layers:
        x = layer(x)
    phase.name = "backward"
    x.sum().backward()


@pytest.mark.parametrize("checkpointed", [0, 1, 3])
def test_each_layer_that_is_computed_again_counts(checkpointed: int) -> None:
    layers = [Layer(checkpoints=number < checkpointed) for number in range(3)]
    phase = Phase()
    with recomputing(layers, phase) as found:
        step(layers, phase)
        step(layers, phase)
    assert found.calls == 2 * checkpointed


def test_nothing_is_left_in_the_layers() -> None:
    layers, phase = [Layer(checkpoints=True)], Phase()
    with recomputing(layers, phase) as found:
        pass
    step(layers, phase)
    assert found.calls == 0
    assert not any(module._forward_pre_hooks for module in layers[0].modules())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("checkpoints", [True, False])
def test_transformers_checkpointing_is_seen(checkpoints: bool) -> None:
    config = {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
    }  # fmt: skip
    model, phase = build_on_meta(config, torch.float32), Phase()
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model._apply(lambda t: torch.full(t.shape, 0.02) if t.is_meta else t)
    tokens = torch.arange(8).view(1, 8)
    with recomputing(decoder_layers(model), phase) as found:
        phase.name = "forward"
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        phase.name = "backward"
        loss.backward()
    assert found.calls == (3 if checkpoints else 0)
