"""Writes the Python code that a training script with accelerate must have itself.

It is the counterpart of the probe program's step: whatever the probe sets and the configuration
file cannot. ``MODEL``, ``DATASET`` and ``LEARNING_RATE`` are the user's own.
"""

from tuner.core.cluster import Device
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.script import checkpoints_in_script, is_sharded
from tuner.core.study import Question
from tuner.core.workload import Optimizer
from tuner.launchfiles.contract import batch_text
from tuner.launchfiles.fsdp import (
    DTYPES,
    MAKE_MUON,
    REDUCE_HOOK,
    checkpointing,
    checkpointing_imports,
    ddp_reduce_dtype,
    optimizer_call,
    optimizer_import,
    policy,
)
from tuner.launchfiles.model_code import (
    adapter_code,
    collate_code,
    freeze_code,
    imports,
    is_varlen,
    labels_text,
    loading_code,
    loss_code,
    mask_code,
    use_loss,
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
_DEFERS = """
        # over replicas after the last micro-batch only; accelerate has no option for it
        model.set_requires_all_reduce(accelerator.sync_gradients)"""
_LOOP = """\

for batch in batches:{masks}
    with accelerator.accumulate(model):{defers}
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()"""


_STEP = """
        optimizer.step()
        optimizer.zero_grad()"""
_STEPS = """
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()"""


def _checkpointing(question: Question, settings: Settings) -> tuple[str, ...]:
    if settings.activation_checkpointing is Checkpointing.FULL:
        return (_CHECKPOINTING,)
    return checkpointing(settings, varlen=is_varlen(question))


def script(question: Question, settings: Settings) -> str:
    """Code of a training script that, under the configuration file, has ``settings`` in force.

    It runs as it stands once ``MODEL`` (a name or path for transformers), ``DATASET`` (of
    dictionaries with ``input_ids`` and ``labels``; with packing of ``documents``,
    lists of tokens) and ``LEARNING_RATE`` are defined.
    """
    work, casts = question.workload, policy(question, settings)
    hook, sharded = ddp_reduce_dtype(question, settings), is_sharded(question, settings)
    collate, size = collate_code(question), question.cluster.world_size
    mask, masks = mask_code(question)
    freeze, freezes = freeze_code(question)
    on_cpu = question.cluster.gpu.device is Device.CPU and not sharded
    in_script = checkpoints_in_script(question, settings)
    checkpoints = _checkpointing(question, settings) if in_script else ()
    *peft, of_transformers = imports(question)
    plugin = "FullyShardedDataParallelPlugin, " if casts else ""
    reduces = REDUCE_HOOK.format(dtype=DTYPES[hook]).strip("\n") if hook else ""
    muon = work.optimizer is Optimizer.MUON
    loop = _LOOP.replace(_STEP, _STEPS) if muon else _LOOP
    functions = [reduces, loss_code(question, settings), freeze, collate, mask]
    functions = list(filter(None, [*functions, MAKE_MUON if muon else ""]))
    parts = (
        "import torch",
        "import torch.distributed as dist" if hook else None,
        "from accelerate import Accelerator",
        f"from accelerate.utils import {plugin}GradientAccumulationPlugin",
        *peft,
        "from torch.distributed.fsdp import MixedPrecisionPolicy" if casts else None,
        "from torch.utils.data import DataLoader",
        optimizer_import(work.optimizer) or None,
        of_transformers,
        *(checkpointing_imports(settings) if in_script else ()),
        "\n\n{}\n".format("\n\n\n".join(functions)) if functions else None,
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
        *loading_code(question),
        "model.train()",
        use_loss(question, settings) or None,
        freezes or None,
        *checkpoints,
        adapter_code(question, checkpointed=bool(checkpoints)) or None,
        f"optimizer{'s' * muon} = {optimizer_call(work.optimizer, 'LEARNING_RATE')}",
        f"# {batch_text(question, settings)}",
        f"# of {work.sequence_length} tokens each",
        f"# {labels}" if (labels := labels_text(question)) else None,
        f"batches = DataLoader(DATASET, batch_size={settings.micro_batch_size}"
        + (", collate_fn=collate)" if collate else ")"),
        "model, batches, *optimizers = accelerator.prepare(model, batches, *optimizers)"
        if muon
        else "model, optimizer, batches = accelerator.prepare(model, optimizer, batches)",
        # DistributedDataParallelKwargs(comm_hook=...) is passed over on a CPU
        "model.register_comm_hook(None, reduce_gradients)" if hook else None,
        loop.replace("{defers}", _DEFERS if settings.defer_all_reduce else "").replace(
            "{masks}", masks and f"\n    {masks}"
        ),
    )
    return "\n".join(part for part in parts if part is not None)
