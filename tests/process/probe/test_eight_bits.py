"""What layers in eight bits take more or less in a real step, against the arithmetic of it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tuner.core.adapter import Adapter, Quantize
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.workload import Precision, Workload
from tuner.cost.memory.step import step_memory
from tuner.model import read_model_config
from workers.probe.tracker import Phase, StorageTracker

SHAPE = {
    "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 5, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
TOKENS = 128


def peaks(*, eight_bits, reentrant, targets):
    """Bytes before the step, after its forward, and at the highest; as on CUDA tensors, where
    another product is taken than on a CPU, and peft asks if autocast is on."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(torch.bfloat16).requires_grad_(False)
    for layer in model.model.layers if eight_bits else ():
        names = [name for name, one in layer.named_modules() if isinstance(one, nn.Linear)]
        for name in names:
            layer.set_submodule(name, in_eight_bits(layer.get_submodule(name), bitsandbytes))
    model.is_loaded_in_8bit = eight_bits
    model.config.use_cache = False
    model.train()
    if reentrant is not None:
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    config = peft.LoraConfig(r=8, target_modules=targets, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    tokens = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss

    forward().backward()  # states of layers are there from the first product on
    model.zero_grad()
    tracker = StorageTracker(phase := Phase())
    states = [one.state for one in model.modules() if hasattr(one, "state")]
    for tensor in (*model.parameters(), *(one.SCB for one in states), *(one.CB for one in states)):
        tracker.add(tensor.data)
    before = tracker.current_bytes
    with tracker:
        phase.name = "forward"
        loss = forward()
        held = tracker.current_bytes - before
        phase.name = "backward"
        loss.backward()
    return before, held, tracker.peak_bytes


def in_eight_bits(linear, bitsandbytes):
    found = bitsandbytes.nn.Linear8bitLt(
        linear.in_features, linear.out_features, bias=False, has_fp16_weights=False, threshold=6.0
    )
    weight = bitsandbytes.nn.Int8Params(linear.weight.data, requires_grad=False)
    found.weight = weight._quantize(torch.device("cpu"))
    return found


@pytest.fixture
def as_on_cuda(monkeypatch):
    functions = pytest.importorskip("bitsandbytes.autograd._functions")

    def product(x, weight, out=None, state=None, threshold=0.0, bias=None):
        return functions.MatMul8bitLt.apply(x, weight, out, bias, state)

    monkeypatch.setattr("bitsandbytes.matmul", product)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device: True)
    yield
    for device in ("cpu", "cuda"):  # which autocast, when it ended, took to have been on before
        torch.set_autocast_enabled(device, False)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
@pytest.mark.usefixtures("as_on_cuda")
def test_layers_in_eight_bits_take_what_arithmetic_says(targets):
    names = ("all-linear",) if isinstance(targets, str) else tuple(targets)
    adapter = Adapter(rank=8, dropout=0.0, target_modules=names)
    model = read_model_config({"model_type": "llama", **SHAPE}, name="small")
    work = Workload(
        model=model, sequence_length=TOKENS, global_batch_size=1, adapter=adapter,
        precision=Precision.BF16_MIXED,
    )  # fmt: skip
    eight = replace(work, adapter=replace(adapter, quantize=Quantize.INT8))
    inputs = SHAPE["num_hidden_layers"] * 2 * TOKENS * (3 * 64 + 192)
    for how, reentrant, kept in (("none", None, None), ("full", True, 0), ("full", False, inputs)):
        given = {"reentrant": reentrant, "targets": targets}
        real, other = (peaks(eight_bits=bits, **given) for bits in (True, False))
        settings = parse_settings(f"sharding=ddp,activation_checkpointing={how}")
        gpu = parse_cluster("1xh100-80gb")
        found, plain = (step_memory(one, settings, gpu) for one in (eight, work))
        weights = found.breakdown("optimizer")["parameters"]
        weights -= plain.breakdown("optimizer")["parameters"]
        assert real[0] - other[0] == weights
        if kept is None:
            peak = found.total_bytes - plain.total_bytes
            assert real[2] - other[2] == pytest.approx(peak, abs=0.02 * plain.total_bytes)
        else:  # a tensor of a few bytes more or less
            assert real[1] - other[1] == pytest.approx(kept, abs=2**12)
