"""A script with transformers' Trainer, as its users write them: it knows of no rehearsal."""

import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=32)
parser.add_argument("--hidden", type=int, default=4096)
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--sequence", type=int, default=4096)
parser.add_argument("--save-steps", type=int, default=1000)
parser.add_argument("--lora", action="store_true")
parser.add_argument("--reentrant", action="store_true")
parser.add_argument("--compile", action="store_true")
asked = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        ids = torch.randint(0, 32_000, (asked.sequence,))
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=asked.micro,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": asked.reentrant},
    optim="adamw_torch",
    learning_rate=1e-5,
    max_steps=100,
    save_steps=asked.save_steps,
    logging_steps=1,
    report_to="none",
    torch_compile=asked.compile,
)
mistral = AutoConfig.for_model(
    "mistral", hidden_size=asked.hidden, num_hidden_layers=asked.layers,
    num_attention_heads=asked.hidden // 128, num_key_value_heads=asked.hidden // 512,
    intermediate_size=asked.hidden * 7 // 2, vocab_size=32_000, sliding_window=None,
)  # fmt: skip
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):  # the host need not hold the weights
    model = AutoModelForCausalLM.from_config(mistral)
torch.set_default_dtype(torch.float32)
model.config.use_cache = False
if asked.lora:
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    lora = LoraConfig(r=16, lora_alpha=16, lora_dropout=0.1, target_modules=targets)
    model.enable_input_require_grads()  # as TRL does: a reentrant checkpoint needs it
    model = get_peft_model(model, lora)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
