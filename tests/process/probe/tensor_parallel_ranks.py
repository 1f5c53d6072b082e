"""Four ranks, and the parts of tensor parallelism by themselves: ``... FOLDER``.

Rank 0 writes ``found.json``. Training as a whole is compared in ``test_agreement.py``.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed.tensor_parallel import apply_tensor_parallelism
from transformers.loss.loss_utils import ForCausalLMLoss

from workers.probe import tensor_parallel
from workers.probe.tensor_parallel.collectives import Axis
from workers.probe.tensor_parallel.modules import VocabParallelLoss
from workers.probe.tracker import total_gradient_norm

VOCABULARY = 97  # no ranks divide it
SHAPE = (2, 16)  # micro-batch and sequence
FIELDS = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4}


def build(**changes):
    fields = {"model_type": "llama", **FIELDS, **changes}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.train()


def tokens():
    return torch.randint(0, VOCABULARY, SHAPE, generator=torch.Generator().manual_seed(1))


def as_transformers(model, mesh):
    """Splits a decoder by its own plan."""
    apply_tensor_parallelism(model, mesh, model._expand_parallel_plan(model.tp_plan))


def saved_bytes(split, mesh, **changes):
    """What forward keeps for backward, but for parameters."""
    model = build(**changes)
    split(model, mesh)
    parameters = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    known = {p.untyped_storage().data_ptr() for p in parameters}
    saved = {}

    def pack(tensor):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = model(input_ids=tokens(), labels=tokens(), use_cache=False).loss
    loss.backward()
    return sum(saved.values())


def message(attempt):
    try:
        attempt()
    except ValueError as error:
        return str(error)
    return ""


def refusals(mesh):
    """What ``parallelize`` and the first forward say of sizes that do not fit."""

    def split(on, **changes):
        model = build(**changes)
        tensor_parallel.parallelize(model, on, recompute_allgather=False)
        return model

    odd = tokens()[:, 1:]
    return {
        "heads": message(lambda: split(mesh["tp"], num_key_value_heads=1)),
        "mlp": message(lambda: split(mesh["tp"], intermediate_size=49)),
        "mesh": message(lambda: split(mesh)),
        "sequence": message(lambda: split(mesh["tp"])(input_ids=odd, use_cache=False)),
    }


def norms_of_placements(mesh):
    """The norm of gradients that are split in every way, and of the whole gradients."""
    torch.manual_seed(3)
    ways = [(Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))]
    wholes = [torch.randn(6, 5) for _ in range(4)]
    parameters = []
    for whole, placements in zip(wholes, ways, strict=False):
        split = distribute_tensor(whole, mesh, placements)
        parameters.append(nn.Parameter(torch.zeros_like(split)))
        parameters[-1].grad = split
    parameters.append(nn.Parameter(torch.zeros(6, 5)))
    parameters[-1].grad = wholes[-1]
    parameters.append(nn.Parameter(torch.zeros(2)))  # without a gradient
    whole_norm = torch.stack(wholes).norm().item()
    return {"split": total_gradient_norm(parameters).item(), "whole": whole_norm}


def partial_gradient(mesh):
    """A gradient of ones that is yet to be summed: refused, then summed."""
    parameter = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Replicate()]))
    parameter.grad = DTensor.from_local(torch.ones(4), mesh, [Partial()], run_check=False)
    refused = message(lambda: total_gradient_norm([parameter]))
    tensor_parallel.reduce_partial_gradients([parameter])
    return {"refused": refused, "summed": total_gradient_norm([parameter]).item()}


def loss_errors(axis):
    """The largest difference to transformers' own loss, or its gradient, by how it is called."""
    torch.manual_seed(4)
    logits = torch.randn(*SHAPE, VOCABULARY)
    labels = torch.randint(0, VOCABULARY, SHAPE)
    labels[0, 3:7] = -100
    calls = {
        "mean": {"labels": labels},
        "sum": {"labels": labels, "num_items_in_batch": torch.tensor(7)},
        "shifted": {"labels": None, "shift_labels": labels},
    }
    found = {}
    for name, arguments in calls.items():
        whole = logits.clone().requires_grad_()
        expected = ForCausalLMLoss(whole, vocab_size=VOCABULARY, **arguments)
        expected.backward()
        part = logits.chunk(axis.size, -1)[axis.rank].clone().requires_grad_()
        loss = VocabParallelLoss(axis)(part, vocab_size=VOCABULARY, **arguments)
        loss.backward()
        assert part.grad is not None
        off = (part.grad - whole.grad.chunk(axis.size, -1)[axis.rank]).abs().max()
        found[name] = max(float(off), float((loss - expected).abs()))
    return found


def main(folder):
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=4
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tied, split = {"tie_word_embeddings": True}, tensor_parallel.parallelize
    found = {
        "refusals": refusals(mesh),
        "norms": norms_of_placements(mesh),
        "partial": partial_gradient(mesh["tp"]),
        "loss_errors": loss_errors(Axis.of(mesh["tp"])),
        "saved": {
            name: [
                saved_bytes(partial(split, recompute_allgather=on), mesh["tp"], **model)
                for on in (False, True)
            ]
            for name, model in (("tied", tied), ("experts", EXPERTS))
        },
        "gathered": [
            saved_bytes(how, mesh["tp"], vocab_size=VOCABULARY + 1)
            for how in (partial(split, style="gathered_logits"), as_transformers)
        ],
    }
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
