# Written by tuner on 2026-01-15 from study st-0123456789ab; its figures are
# measured, with torch 2.13.0, transformers 5.23.0.
# llama-3.1-8b on 8xa100-80gb: sequences of 4096 tokens, 32 in an optimizer
# step; adamw, bf16, gradients reduced in bf16.
# sharding=full_shard, tp_size=2, tp_recompute_allgather=true, pp_size=1,
# micro_batch_size=2, gradient_accumulation_steps=4, sync_each_batch=false,
# activation_checkpointing=none, cpu_offload=false
# - 3425 tokens/s per GPU (3390 to 3460)
# - 61.9 GiB of 79.2 GiB allocated on the fullest GPU (61.9 to 62.3)
# Read by tuner check, where no field says otherwise:
#   {"format":"torch","settings":"sharding=full_shard,tp_size=2,tp_recompute_all
#   gather=true,pp_size=1,micro_batch_size=2,gradient_accumulation_steps=4,sync_
#   each_batch=false,activation_checkpointing=none,cpu_offload=false","workload"
#   :{"model":null,"model_name":"llama-3.1-8b","sequence_length":4096,"global_ba
#   tch_size":32,"optimizer":"adamw","precision":"bf16","reduce_dtype":"bf16"},"
#   cluster":"8xa100-80gb","framework":{"name":"torch","versions":{"torch":"2.13
#   .0"}}}
#
# Put tuned.py beside your training script, which does this, or more:
#     mesh = start()
#     model = prepare(load(MODEL), mesh)
#     optimizer = make_optimizer(model, LEARNING_RATE)
#     for batches in optimizer_steps(loader(DATASET)):
#         loss = train_step(model, optimizer, batches)
# where DATASET gives dictionaries with input_ids and labels. Start it on each
# node:
#     torchrun --standalone --nproc-per-node 8 SCRIPT.py
#
# Needs torch 2.11 and transformers 5.17, or newer.
# Tensor parallelism is that of the probes, from tuner, which must be installed
# where the script runs; a folder or module of yours called workers would hide
# it.

import os
from itertools import islice

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM

from workers.probe.tensor_parallel import parallelize, reduce_partial_gradients  # of tuner

SHARDING = "full_shard"
TP_SIZE = 2
TP_RECOMPUTE_ALLGATHER = True
PP_SIZE = 1
MICRO_BATCH_SIZE = 2
GRADIENT_ACCUMULATION_STEPS = 4
SYNC_EACH_BATCH = False
ACTIVATION_CHECKPOINTING = "none"
CPU_OFFLOAD = False
WORLD_SIZE = 8
# an optimizer step: 2 (micro-batch) x 4 (accumulation) x 4 (processes) = 32 sequences
# of 4096 tokens each


def start():
    """Join the other processes, which torchrun has started: the mesh of all ranks."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    size = dist.get_world_size()
    assert size == WORLD_SIZE, f"start {WORLD_SIZE} processes, and not {size}"
    names = ("dp_shard", "tp")
    return init_device_mesh("cuda", (4, 2), mesh_dim_names=names)


def load(model):
    """A model by its name or path for transformers; yours may come from elsewhere."""
    model = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model.config.use_cache = False
    return model.train()


def prepare(model, mesh):
    """The model with the settings applied, on this process's device."""
    parallelize(model, mesh["tp"], recompute_allgather=TP_RECOMPUTE_ALLGATHER)
    shard(model, mesh["dp_shard"])
    return model


def shard(model, mesh):
    """FSDP2: each layer by itself, the embedding, and the last norm with lm_head."""
    options = {
        "mesh": mesh,
        "reshard_after_forward": True,
    }
    for module in list(model.modules()):
        if type(module).__name__ == "LlamaDecoderLayer":
            fully_shard(module, **options)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    norms = [m for m in model.base_model.children() if "Norm" in type(m).__name__]
    if head.weight is embedding.weight:
        last = [*norms[-1:], embedding, head]
    else:
        last = [*norms[-1:], head]
        fully_shard(embedding, **options)
    fully_shard(last, **{**options, "reshard_after_forward": False})
    fully_shard(model, **{**options, "reshard_after_forward": None})


def make_optimizer(model, lr):
    return torch.optim.AdamW(model.parameters(), lr=lr)


def train_step(model, optimizer, batches):
    """One optimizer step on GRADIENT_ACCUMULATION_STEPS micro-batches of dictionaries
    with input_ids and labels; the mean loss of this process.
    """
    total = torch.zeros((), device="cuda")
    for number, batch in enumerate(batches, 1):
        batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
        last = number == GRADIENT_ACCUMULATION_STEPS
        model.set_requires_gradient_sync(last)
        loss = model(**batch).loss / GRADIENT_ACCUMULATION_STEPS
        loss.backward()
        total += loss.detach()
    reduce_partial_gradients(model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    return total


def loader(dataset, **options):
    """Micro-batches of this process's share; all ranks of the axis "tp" have the same."""
    replicas, share = WORLD_SIZE // TP_SIZE, dist.get_rank() // TP_SIZE
    sampler = DistributedSampler(dataset, num_replicas=replicas, rank=share, drop_last=True)
    options = {"batch_size": MICRO_BATCH_SIZE, "sampler": sampler, "drop_last": True, **options}
    return DataLoader(dataset, **options)


def optimizer_steps(batches):
    """The micro-batches of one optimizer step after the other."""
    batches, count = iter(batches), GRADIENT_ACCUMULATION_STEPS
    while len(step := list(islice(batches, count))) == count:
        yield step
