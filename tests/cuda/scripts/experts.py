"""A mixture of experts in a plain loop, as its users write it: it knows of no rehearsal."""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

mixtral = AutoConfig.for_model(
    "mixtral", hidden_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=1024, vocab_size=2048, num_local_experts=8, num_experts_per_tok=2,
    tie_word_embeddings=False,
)  # fmt: skip
mixtral._experts_implementation = sys.argv[1]
model = AutoModelForCausalLM.from_config(mixtral, dtype=torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for _ in range(20):
    ids = torch.randint(0, 2048, (4, 256)).cuda()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
