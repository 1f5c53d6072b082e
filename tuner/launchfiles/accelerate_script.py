"""Writes the Python code that a training script with accelerate must have itself.

It is the counterpart of the probe program's step: whatever the probe sets and the configuration
file cannot. ``MODEL``, ``DATASET`` and ``LEARNING_RATE`` are the user's own.
"""

from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.script import checkpoints_in_script, is_sharded
from tuner.core.study import Question
from tuner.core.workload import Optimizer
from tuner.launchfiles.contract import batch_text
from tuner.launchfiles.fsdp import (
    DTYPES,
    OPTIMIZERS,
    REDUCE_HOOK,
    ddp_reduce_dtype,
    policy,
    weights,
)

_PLUGIN = """\
    fsdp_plugin=FullyShardedDataParallelPlugin(  # the rest is the file's
        mixed_precision_policy=MixedPrecisionPolicy(
            {casts}
        ),
    ),"""
_CHECKPOINTING = """\
model.gradient_checkpointing_enable(
    gradient_checkpointing_kwargs={"use_reentrant": False}
)"""
_LOOP = """\

for batch in batches:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()"""


def script(question: Question, settings: Settings) -> str:
    """Code of a training script that, under the configuration file, has ``settings`` in force.

    It runs as it stands once ``MODEL`` (a name or path for transformers), ``DATASET`` (of
    dictionaries with ``input_ids`` and ``labels``) and ``LEARNING_RATE`` are defined.
    """
    work, casts = question.workload, policy(question, settings)
    hook, sharded = ddp_reduce_dtype(question, settings), is_sharded(question, settings)
    size, dtype = question.cluster.world_size, DTYPES[weights(question)]
    on_cpu = question.cluster.gpu.device is Device.CPU and not sharded
    plugin = "FullyShardedDataParallelPlugin, " if casts else ""
    parts = (
        "import torch",
        "import torch.distributed as dist" if hook else None,
        "from accelerate import Accelerator",
        f"from accelerate.utils import {plugin}GradientAccumulationPlugin",
        "from torch.distributed.fsdp import MixedPrecisionPolicy" if casts else None,
        "from torch.utils.data import DataLoader",
        "from torchao.optim import AdamW8bit" if work.optimizer is Optimizer.ADAMW_8BIT else None,
        "from transformers import AutoModelForCausalLM",
        REDUCE_HOOK.format(dtype=DTYPES[hook]) if hook else None,
        "",
        "accelerator = Accelerator(",
        "    cpu=True," if on_cpu else None,
        "    gradient_accumulation_plugin=GradientAccumulationPlugin(",
        f"        num_steps={settings.gradient_accumulation_steps},",
        f"        sync_each_batch={settings.sync_each_batch},",
        "    ),",
        _PLUGIN.format(casts=casts) if casts else None,
        ")",
        # without its file, or on other devices, a script would train alone without a word
        'assert accelerator.is_fsdp2, "accelerate shards with the file, and on GPUs only"'
        if sharded
        else None,
        f'assert accelerator.num_processes == {size}, "launch {size} processes with the file"',
        "",
        "model = AutoModelForCausalLM.from_pretrained(",
        f'    MODEL, dtype={dtype}, attn_implementation="sdpa"',
        ")",
        "model.config.use_cache = False",
        "model.train()",
        _CHECKPOINTING if checkpoints_in_script(question, settings) else None,
        f"optimizer = {OPTIMIZERS[work.optimizer]}(model.parameters(), lr=LEARNING_RATE)",
        f"# {batch_text(question, settings)}",
        f"# of {work.sequence_length} tokens each",
        f"batches = DataLoader(DATASET, batch_size={settings.micro_batch_size})",
        "model, optimizer, batches = accelerator.prepare(model, optimizer, batches)",
        # DistributedDataParallelKwargs(comm_hook=...) is passed over on a CPU
        "model.register_comm_hook(None, reduce_gradients)" if hook else None,
        _LOOP,
    )
    return "\n".join(part for part in parts if part is not None)
