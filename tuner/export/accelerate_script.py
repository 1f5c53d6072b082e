"""What a training script with accelerate must say itself, as Python code.

It is the counterpart of the probe program's step: whatever the probe sets and the configuration
file cannot. ``MODEL``, ``DATASET`` and ``LEARNING_RATE`` are the user's own.
"""

from collections.abc import Iterator

from tuner.cluster import Device
from tuner.model import ModelConfig
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.study import Question
from tuner.workload import Optimizer, Precision, ReduceDtype

_DTYPES = {ReduceDtype.BF16: "torch.bfloat16", ReduceDtype.FP32: "torch.float32"}
_OPTIMIZERS = {
    Optimizer.ADAMW: "torch.optim.AdamW",
    Optimizer.ADAMW_8BIT: "AdamW8bit",
    Optimizer.SGD: "torch.optim.SGD",
}
_HOOK = """\


def reduce_gradients(group, bucket):
    total = bucket.buffer().to({dtype}).div_(dist.get_world_size(group))
    future = dist.all_reduce(total, group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))
"""
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


def is_sharded(question: Question, settings: Settings) -> bool:
    """Whether FSDP2 wraps the model: as in the probe, not on a single rank."""
    return settings.sharding is not Sharding.DDP and has_data_parallel_ranks(question)


def has_data_parallel_ranks(question: Question) -> bool:
    """Whether ranks see different data; accelerate knows no other kind here."""
    return question.cluster.world_size > 1


def checkpoints_in_script(question: Question, settings: Settings) -> bool:
    """Whether the script, and not the file, must turn activation checkpointing on.

    The file can for FSDP only. There it causes the same collectives, the same peak memory and,
    to the last bit, the same losses as ``gradient_checkpointing_enable``, which the probe uses:
    compared over 2 ranks with a Llama. But accelerate wraps layers with
    ``preserve_rng_state=False`` (``fsdp2_apply_ac``), which gives wrong gradients where a layer
    draws random numbers.
    """
    if settings.activation_checkpointing is Checkpointing.NONE:
        return False
    return not is_sharded(question, settings) or _draws_random_numbers(question.workload.model)


def _draws_random_numbers(model: ModelConfig) -> bool:
    return any(
        value > 0 for name, value in model.fields.items() if "drop" in name or "jitter" in name
    )


def _weights(question: Question) -> ReduceDtype:
    """Number format of weights, and so of gradients."""
    full = question.workload.precision is Precision.BF16
    return ReduceDtype.BF16 if full else ReduceDtype.FP32


def _hook(question: Question, settings: Settings) -> str | None:
    """Code by which DDP reduces gradients in another number format than their own.

    torch's ``bf16_compress_hook`` does the same, but it is refused on a CPU.
    """
    reduce = question.workload.reduce_dtype
    if is_sharded(question, settings) or not has_data_parallel_ranks(question):
        return None
    if reduce is None or reduce is _weights(question):
        return None
    return _HOOK.format(dtype=_DTYPES[reduce])


def _policy(question: Question, settings: Settings) -> str | None:
    """FSDP's number formats where accelerate's own choice is another than the probe's.

    Without mixed precision it chooses none: gradients are reduced in the weights' format. With
    it, it chooses bf16 for everything, the loss too, which is coarse.
    """
    if not is_sharded(question, settings):
        return None
    reduce = question.workload.reduce_dtype
    assert reduce is not None
    if question.workload.precision is Precision.BF16_MIXED:
        return f"param_dtype=torch.bfloat16, reduce_dtype={_DTYPES[reduce]}"
    return None if reduce is _weights(question) else f"reduce_dtype={_DTYPES[reduce]}"


def _imports(question: Question, settings: Settings) -> Iterator[str]:
    hook, policy = _hook(question, settings), _policy(question, settings)
    yield "import torch"
    if hook:
        yield "import torch.distributed as dist"
    yield "from accelerate import Accelerator"
    plugin = "FullyShardedDataParallelPlugin, " if policy else ""
    yield f"from accelerate.utils import {plugin}GradientAccumulationPlugin"
    if policy:
        yield "from torch.distributed.fsdp import MixedPrecisionPolicy"
    yield "from torch.utils.data import DataLoader"
    if question.workload.optimizer is Optimizer.ADAMW_8BIT:
        yield "from torchao.optim import AdamW8bit"
    yield "from transformers import AutoModelForCausalLM"


def _functions(question: Question, settings: Settings) -> Iterator[str]:
    if hook := _hook(question, settings):
        yield hook
    yield ""


def _accelerator(question: Question, settings: Settings) -> Iterator[str]:
    policy = _policy(question, settings)
    yield "accelerator = Accelerator("
    if question.cluster.gpu.device is Device.CPU and not is_sharded(question, settings):
        yield "    cpu=True,"
    yield "    gradient_accumulation_plugin=GradientAccumulationPlugin("
    yield f"        num_steps={settings.gradient_accumulation_steps},"
    yield f"        sync_each_batch={settings.sync_each_batch},"
    yield "    ),"
    if policy:
        yield "    fsdp_plugin=FullyShardedDataParallelPlugin(  # the rest is the file's"
        yield "        mixed_precision_policy=MixedPrecisionPolicy("
        yield f"            {policy}"
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
    dtype = _DTYPES[_weights(question)]
    yield f'    MODEL, dtype={dtype}, attn_implementation="sdpa"'
    yield ")"
    yield "model.config.use_cache = False"
    yield "model.train()"
    if checkpoints_in_script(question, settings):
        yield "model.gradient_checkpointing_enable("
        yield '    gradient_checkpointing_kwargs={"use_reentrant": False}'
        yield ")"


def _optimizer(question: Question, settings: Settings) -> Iterator[str]:
    name = _OPTIMIZERS[question.workload.optimizer]
    yield f"optimizer = {name}(model.parameters(), lr=LEARNING_RATE)"


def _data(question: Question, settings: Settings) -> Iterator[str]:
    work, size = question.workload, question.cluster.world_size
    yield (
        f"# an optimizer step: {settings.micro_batch_size} (micro-batch)"
        f" x {settings.gradient_accumulation_steps} (accumulation) x {size} (processes)"
        f" = {work.global_batch_size} sequences"
    )
    yield f"# of {work.sequence_length} tokens each"
    yield f"batches = DataLoader(DATASET, batch_size={settings.micro_batch_size})"


def _prepare(question: Question, settings: Settings) -> Iterator[str]:
    yield "model, optimizer, batches = accelerator.prepare(model, optimizer, batches)"
    if _hook(question, settings):
        # DistributedDataParallelKwargs(comm_hook=...) is passed over on a CPU
        yield "model.register_comm_hook(None, reduce_gradients)"
