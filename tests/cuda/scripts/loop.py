"""A loop with accelerate, as its users write them: nothing in it knows of a rehearsal."""

import sys

import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM

accelerator = Accelerator(gradient_accumulation_steps=2)
llama = AutoConfig.for_model(
    "llama", hidden_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
    intermediate_size=1792, vocab_size=32_000,
)  # fmt: skip
model = AutoModelForCausalLM.from_config(llama)
optimizer = torch.optim.AdamW(model.parameters())
batches = torch.utils.data.DataLoader(torch.randint(0, 32_000, (400, 256)), batch_size=2)
if "--compile" in sys.argv:
    model = torch.compile(model)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for ids in batches:
    with accelerator.accumulate(model):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state("state")
