"""A Python module that applies the settings with torch's own functions: ``from tuned import ...``.

It shards as accelerate 1.15 does for the probes (``fsdp2_prepare_model`` in
``utils/fsdp_utils.py``): a group for the embedding, each layer, and the last norm with ``lm_head``.
Tensor parallelism is the probe program's own, which the package installs with this one as
``workers.probe.tensor_parallel``: its ``parallelize`` and ``reduce_partial_gradients`` are kept for
these modules (docs/decisions). Everything else needs torch and transformers only.
"""

import json
from collections.abc import Iterator

from tuner.catalog.models import Task
from tuner.core.cluster import Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.script import is_sharded, torchrun
from tuner.core.study import Question
from tuner.core.workload import Loss, Optimizer, Precision
from tuner.launchfiles import contract as refusals
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    batch_text,
    comments,
    has_data_parallel_ranks,
    header,
    provenance,
)
from tuner.launchfiles.fsdp import (
    DTYPES,
    MAKE_MUON,
    REDUCE_HOOK,
    checkpointing,
    checkpointing_imports,
    ddp_reduce_dtype,
    layer_class,
    optimizer_call,
    optimizer_import,
    optimizer_needs,
    policy,
    reshards,
    weights,
)
from tuner.launchfiles.model_code import (
    attention,
    head_arguments,
    labels_text,
    loss_code,
    use_loss,
)

FILE_NAME = "tuned.py"

_USE = """\
mesh = start()
model = prepare(load(MODEL), mesh)
optimizer = make_optimizer(model, LEARNING_RATE)
for batches in optimizer_steps(loader(DATASET)):
    loss = train_step(model, optimizer, batches)"""

_LOADER = '''\
def loader(dataset, **options):
    """Micro-batches of this process's share; all ranks of the axis "tp" have the same."""
    replicas, share = WORLD_SIZE // TP_SIZE, dist.get_rank() // TP_SIZE
    sampler = DistributedSampler(dataset, num_replicas=replicas, rank=share, drop_last=True)
    options = {"batch_size": MICRO_BATCH_SIZE, "sampler": sampler, "drop_last": True, **options}
    return DataLoader(dataset, **options)


def optimizer_steps(batches):
    """The micro-batches of one optimizer step after the other."""
    batches, count = iter(batches), GRADIENT_ACCUMULATION_STEPS
    while len(step := list(islice(batches, count))) == count:
        yield step
'''


def _imports(question: Question, settings: Settings) -> Iterator[str]:
    sharded = is_sharded(question, settings)
    defers = _is_replicated(question, settings) and not settings.sync_each_batch
    fsdp = ["fully_shard"] if sharded else []
    fsdp += ["CPUOffloadPolicy"] if settings.cpu_offload else []
    fsdp += ["MixedPrecisionPolicy"] if policy(question, settings) else []
    yield "import os" if question.cluster.gpu.device is Device.CUDA else ""
    yield "from contextlib import nullcontext" if defers else ""
    yield "from itertools import islice"
    yield "\nimport torch"
    yield "import torch.distributed as dist"
    yield "from torch.distributed.device_mesh import init_device_mesh"
    yield f"from torch.distributed.fsdp import {', '.join(sorted(fsdp))}" if fsdp else ""
    yield "from torch.utils.data import DataLoader, DistributedSampler"
    selective = settings.activation_checkpointing is Checkpointing.SELECTIVE
    yield from checkpointing_imports(settings) if selective else ()
    yield optimizer_import(question.workload.optimizer)
    yield f"from transformers import {question.workload.model.task.auto_class}"
    yield from checkpointing_imports(settings) if not selective else ()
    if settings.splits_layers:
        yield (
            "\nfrom workers.probe.tensor_parallel import parallelize, reduce_partial_gradients"
            "  # of tuner"
        )


def _is_replicated(question: Question, settings: Settings) -> bool:
    """Tells whether DDP wraps the model."""
    return has_data_parallel_ranks(question, settings) and not is_sharded(question, settings)


def _start(question: Question, settings: Settings) -> Iterator[str]:
    on_cpu = question.cluster.gpu.device is Device.CPU
    axes = _axes(question, settings)
    yield "def start():"
    yield '    """Join the other processes, which torchrun has started: the mesh of all ranks."""'
    if not on_cpu:
        yield '    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    yield f'    dist.init_process_group("{"gloo" if on_cpu else "nccl"}")'
    yield "    size = dist.get_world_size()"
    yield '    assert size == WORLD_SIZE, f"start {WORLD_SIZE} processes, and not {size}"'
    sizes = ", ".join(str(size) for size in axes.values())
    names = ", ".join(f'"{name}"' for name in axes)
    comma = "," if len(axes) == 1 else ""
    yield f"    names = ({names}{comma})"
    device = "cpu" if on_cpu else "cuda"
    yield f'    return init_device_mesh("{device}", ({sizes}{comma}), mesh_dim_names=names)'


def _axes(question: Question, settings: Settings) -> dict[str, int]:
    """Sizes of the mesh's axes, outermost first, as the probe's mesh has them."""
    ranks = settings.data_parallel_size(question.cluster.world_size)
    hybrid = settings.sharding is Sharding.HYBRID_SHARD
    replicas = question.cluster.nodes if hybrid and is_sharded(question, settings) else 1
    axes = {"dp_replicate": replicas, "dp_shard": ranks // replicas, "tp": settings.tp_size}
    return {name: size for name, size in axes.items() if size > 1} or {"dp_shard": 1}


def _load(question: Question, settings: Settings) -> Iterator[str]:
    yield "def load(model):"
    yield '    """A model by its name or path for transformers; yours may come from elsewhere."""'
    yield f"    model = {question.workload.model.task.auto_class}.from_pretrained("
    given = f"{head_arguments(question)}dtype={DTYPES[weights(question)]}"
    yield f'        model, {given}, attn_implementation="{attention(question)}"'
    yield "    )"
    yield "    model.config.use_cache = False"
    yield "    return model.train()"


def _prepare(question: Question, settings: Settings) -> Iterator[str]:
    device = "cpu" if question.cluster.gpu.device is Device.CPU else "cuda"
    sharded = is_sharded(question, settings)
    yield "def prepare(model, mesh):"
    yield '    """The model with the settings applied, on this process\'s device."""'
    yield from (f"    {line}" for line in checkpointing(settings))
    if settings.splits_layers:
        work = question.workload
        gathers, narrow = work.gathers_logits, work.loss is Loss.OWN_DTYPE
        known = ["recompute_allgather=TP_RECOMPUTE_ALLGATHER"] if work.splits_sequence else []
        known += [] if work.splits_sequence else [f'style="{work.tensor_parallel}"']
        known += ["widens=False"] if narrow and not gathers else []
        yield f'    parallelize(model, mesh["tp"], {", ".join(known)})'
    if use := use_loss(question, settings):
        yield f"    {use}"
    if sharded:
        axes = ", ".join(f'"{name}"' for name in _axes(question, settings) if name != "tp")
        yield f"    shard(model, mesh[{axes}])"
    else:  # FSDP moves what it shards
        yield f'    model.to("{device}")'
    if _is_replicated(question, settings):
        devices = "" if device == "cpu" else ", device_ids=[torch.cuda.current_device()]"
        yield f"    model = torch.nn.parallel.DistributedDataParallel(model{devices})"
        if ddp_reduce_dtype(question, settings):
            yield "    model.register_comm_hook(None, reduce_gradients)"
    yield "    return model"


def _shard(question: Question, settings: Settings) -> Iterator[str]:
    if not is_sharded(question, settings):
        return
    layer = layer_class(question.workload.model)
    options = ['"mesh": mesh', f'"reshard_after_forward": {reshards(settings)}']
    if casts := policy(question, settings):
        options.append(f'"mp_policy": MixedPrecisionPolicy({casts})')
    if settings.cpu_offload:
        pinned = question.cluster.gpu.device is Device.CUDA
        options.append(f'"offload_policy": CPUOffloadPolicy(pin_memory={pinned})')
    yield "def shard(model, mesh):"
    yield '    """FSDP2: each layer by itself, the embedding, and the last norm with lm_head."""'
    yield "    options = {"
    yield from (f"        {option}," for option in options)
    yield "    }"
    yield "    for module in list(model.modules()):"
    yield f'        if type(module).__name__ == "{layer}":'
    yield "            fully_shard(module, **options)"
    yield "    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()"
    yield '    norms = [m for m in model.base_model.children() if "Norm" in type(m).__name__]'
    if question.workload.model.task is Task.SEQUENCE_CLASSIFICATION:  # its head is the model's own
        yield "    fully_shard(embedding, **options)"
        yield "    if norms:"
        yield '        fully_shard(norms[-1:], **{**options, "reshard_after_forward": False})'
        yield '    fully_shard(model, **{**options, "reshard_after_forward": None})'
        return
    yield "    if head.weight is embedding.weight:"
    yield "        last = [*norms[-1:], embedding, head]"
    yield "    else:"
    yield "        last = [*norms[-1:], head]"
    yield "        fully_shard(embedding, **options)"
    yield '    fully_shard(last, **{**options, "reshard_after_forward": False})'
    yield '    fully_shard(model, **{**options, "reshard_after_forward": None})'


def _optimizer(question: Question, settings: Settings) -> Iterator[str]:
    if question.workload.optimizer is Optimizer.MUON:
        yield f"{MAKE_MUON}\n\n"
    yield "def make_optimizer(model, lr):"
    yield f"    return {optimizer_call(question.workload.optimizer, 'lr')}"


def _step(question: Question, settings: Settings) -> Iterator[str]:
    device = "cpu" if question.cluster.gpu.device is Device.CPU else "cuda"
    sharded, replicated = is_sharded(question, settings), _is_replicated(question, settings)
    casts = question.workload.precision is Precision.BF16_MIXED and not sharded
    yield "def train_step(model, optimizer, batches):"
    yield '    """One optimizer step on GRADIENT_ACCUMULATION_STEPS micro-batches of dictionaries'
    yield "    with input_ids and labels; the mean loss of this process."
    yield '    """'
    yield f'    total = torch.zeros((), device="{device}")'
    defers = (sharded or replicated) and not settings.sync_each_batch
    counts = defers or settings.defer_all_reduce
    each = "number, batch in enumerate(batches, 1)" if counts else "batch in batches"
    yield f"    for {each}:"
    yield f'        batch = {{name: tensor.to("{device}") for name, tensor in batch.items()}}'
    indent = "        "
    if counts:
        yield "        last = number == GRADIENT_ACCUMULATION_STEPS"
    if settings.defer_all_reduce:
        yield "        model.set_requires_all_reduce(last)"
    if defers:
        if sharded:
            yield "        model.set_requires_gradient_sync(last)"
        else:
            yield "        with nullcontext() if last else model.no_sync():"
            indent += "    "
    if casts:
        yield f'{indent}with torch.autocast("{device}", torch.bfloat16):'
        yield f"{indent}    loss = model(**batch).loss / GRADIENT_ACCUMULATION_STEPS"
    else:
        yield f"{indent}loss = model(**batch).loss / GRADIENT_ACCUMULATION_STEPS"
    yield f"{indent}loss.backward()"
    yield "        total += loss.detach()"
    if settings.splits_layers:
        yield "    reduce_partial_gradients(model.parameters())"
    if question.workload.optimizer is Optimizer.MUON:
        yield "    for one in optimizer:  # Muon, and AdamW"
        yield "        one.step()"
        yield "        one.zero_grad()"
    else:
        yield "    optimizer.step()"
        yield "    optimizer.zero_grad()"
    yield "    return total"


def module(question: Question, settings: Settings) -> str:
    """The module's code. It is called as its header shows."""
    imports = "\n".join(filter(None, _imports(question, settings)))
    knobs = "\n".join(
        [
            *(
                f"{name.upper()} = {json.dumps(value) if isinstance(value, str) else value}"
                for name, value in settings.as_dict().items()
            ),
            f"WORLD_SIZE = {question.cluster.world_size}",
            f"# {batch_text(question, settings)}",
            f"# of {question.workload.sequence_length} tokens each",
            *[f"# {said}" for said in [labels_text(question)] if said],
        ]
    )
    parts = (_start, _load, _prepare, _shard, _optimizer, _step)
    functions = ["\n".join(part(question, settings)) for part in parts]
    dtype = ddp_reduce_dtype(question, settings)
    hook = REDUCE_HOOK.format(dtype=DTYPES[dtype]).strip("\n") if dtype else ""
    loss = loss_code(question, settings)
    whole = [f"{imports}\n\n{knobs}", hook, loss, *functions, _LOADER.rstrip("\n")]
    return "\n\n\n".join(filter(None, whole))


def _why_not(question: Question, settings: Settings) -> str | None:
    splits_replicas = settings.splits_layers and _is_replicated(question, settings)
    return refusals.first(
        refusals.own_script("the module is a training step of its own", question),
        refusals.lacking(
            "torch's own loop",
            question,
            settings,
            *("pipelines", "rings", "adapters", "packing"),
            framework="torch",
        ),
        refusals.fsdp2("torch's FSDP2", question, settings, "torch"),
        refusals.liger("the module", question, settings),
        "DistributedDataParallel takes no parameters that tensor parallelism has split; ask again"
        " with --knob sharding=shard_grad_op,full_shard"
        if splits_replicas
        else None,
    )


def _render(question: Question, settings: Settings, about: About) -> str:
    use = [
        *comments(f"Put {FILE_NAME} beside your training script, which does this, or more:"),
        *(f"#     {line}".rstrip() for line in _USE.splitlines()),
        *comments(
            "where DATASET gives dictionaries with input_ids and labels. Start it on each node:"
        ),
        f"#     {' '.join(torchrun(question.cluster, 'SCRIPT.py'))}",
    ]
    needs = ["Needs torch 2.11 and transformers 5.17, or newer."]
    if settings.splits_layers:
        needs.append(
            "Tensor parallelism is that of the probes, from tuner, which must be installed where"
            " the script runs; a folder or module of yours called workers would hide it."
        )
    if question.workload.optimizer is Optimizer.ADAMW_8BIT:
        needs.append("The optimizer needs torchao 0.18 or newer.")
    if needed := optimizer_needs(question.workload.optimizer):
        needs.append(f"The optimizer needs {needed}.")
    top = header(provenance(question, settings, about), use, comments(*needs))
    return f"{top}\n\n{module(question, settings)}\n"


FORMAT = Format(
    name="torch",
    file_name=FILE_NAME,
    stack=Stack.TORCH,
    media_type="text/x-python",
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: torchrun(question.cluster, "SCRIPT.py"),
)
