"""A Python module that applies the settings with torch's own functions: ``from tuned import ...``.

It shards as accelerate 1.15 does for the probes (``fsdp2_prepare_model`` in
``utils/fsdp_utils.py``): a group for the embedding, each layer, and the last norm with ``lm_head``.
Tensor parallelism is the probe program's own, which the package installs with this one as
``workers.probe.tensor_parallel``: its ``parallelize`` and ``reduce_partial_gradients`` are kept for
these modules (docs/decisions). Everything else needs torch and transformers only.
"""

from pathlib import PurePath

from tuner.core.cluster import Device
from tuner.core.configuration import Settings, Sharding
from tuner.core.script import is_sharded, torchrun
from tuner.core.study import Question
from tuner.core.workload import Loss, Optimizer, Precision
from tuner.launchfiles import contract as refusals
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    comments,
    has_data_parallel_ranks,
    header,
    provenance,
    shell_word,
)
from tuner.launchfiles.fsdp import (
    layer_class,
    optimizer_call,
    optimizer_needs,
    policy,
    reshards,
)
from tuner.launchfiles.model_code import (
    rendered,
)

FILE_NAME = "tuned.py"

_USE = """\
mesh = start()
model = prepare(load(MODEL), mesh)
optimizer = make_optimizer(model, LEARNING_RATE)
for batches in optimizer_steps(loader(DATASET)):
    loss = train_step(model, optimizer, batches)"""


def module(question: Question, settings: Settings) -> str:
    """The module's code. It is called as its header shows."""
    work, sharded = question.workload, is_sharded(question, settings)
    ranks = settings.data_parallel_size(question.cluster.world_size)
    hybrid = sharded and settings.sharding is Sharding.HYBRID_SHARD
    replicas = question.cluster.nodes if hybrid else 1
    # outermost first, as the probe's mesh has them
    sizes = {"dp_replicate": replicas, "dp_shard": ranks // replicas, "tp": settings.tp_size}
    replicated = _is_replicated(question, settings)
    return rendered(
        "module.py.j2",
        question,
        settings,
        how=settings.activation_checkpointing,
        axes={name: size for name, size in sizes.items() if size > 1} or {"dp_shard": 1},
        device="cpu" if question.cluster.gpu.device is Device.CPU else "cuda",
        sharded=sharded,
        replicated=replicated,
        defers=(sharded or replicated) and not settings.sync_each_batch,
        casts=policy(question, settings),
        autocasts=work.precision is Precision.BF16_MIXED and not sharded,
        narrow=work.loss is Loss.OWN_DTYPE and not work.gathers_logits,
        optimizer=optimizer_call(work.optimizer, "lr"),
        layer=layer_class(work.model),
        reshards=reshards(settings),
    )


def _is_replicated(question: Question, settings: Settings) -> bool:
    """Tells whether DDP wraps the model."""
    return has_data_parallel_ranks(question, settings) and not is_sharded(question, settings)


def _why_not(question: Question, settings: Settings) -> str | None:
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
        refusals.lacking("the module", question, settings, "liger"),
        settings.splits_layers
        and _is_replicated(question, settings)
        and "DistributedDataParallel takes no parameters that tensor parallelism has split; ask"
        " again with --knob sharding=shard_grad_op,full_shard",
    )


def _render(question: Question, settings: Settings, about: About) -> str:
    name = shell_word(PurePath(about.path).name)
    use = [
        *comments(f"Put {name} beside your training script, which does this, or more:"),
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
    packages=("torch", "transformers"),
    media_type="text/x-python",
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: torchrun(question.cluster, "SCRIPT.py"),
)
