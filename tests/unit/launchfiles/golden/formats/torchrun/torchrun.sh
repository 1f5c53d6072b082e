#!/bin/sh
# Written by tuner on 2026-01-15 from study st-0123456789ab; its figures are
# measured, with accelerate 1.15.0, torch 2.13.0, transformers 5.23.0.
# llama-3.1-8b on 8xa100-80gb: sequences of 4096 tokens, 32 in an optimizer
# step; adamw, bf16, gradients reduced in bf16.
# sharding=full_shard, tp_size=2, tp_recompute_allgather=true, pp_size=1,
# micro_batch_size=2, gradient_accumulation_steps=4, sync_each_batch=false,
# activation_checkpointing=none, cpu_offload=false
# - 3425 tokens/s per GPU (3390 to 3460)
# - 61.9 GiB of 79.2 GiB allocated on the fullest GPU (61.9 to 62.3)
# Read by tuner check, where no field says otherwise:
#   {"format":"torchrun","settings":"sharding=full_shard,tp_size=2,tp_recompute_
#   allgather=true,pp_size=1,micro_batch_size=2,gradient_accumulation_steps=4,sy
#   nc_each_batch=false,activation_checkpointing=none,cpu_offload=false","worklo
#   ad":{"model":null,"model_name":"llama-3.1-8b","sequence_length":4096,"global
#   _batch_size":32,"optimizer":"adamw","precision":"bf16","reduce_dtype":"bf16"
#   },"cluster":"8xa100-80gb","framework":{"name":"torch","versions":{"torch":"2
#   .13.0"}}}
#
# sh torchrun.sh SCRIPT.py ARGUMENTS
#
# The settings are in force only if the script applies them: from tuner's
# formats accelerate, trainer or torch, or from the variables below.
set -eu
export TUNED_SHARDING=full_shard
export TUNED_TP_SIZE=2
export TUNED_TP_RECOMPUTE_ALLGATHER=true
export TUNED_PP_SIZE=1
export TUNED_CP_SIZE=1
export TUNED_MICRO_BATCH_SIZE=2
export TUNED_GRADIENT_ACCUMULATION_STEPS=4
export TUNED_SYNC_EACH_BATCH=false
export TUNED_DEFER_ALL_REDUCE=false
export TUNED_ACTIVATION_CHECKPOINTING=none
export TUNED_CPU_OFFLOAD=false
export TUNED_FUSED_LOSS=false
export TUNED_WORLD_SIZE=8
export TUNED_GLOBAL_BATCH_SIZE=32
export TUNED_SEQUENCE_LENGTH=4096
export TUNED_OPTIMIZER=adamw
export TUNED_PRECISION=bf16
export TUNED_REDUCE_DTYPE=bf16
: "${1:?usage: sh $0 SCRIPT.py ARGUMENTS}"
exec torchrun --standalone --nproc-per-node 8 "$@"
