#!/bin/sh
# Written by tuner on 2026-01-15 from study st-0123456789ab; its figures are
# measured, with accelerate 1.15.0, torch 2.13.0, transformers 5.23.0.
# gpt2 on 2x4xa10g: sequences of 1024 tokens, 32 in an optimizer step; adamw,
# bf16, gradients reduced in bf16.
# sharding=ddp, tp_size=1, tp_recompute_allgather=false, pp_size=1,
# micro_batch_size=2, gradient_accumulation_steps=2, sync_each_batch=false,
# activation_checkpointing=none, cpu_offload=false
# - 3425 tokens/s per GPU (3390 to 3460)
# - 61.9 GiB of 79.2 GiB allocated on the fullest GPU (61.9 to 62.3)
# Read by tuner check, where no field says otherwise:
#   {"format":"trainer-flags","settings":"sharding=ddp,tp_size=1,tp_recompute_al
#   lgather=false,pp_size=1,micro_batch_size=2,gradient_accumulation_steps=2,syn
#   c_each_batch=false,activation_checkpointing=none,cpu_offload=false","workloa
#   d":{"model":null,"model_name":"gpt2","sequence_length":1024,"global_batch_si
#   ze":32,"optimizer":"adamw","precision":"bf16","reduce_dtype":"bf16"},"cluste
#   r":"2x4xa10g","framework":{"name":"torch","versions":{"torch":"2.13.0"}}}
#
# On each of the 2 nodes, with the address of one of them:
#     MASTER_ADDR=ADDRESS sh trainer.sh SCRIPT.py ARGUMENTS
#
# For a script that reads its TrainingArguments by HfArgumentParser.
# Load the model with dtype=torch.bfloat16 and attn_implementation='sdpa', and
# set model.config.use_cache = False.
# Sequences are of 1024 tokens; an optimizer step: 2 (micro-batch) x 2
# (accumulation) x 8 (processes) = 32 sequences, so start 8 processes: torchrun
# --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500
# SCRIPT.py
set -eu
: "${1:?usage: sh $0 SCRIPT.py ARGUMENTS}"
: "${MASTER_ADDR:?set it to the address of one of the nodes, the same on all}"
exec torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR":29500 "$@" \
    --run_name 'tuner st-0123456789ab 2026-01-15 measured; accelerate 1.15.0, torch 2.13.0, transformers 5.23.0' \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 2 \
    --accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": false}}' \
    --optim adamw_torch \
    --bf16 false \
    --gradient_checkpointing false \
    --ddp_find_unused_parameters false
