"""Writes the Python code that a training script with accelerate must have itself.

It is the counterpart of the probe program's step: whatever the probe sets and the configuration
file cannot. ``MODEL``, ``DATASET`` and ``LEARNING_RATE`` are the user's own.
"""

from collections.abc import Iterator

from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.script import checkpoints_in_script, is_sharded
from tuner.core.study import Question
from tuner.core.workload import Optimizer
from tuner.launchfiles.contract import batch_text
from tuner.launchfiles.fsdp import DTYPES, REDUCE_HOOK, ddp_reduce_dtype, policy, weights

OPTIMIZERS = {
    Optimizer.ADAMW: "torch.optim.AdamW",
    Optimizer.ADAMW_8BIT: "AdamW8bit",
    Optimizer.SGD: "torch.optim.SGD",
}
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
    parts = (_imports, _functions, _accelerator, _guards, _model, _optimizer, _data, _prepare)
    lines = [line for part in parts for line in part(question, settings)]
    return "\n".join([*lines, _LOOP])


def _imports(question: Question, settings: Settings) -> Iterator[str]:
    hook, casts = ddp_reduce_dtype(question, settings), policy(question, settings)
    yield "import torch"
    if hook:
        yield "import torch.distributed as dist"
    yield "from accelerate import Accelerator"
    plugin = "FullyShardedDataParallelPlugin, " if casts else ""
    yield f"from accelerate.utils import {plugin}GradientAccumulationPlugin"
    if casts:
        yield "from torch.distributed.fsdp import MixedPrecisionPolicy"
    yield "from torch.utils.data import DataLoader"
    if question.workload.optimizer is Optimizer.ADAMW_8BIT:
        yield "from torchao.optim import AdamW8bit"
    yield "from transformers import AutoModelForCausalLM"


def _functions(question: Question, settings: Settings) -> Iterator[str]:
    if dtype := ddp_reduce_dtype(question, settings):
        yield REDUCE_HOOK.format(dtype=DTYPES[dtype])
    yield ""


def _accelerator(question: Question, settings: Settings) -> Iterator[str]:
    casts = policy(question, settings)
    yield "accelerator = Accelerator("
    if question.cluster.gpu.device is Device.CPU and not is_sharded(question, settings):
        yield "    cpu=True,"
    yield "    gradient_accumulation_plugin=GradientAccumulationPlugin("
    yield f"        num_steps={settings.gradient_accumulation_steps},"
    yield f"        sync_each_batch={settings.sync_each_batch},"
    yield "    ),"
    if casts:
        yield "    fsdp_plugin=FullyShardedDataParallelPlugin(  # the rest is the file's"
        yield "        mixed_precision_policy=MixedPrecisionPolicy("
        yield f"            {casts}"
        yield "        ),"
        yield "    ),"
    yield ")"


def _guards(question: Question, settings: Settings) -> Iterator[str]:
    """Without its file, or on other devices, a script would train alone without a word."""
    size = question.cluster.world_size
    if is_sharded(question, settings):
        yield 'assert accelerator.is_fsdp2, "accelerate shards with the file, and on GPUs only"'
    yield f'assert accelerator.num_processes == {size}, "launch {size} processes with the file"'
    yield ""


def _model(question: Question, settings: Settings) -> Iterator[str]:
    yield "model = AutoModelForCausalLM.from_pretrained("
    dtype = DTYPES[weights(question)]
    yield f'    MODEL, dtype={dtype}, attn_implementation="sdpa"'
    yield ")"
    yield "model.config.use_cache = False"
    yield "model.train()"
    if checkpoints_in_script(question, settings):
        yield "model.gradient_checkpointing_enable("
        yield '    gradient_checkpointing_kwargs={"use_reentrant": False}'
        yield ")"


def _optimizer(question: Question, settings: Settings) -> Iterator[str]:
    name = OPTIMIZERS[question.workload.optimizer]
    yield f"optimizer = {name}(model.parameters(), lr=LEARNING_RATE)"


def _data(question: Question, settings: Settings) -> Iterator[str]:
    yield f"# {batch_text(question, settings)}"
    yield f"# of {question.workload.sequence_length} tokens each"
    yield f"batches = DataLoader(DATASET, batch_size={settings.micro_batch_size})"


def _prepare(question: Question, settings: Settings) -> Iterator[str]:
    yield "model, optimizer, batches = accelerator.prepare(model, optimizer, batches)"
    if ddp_reduce_dtype(question, settings):
        # DistributedDataParallelKwargs(comm_hook=...) is passed over on a CPU
        yield "model.register_comm_hook(None, reduce_gradients)"
