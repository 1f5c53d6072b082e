"""DeepSpeed's engine, as its users write it: nothing in it knows of a rehearsal."""

import argparse

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--local_rank", type=int, default=-1)
asked = parser.parse_args()
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": asked.stage, "sub_group_size": 1_000_000},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
}
llama = AutoConfig.for_model(
    "llama", hidden_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1,
    intermediate_size=1792, vocab_size=32_000,
)  # fmt: skip
deepspeed.init_distributed()
with deepspeed.zero.Init(config_dict_or_path=config, enabled=asked.stage == 3):
    model = AutoModelForCausalLM.from_config(llama)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(20):
    ids = torch.randint(0, 32_000, (2, 256), device=engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
