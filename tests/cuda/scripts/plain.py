"""A plain loop with FSDP2 or DDP, as its users write them: nothing in it knows of a rehearsal."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM

MODELS = {
    "llama-3.1-8b": {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128_256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
        "rope_theta": 500_000.0,
    },
    "gpt2": {"model_type": "gpt2"},
    "tinyllama-1.1b": {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "vocab_size": 32_000,
        "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 5632,
    },
}  # fmt: skip

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, default="llama-3.1-8b")
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--sequence", type=int, default=4096)
parser.add_argument(
    "--ddp", action="store_true", help="in fp32 and autocast; otherwise FSDP2, bf16"
)
parser.add_argument("--checkpoint", action="store_true")
asked = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
config = AutoConfig.for_model(**MODELS[asked.model])
with torch.device("meta"):
    dtype = torch.float32 if asked.ddp else torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
model.config.use_cache = False
layers = model.model.layers if hasattr(model, "model") else model.transformer.h
if asked.checkpoint:
    of_layer = type(layers[0])
    apply_activation_checkpointing(model, check_fn=lambda one: isinstance(one, of_layer))
if asked.ddp:
    model.to_empty(device="cuda")
    model = DistributedDataParallel(model)
else:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
model.train()
for _ in range(100):
    ids = torch.randint(0, config.vocab_size, (asked.micro, asked.sequence), device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=asked.ddp):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
