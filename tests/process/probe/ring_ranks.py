"""Ranks of torch's ring attention on CPUs: its buffers and calls, and what an exported loop trains.

python -m tests.process.probe.ring_ranks RANKS RANK KEYS        buffers, of one rank alone
torchrun ... -m tests.process.probe.ring_ranks LOOP.py          training, of all
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.testing._internal.distributed.fake_pg import FakeStore

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
TOKENS, HEADS, CHANNELS = 256, 32, 128


def buffers(ranks, rank, keys):
    """Peaks over what is given and returned, in bytes, and the bytes of each collective."""
    from workers.probe.tracker import Phase, StorageTracker

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())

    def made(heads):  # as transformers gives them: heads lie beside each other
        shape = (1, TOKENS, heads, CHANNELS)
        return torch.zeros(shape, dtype=torch.bfloat16).transpose(1, 2)

    q, k, v = made(HEADS), made(keys), made(keys)
    tracker, found = StorageTracker(Phase()), {}
    for tensor in (q, k, v):
        tracker.add(tensor)
    common = {"query": q, "key": k, "value": v, "is_causal": True, "dropout_p": 0.0}
    with tracker:
        start = tracker.current_bytes
        out, rows = ring._templated_ring_attention(dist.group.WORLD, 2, FORWARD, **common)
        found["forward"] = tracker.peak_bytes - start - out.untyped_storage().nbytes()
        found["calls"] = [(one.op, one.bytes) for one in tracker.calls]
        tracker.reset_peak()
        given = torch.empty_like(out)
        start = tracker.current_bytes
        results = ring._templated_ring_attention_backward(
            dist.group.WORLD, 2, BACKWARD, grad_out=given, grad_out_name="grad_out", out=out,
            logsumexp=rows, **common,
        )  # fmt: skip
        own = sum(tensor.numel() * tensor.element_size() for tensor in results[:3])
        found["backward"] = tracker.peak_bytes - start - own
        found["back"] = [(one.op, one.bytes) for one in tracker.calls]
    return found


def on_cpu():
    """CPU's kernel among those that the ring knows; all else of it is torch's own."""

    def local(one):
        return one._local_tensor if isinstance(one, DTensor) else one

    def run(template, names):
        def handler(op, args, kwargs):
            mesh = next(one for one in args if isinstance(one, DTensor)).device_mesh
            given = dict(zip(names, map(local, args), strict=False)) | kwargs
            given.pop("attn_mask", None)
            if template is ring._templated_ring_attention_backward:
                given["grad_out_name"] = "grad_out"
            results = template(mesh.get_group(), 2, op, **{"dropout_p": 0.0, **given})
            return tuple(DTensor.from_local(one, mesh, [Shard(2)]) for one in results[:3])

        return handler

    inputs = ("query", "key", "value")
    back = ("grad_out", *inputs, "out", "logsumexp", "dropout_p", "is_causal")
    ring.custom_ops[FORWARD] = run(
        ring._templated_ring_attention, (*inputs, "dropout_p", "is_causal")
    )
    ring.custom_ops[BACKWARD] = run(ring._templated_ring_attention_backward, back)


def trains(loop):
    """The losses and the largest difference of gradients of the exported loop and one process."""
    from accelerate.big_modeling import _attach_context_parallel_hooks
    from transformers import LlamaConfig, LlamaForCausalLM

    dist.init_process_group("gloo")
    on_cpu()
    world, code = dist.get_world_size(), Path(loop).read_text(encoding="utf-8")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads))
    ids = torch.randint(0, 64, (2, 32))
    whole = {"input_ids": ids, "labels": ids.clone()}
    whole["labels"][0, 5:21] = -100  # more tokens count on one rank than on another
    plain = model(**whole).loss
    plain.backward()
    alone = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    _attach_context_parallel_hooks(model)
    mesh, losses = init_device_mesh("cpu", (world,)), []

    def backward(loss):
        losses.append(loss.detach())
        loss.backward()

    accelerator = SimpleNamespace(  # accelerate's own takes GPUs alone
        parallelism_config=SimpleNamespace(cp_size=world),
        accumulate=lambda model: contextlib.nullcontext(),
        backward=backward,
        maybe_context_parallel=lambda buffers, dims, kept: context_parallel(
            mesh, buffers=buffers, buffer_seq_dims=dims, no_restore_buffers=kept
        ),
    )
    nothing = SimpleNamespace(step=lambda: None, zero_grad=lambda: None)
    there = {"torch": torch, "accelerator": accelerator, "model": model, "optimizer": nothing}
    exec(code, there | {"batches": [{name: one.clone() for name, one in whole.items()}]})
    off = 0.0
    for parameter, expected in zip(model.parameters(), alone, strict=True):
        dist.all_reduce(parameter.grad)  # FSDP's mean
        off = max(off, float((parameter.grad / world - expected).norm() / expected.norm()))
    dist.all_reduce(losses[0])
    return {"plain": plain.item(), "ring": losses[0].item() / world, "off": off}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(buffers(*map(int, sys.argv[1:]))))
    else:
        torch.set_num_threads(1)
        told = trains(sys.argv[1])
        if os.environ["RANK"] == "0":
            print(json.dumps(told), flush=True)
        dist.barrier()
        os._exit(0)  # gloo's threads may abort a process that ends by itself
