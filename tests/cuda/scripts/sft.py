"""TRL's SFTTrainer, as its users write it: nothing in it knows of a rehearsal."""

import argparse

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--four-bits", action="store_true")
asked = parser.parse_args()

options = {"dtype": torch.bfloat16}
if asked.four_bits:
    options["quantization_config"] = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )  # fmt: skip
arguments = SFTConfig(
    output_dir="out", per_device_train_batch_size=4, max_length=512, gradient_checkpointing=True,
    bf16=True, max_steps=20, save_steps=2, logging_steps=1, report_to="none",
    model_init_kwargs=options,
)  # fmt: skip
data = load_dataset("json", data_files=f"{asked.folder}/text/train.jsonl", split="train")
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
SFTTrainer(model=asked.folder, args=arguments, train_dataset=data, peft_config=lora).train()
