"""A training script with transformers' Trainer."""

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tuner.integrations.trainer import TunerCallback

torch.manual_seed(0)
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=64,
    )
)
tokens = torch.randint(0, 64, (256, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]
Trainer(model=model, args=arguments, train_dataset=data, callbacks=[TunerCallback()]).train()
