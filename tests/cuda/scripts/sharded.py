"""A loop with FSDP2, told its batch and checkpointing: nothing in it knows of a rehearsal."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch", type=int)
parser.add_argument("--accumulation", type=int)
parser.add_argument("--checkpointing", action="store_true")
options = parser.parse_args()
dist.init_process_group()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
llama = AutoConfig.for_model(
    "llama", hidden_size=1024, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=4,
    intermediate_size=2816, vocab_size=32_000, tie_word_embeddings=False,
)  # fmt: skip
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(llama, dtype=torch.bfloat16)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
if options.checkpointing:
    model.activation_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    for _ in range(options.accumulation):
        ids = torch.zeros(options.micro_batch, 256, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
