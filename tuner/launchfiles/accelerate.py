"""The YAML file of ``accelerate launch --config_file``, and the code that it cannot replace.

The file says how many processes there are and how they shard. Micro-batch size, accumulation,
``sync_each_batch``, number formats and the optimizer are said by the training script: the file
begins with that code as comments, so that nothing is dropped silently. The two together put in
force what was probed. Field names are those of accelerate 1.15: ``ClusterConfig`` in
``commands/config/config_args.py``, and ``prepare_multi_gpu_env`` in ``utils/launch.py``, which
hands them on as the environment that ``FullyShardedDataParallelPlugin`` and
``ParallelismConfig`` read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from tuner.catalog.versions import meets
from tuner.core.cluster import Device
from tuner.core.configuration import NO_MODEL_PARALLELISM, Checkpointing, Settings, Sharding
from tuner.core.framework import FrameworkName, flag_differs
from tuner.core.script import (
    PORT,
    Launch,
    checkpoints_in_script,
    is_sharded,
    loses_random_state,
)
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision
from tuner.errors import UsageError
from tuner.launchfiles import contract as refusals
from tuner.launchfiles import filled
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    code,
    comment,
    has_data_parallel_ranks,
    header,
    provenance,
    shell_word,
    sync_acts,
    yaml_text,
)
from tuner.launchfiles.fields import Fields, Found, Reader, known_fields
from tuner.launchfiles.fsdp import (
    is_passed_over,
    optimizer_call,
    optimizer_needs,
    options,
    policy,
    read_fsdp,
)
from tuner.launchfiles.model_code import (
    adapter_needs,
    distributed_config,
    is_varlen,
    mask_code,
    packing_needs,
    rendered,
    use_loss,
)
from tuner.launchfiles.shell import in_force
from tuner.space.rules import (
    FROZEN_DTYPE_IS_FREE,
    FROZEN_STAYS_NARROW,
    LOSS_OF_MODEL,
    TENSORS_BY_TRANSFORMERS,
    no_checkpointing,
)
from tuner.text import show

FILE_NAME = "accelerate.yaml"


def configuration(question: Question, settings: Settings) -> dict[str, Any]:
    """The file's content: fields of accelerate's ``ClusterConfig``."""
    cluster = question.cluster
    on_cpu = cluster.gpu.device is Device.CPU
    mixed = question.workload.precision is Precision.BF16_MIXED
    # On a CPU too: with MULTI_CPU accelerate launches one process unless under mpirun
    kind = "MULTI_GPU" if has_data_parallel_ranks(question, settings) else "NO"
    split, by_plugin = settings.splits_layers, by_plugin_of(question, settings)
    kind = "FSDP" if by_plugin else "MULTI_GPU" if split else kind
    # what transformers shards it also casts
    mixed = mixed and not (split and has_data_parallel_ranks(question, settings))
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        # CPU ranks share one machine, also where groups of them stand for nodes
        "num_machines": 1 if on_cpu else cluster.nodes,
        "machine_rank": 0,
        "num_processes": cluster.world_size,
        "mixed_precision": "bf16" if mixed else "no",
        "use_cpu": on_cpu,
    }
    if by_plugin:
        found = options(question, settings)
        if not question.workload.model.is_named or not found["transformer_layer_cls_to_wrap"]:
            # accelerate takes what transformers says of it
            del found["transformer_layer_cls_to_wrap"]
        values["fsdp_config"] = {f"fsdp_{name}": value for name, value in found.items()}
    if split:
        values["parallelism_config"] = {
            "parallelism_config_dp_shard_size": settings.data_parallel_size(cluster.world_size),
            "parallelism_config_tp_size": settings.tp_size,
        }
        return values
    replicas = cluster.nodes if by_plugin and settings.sharding is Sharding.HYBRID_SHARD else 1
    sizes: dict[str, Any] = {
        "dp_replicate_size": replicas,
        "dp_shard_size": settings.data_parallel_size(cluster.world_size) // replicas,
    }
    if settings.cp_size > 1:
        sizes |= {"cp_size": settings.cp_size, "cp_comm_strategy": "allgather"}
    if settings.cp_size > 1 or replicas > 1:
        values["parallelism_config"] = {f"parallelism_config_{n}": s for n, s in sizes.items()}
    return values


def by_plugin_of(question: Question, settings: Settings) -> bool:
    """Tells whether accelerate's FSDP plugin shards: what transformers splits it shards itself."""
    return is_sharded(question, settings) and not settings.splits_layers


def _why_not(question: Question, settings: Settings) -> str | None:
    script, offload = question.script, Checkpointing.OFFLOAD
    checkpoints = settings.activation_checkpointing is offload
    no_offload = no_checkpointing(question, offload) if checkpoints else None
    old = question.framework.too_old("transformers", LOSS_OF_MODEL)
    # a part of the question only for frameworks that are built on it
    stated = question.framework.versions.get("accelerate")
    oldest = _oldest_accelerate(question, settings)
    return refusals.first(
        script is not None
        and script.launch is not Launch.ACCELERATE
        and "torchrun starts the study's script, which reads no such file; launch the script by its"
        " own command, which tuner studies show tells, or ask again with --framework accelerate",
        refusals.tensors("accelerate", settings, "accelerate", question),
        refusals.lacking("accelerate", question, settings, "pipelines", framework="accelerate"),
        refusals.fsdp2("accelerate", question, settings, "accelerate"),
        refusals.lacking(
            "the code beside accelerate's file",
            question,
            settings,
            *("varlen", "fused_adamw", "liger"),
        ),
        # models would pass over the loss of the code beside the file
        script is None
        and old
        and use_loss(question, settings)
        and f"in transformers {old} a model's loss cannot be replaced, and the study has another;"
        f" ask again with --framework-version transformers={LOSS_OF_MODEL.strip('>=')}",
        no_offload and f"{no_offload}; ask again with --knob activation_checkpointing=none,full",
        stated is not None
        and Version(stated) < Version(oldest)
        and f"these settings need accelerate {oldest} or newer, and the question names {stated};"
        f" ask again with --framework-version accelerate={oldest}",
    )


def _oldest_accelerate(question: Question, settings: Settings) -> str:
    """The oldest version that does what file and script say (read in the releases' code)."""
    if settings.splits_layers:
        return "1.13"  # before, it was prepared by what transformers has no more
    if not is_sharded(question, settings):
        return "0.31"  # sync_each_batch came with 0.28 and stepped too often before 0.31
    if options(question, settings)["activation_checkpointing"] and not _is_early(question):
        return "1.15"  # from 1.8 on, parts of layers were checkpointed
    if _has_mixed_adapter(question):
        return FROZEN_STAYS_NARROW.strip(">=")
    if settings.gradient_accumulation_steps > 1 and not settings.sync_each_batch:
        return "1.11"  # before, FSDP2 synchronized each micro-batch
    if settings.sharding is Sharding.HYBRID_SHARD or settings.cp_size > 1:
        return "1.10"  # the first with parallelism_config
    return "1.6"  # the first with FSDP2


def _has_mixed_adapter(question: Question) -> bool:
    """Whether fp32 adapters are beside a model that is frozen in bf16."""
    work = question.workload
    return work.adapter is not None and work.precision is Precision.BF16_MIXED


def _is_early(question: Question) -> bool:
    """Whether the stated release is of those that checkpointed layers before 1.8."""
    stated = question.framework.versions.get("accelerate")
    return stated is not None and meets(stated, "<1.8")


def _needs(question: Question, settings: Settings) -> str:
    """The releases that do what file and script say."""
    by_option = options(question, settings)["activation_checkpointing"]
    between = ", but not 1.8 to 1.14" if by_option and _is_early(question) else ""
    needs = f"Needs accelerate {_oldest_accelerate(question, settings)} or newer{between}"
    if settings.splits_layers:
        needs += f", transformers {TENSORS_BY_TRANSFORMERS} or newer"
    if is_sharded(question, settings) and _has_mixed_adapter(question):
        needs += f", torch {FROZEN_DTYPE_IS_FREE.strip('>=')} or newer"
    elif question.workload.optimizer is Optimizer.ADAMW_FUSED and question.script is None:
        needs += f", torch {refusals.FUSED_ON_CPU.strip('>=')} or newer"
    optimizer = optimizer_needs(question.workload.optimizer) if question.script is None else ""
    adapter = adapter_needs(question)
    optimizer = "" if optimizer in adapter else optimizer  # of models in four bits they say it
    return ", ".join(filter(None, (needs, adapter, optimizer, *packing_needs(question))))


def _beside(question: Question, settings: Settings) -> tuple[str, ...]:
    if not is_passed_over(question, settings):
        return ()
    return (
        "NOT FOR A CPU: accelerate ignores FSDP on a CPU, so launched here this file would"
        " shard nothing. It describes the settings for as many GPUs, and the script stops"
        " anywhere else."
        if not settings.splits_layers
        else "NOT FOR A CPU: accelerate takes tensor parallelism on GPUs alone, and the script"
        " stops anywhere else.",
    )


def _script_sets(question: Question, settings: Settings) -> tuple[str, ...]:
    if question.script is not None:
        return ()
    knobs = ["micro_batch_size"]
    knobs += ["gradient_accumulation_steps"] if settings.gradient_accumulation_steps > 1 else []
    knobs += ["sync_each_batch"] if sync_acts(question, settings) else []
    knobs += ["activation_checkpointing"] if checkpoints_in_script(question, settings) else []
    return tuple(f"{name}={show(getattr(settings, name))}" for name in knobs)


def _render(question: Question, settings: Settings, about: About) -> str:
    values = configuration(question, settings)
    not_here = [line for text in _beside(question, settings) for line in comment(text)]
    nodes = values["num_machines"]
    needs = f"{_needs(question, settings)}. Start it"
    command = f"#     accelerate launch --config_file {shell_word(about.path)}"
    launch = [*comment(f"{needs}:"), f"{command} SCRIPT.py"]
    if nodes > 1:
        launch = [
            *comment(
                f"{needs} on each of the {nodes} nodes, with its number (from 0 to {nodes - 1}) and"
                " the address of node 0:"
            ),
            f"{command} --machine_rank NUMBER \\",
            f"#         --main_process_ip ADDRESS --main_process_port {PORT} SCRIPT.py",
        ]
    if question.script is not None:
        own = comment(in_force(question))
    else:
        told = "# What this file cannot say is in force only if the training script says it:"
        own = [told, *code(script(question, settings))]
    top = header(
        not_here,
        provenance(question, settings, about),
        launch,
        _warnings(question, settings),
        own,
    )
    return f"{top}\n{yaml_text(values)}"


def _warnings(question: Question, settings: Settings) -> Iterator[str]:
    """Lists what a reader would otherwise get wrong."""
    sharded = by_plugin_of(question, settings)
    on_cpu = question.cluster.gpu.device is Device.CPU
    if (
        on_cpu
        and not settings.splits_layers
        and not sharded
        and has_data_parallel_ranks(question, settings)
    ):
        yield from comment(
            "MULTI_GPU is on purpose: with MULTI_CPU accelerate launches one process only, unless"
            " under mpirun. Accelerator(cpu=True) is what keeps the processes on the CPU and"
            " together. Set OMP_NUM_THREADS to the cores of one process, as the probes did: the"
            " launcher's own choice may be another."
        )
    if on_cpu and question.cluster.nodes > 1:
        nodes = question.cluster.nodes
        yield from comment(
            f"The {nodes} nodes are groups of processes of one machine here. On {nodes} machines,"
            f" set num_machines: {nodes}, and give machine_rank, main_process_ip and"
            " main_process_port on each."
        )
    how = settings.activation_checkpointing
    if how not in (Checkpointing.NONE, Checkpointing.FULL):
        yield from comment(
            f"No field says activation_checkpointing={how}: the script does it, and"
            " fsdp_activation_checkpointing must stay off."
        )
    if how is Checkpointing.FULL and sharded:
        why = flag_differs(question.framework) or loses_random_state(question)
        yield from comment(
            f"fsdp_activation_checkpointing must stay off: {why}. The script checkpoints instead."
            if checkpoints_in_script(question, settings)
            else "fsdp_activation_checkpointing checkpoints the layers: the script must not do it"
            " again, by the model's own method."
        )
    if question.framework.name is FrameworkName.TRAINER:
        yield from comment(
            "The Trainer makes its own Accelerator: the script below is the same training"
            " without it."
        )
        if settings.defer_all_reduce:
            yield from comment(
                "The Trainer itself puts no all-reduce off: a TrainerCallback must call"
                " set_requires_all_reduce(False) of the wrapped model in on_step_begin, and (True)"
                " in the last on_substep_end of the step."
            )


FORMAT = Format(
    name="accelerate",
    file_name=FILE_NAME,
    stack=Stack.TORCH,
    packages=("accelerate", "torch", "transformers"),
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: ("accelerate", "launch", "--config_file", path, "SCRIPT.py"),
    beside=_beside,
    script_sets=_script_sets,
)


NAME = "accelerate"
# What the file can say otherwise.
FREE: Mapping[str, tuple[Any, ...]] = {
    "sharding": ("ddp", "shard_grad_op", "full_shard", "hybrid_shard"),
    "activation_checkpointing": ("none", "full"),
}
# Fields that other files do not have.
MARKS = frozenset({"compute_environment", "distributed_type"})
# What ``distributed_type`` shards by itself.
KINDS: Mapping[str, Sharding | None] = {
    "no": Sharding.DDP,
    "multi_gpu": Sharding.DDP,
    "multi_cpu": Sharding.DDP,
    "fsdp": None,
}
OFF = (
    "activation_checkpointing is taken as none, for the file does not turn it on; where the script"
    " does, say --settings activation_checkpointing=full"
)
# Number and size of the groups of ranks that shard.
GROUPS = ("dp_replicate_size", "dp_shard_size")


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field."""
    fields = Fields(values)
    fields.refuse_others(known_fields()["accelerate"]["known"])
    fields.refuse("fp8_config", "is not predicted")
    fields.refuse("dynamo_backend", "compiled models are not predicted")
    fields.part("dynamo_config").refuse("dynamo_backend", "compiled models are not predicted")
    by_deepspeed = str(fields.values.get("distributed_type")).lower() == "deepspeed"
    others = ("megatron_lm_config", "fsdp_config" if by_deepspeed else "deepspeed_config")
    for name in others:
        fields.refuse(name, "is of another engine than the file's distributed_type")
    if by_deepspeed:
        nodes = None if fields.flag("use_cpu") else fields.whole("num_machines", 1)
        size = {"ranks": fields.whole("num_processes", 1), "ranks_field": "num_processes"}
        return filled.of_accelerate(fields, {"format_name": NAME, "nodes": nodes, **size})
    kind = fields.choice("distributed_type", KINDS, "no")
    ranks = fields.whole("num_processes", 1)
    if fields.choice("distributed_type", {**dict.fromkeys(KINDS, False), "no": True}, "no"):
        allowed = "must be 1 where distributed_type is NO: accelerate starts no more"
        fields.refuse("num_processes", allowed, but=(1,))
    mixed = fields.choice("mixed_precision", {"no": False, "bf16": True}, "no")
    knobs: dict[str, Any] = {**NO_MODEL_PARALLELISM}
    classes: tuple[str, ...] = ()
    groups = _groups(parallel := fields.part("parallelism_config"), ranks)
    ring = parallel.any_of("parallelism_config_cp_size", "cp_size")
    if (cp := parallel.whole(ring, 1) or 1) > 1:
        if kind is not None:
            raise parallel.error(ring, "must be 1 but with distributed_type FSDP")
        knobs["cp_size"] = cp
        rotates = parallel.any_of("parallelism_config_cp_comm_strategy", "cp_comm_strategy")
        parallel.choice(rotates, {"allgather": True}, "allgather")
        backend = parallel.any_of("parallelism_config_cp_backend", "cp_backend")
        parallel.choice(backend, {"torch": True}, "torch")
    split = parallel.any_of("parallelism_config_tp_size", "tp_size")
    if (tp := parallel.whole(split, 1) or 1) > 1:
        if kind is None:
            allowed = "must be 1 beside distributed_type FSDP: accelerate prepares such a model by"
            allowed += " what transformers has no more since 5.1; transformers shards what it"
            raise parallel.error(split, f"{allowed} splits, and distributed_type is MULTI_GPU")
        sharded = groups is not None and groups[1] > 1
        knobs |= {"tp_size": tp, "cpu_offload": False}
        knobs["sharding"] = str(Sharding.FULL_SHARD if sharded else Sharding.DDP)
    elif kind is None:
        options = fields.part("fsdp_config")
        found, classes = read_fsdp(options, nodes=fields.whole("num_machines", 1))
        knobs |= found
        fields.uncounted += options.uncounted
        if groups is not None and groups[0] > 1:
            if knobs["sharding"] != Sharding.FULL_SHARD:
                allowed = "must be true where groups of ranks shard: another is not predicted"
                raise options.error("fsdp_reshard_after_forward", allowed)
            knobs["sharding"] = str(Sharding.HYBRID_SHARD)
    else:
        knobs |= {"sharding": str(kind), "cpu_offload": False}
    precisions: tuple[str, ...] = ("bf16_mixed",) if mixed else ("bf16", "fp32")
    if knobs.get("tp_size", 1) > 1 and knobs["sharding"] != Sharding.DDP:
        precisions = ("bf16", "bf16_mixed", "fp32")  # the script has transformers cast
    return Found(
        format_name=NAME,
        free=FREE,
        knobs=knobs,
        may={
            "framework": ("accelerate", "trainer", *(["torch"] if tp == 1 else [])),
            "precision": precisions,
        },
        ranks=ranks,
        ranks_field="num_processes",
        nodes=None if fields.flag("use_cpu") else fields.whole("num_machines", 1),
        groups=groups if knobs["sharding"] == Sharding.HYBRID_SHARD else None,
        layer_classes=classes,
        needs={"sync_each_batch": "the training script"},
        fsdp_checkpointing="activation_checkpointing" in knobs,
        assumed={"activation_checkpointing": OFF},
        uncounted=tuple(fields.uncounted),
    )


def _groups(fields: Fields, ranks: int | None) -> tuple[int, int] | None:
    """Number and size of the groups of ranks that shard.

    Raises:
        UsageError: accelerate would not start them (``ParallelismConfig._validate_accelerator``).
    """
    if not fields.values:
        return None
    names = ["tp_size", "cp_size", "cp_backend", "cp_comm_strategy", "sp_size", "sp_backend"]
    names += GROUPS
    fields.refuse_misspelt([*names, *(f"parallelism_config_{name}" for name in names)])
    ulysses = fields.any_of("parallelism_config_sp_size", "sp_size")
    fields.refuse(ulysses, "must be 1: DeepSpeed's sequence parallelism is not predicted")
    sizes = (
        fields.whole(fields.any_of(f"parallelism_config_{name}", name), 1)
        for name in (*GROUPS, "cp_size", "tp_size")
    )
    replicas, shards, ring, split = (size or 1 for size in sizes)
    together = replicas * shards * ring * split
    if ranks is not None and together not in (1, ranks):
        allowed = f"sizes of parallelism_config make {together} ranks, which accelerate refuses"
        raise UsageError("num_processes", ranks, allowed)
    return replicas, shards * ring


def tuned(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say the settings, in a file that has ``values``."""
    if str(values.get("distributed_type")).lower() == "deepspeed":
        return filled.tuned_by_accelerate(question, settings, values)
    return configuration(question, settings)


READER = Reader(name=NAME, marks=MARKS, read=read, tuned=tuned)


def script(question: Question, settings: Settings) -> str:
    """Code of a training script that, under the configuration file, has ``settings`` in force.

    It runs as it stands once ``MODEL`` (a name or path for transformers), ``DATASET`` (of
    dictionaries with ``input_ids`` and ``labels``; with packing of ``documents``,
    lists of tokens) and ``LEARNING_RATE`` are defined.
    """
    sharded, optimizer = by_plugin_of(question, settings), question.workload.optimizer
    split = distributed_config(question, settings)
    mask, masks = mask_code(question)
    call = optimizer_call(optimizer, "LEARNING_RATE")
    in_script = checkpoints_in_script(question, settings)
    how = settings.activation_checkpointing if in_script else Checkpointing.NONE
    return rendered(
        "script.py.j2",
        question,
        settings,
        how=how,
        varlen=is_varlen(question),
        on_cpu=question.cluster.gpu.device is Device.CPU and not (sharded or split),
        sharded=sharded,
        casts=policy(question, settings) if sharded else "",
        optimizer=call.replace("model.parameters()", "list(groups.values())") if split else call,
        mask=mask,
        masks=masks,
    )
