"""Defines what a launcher's module must offer, and the comments that files begin with.

Comments hold text of others, such as a model's name: nothing in it can end a comment.
"""

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import yaml

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.catalog.models import Task
from tuner.core.adapter import QUANTIZED
from tuner.core.cluster import Device, parse_cluster
from tuner.core.configuration import Settings, Sharding, parse_settings
from tuner.core.framework import FrameworkName, usual_loss_kernel
from tuner.core.packing import PackingVariant
from tuner.core.quantity import Provenance
from tuner.core.script import is_sharded
from tuner.core.study import Question
from tuner.core.workload import Loss, LossKernel, Optimizer, Precision, ReduceDtype
from tuner.errors import TunerError, UsageError
from tuner.model.shape import published_model


class Stack(StrEnum):
    """Stacks whose code trains under a file."""

    ANY = "any"  # that of whatever script is started
    TORCH = "torch"  # FSDP2 or DDP, as torch, accelerate and the Trainer run them
    NANOTRON = "nanotron"
    DEEPSPEED = "DeepSpeed"
    TORCHTITAN = "torchtitan"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Origin of exported configurations; shown at the top of the file."""

    study_id: str
    date: str
    """When the file was written, ISO 8601."""
    provenance: Provenance
    """The weakest that stands behind the figures."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that the figures were found with."""
    path: str = ""
    """Where the file is written, as whoever asked calls it; empty where only they know."""
    figures: tuple[str, ...] = ()
    """What was found, one line each, such as ``3425 tokens/s per GPU (3390 to 3460)``."""
    other_stack: str = ""
    """As of :func:`other_stack`, of the format: whoever exports fills it in."""
    format_name: str = ""
    """The same."""
    is_open: bool = False
    """Whether the study still looks for something better."""


_OWN = {FrameworkName.NANOTRON: Stack.NANOTRON, FrameworkName.DEEPSPEED: Stack.DEEPSPEED}


def other_stack(question: Question, stack: Stack) -> str:
    """Says that a study's figures are of another stack than a file's; empty where they are of the
    same.

    Those of a user's script are of its own code, which every file that it can be exported to runs.
    """
    is_nanotron = question.framework.name is FrameworkName.NANOTRON
    in_bf16 = question.workload.precision is Precision.BF16
    mine = _OWN.get(question.framework.name, Stack.TORCH)
    if question.script is not None or stack in (Stack.ANY, mine):
        return ""
    theirs = "torch's own sharding" if stack is Stack.TORCH else str(stack)
    of = "torch's own sharding (FSDP2 or DDP)" if mine is Stack.TORCH else str(mine)
    said = f"The figures are of {of}; {theirs} needs other buffers and has another speed."
    if is_nanotron and in_bf16 and stack is not Stack.DEEPSPEED:  # whose file asks for the same
        said += (
            " Its numbers differ too: nanotron accumulates gradients, and steps, in fp32, and with"
            " this file both are in bf16."
        )
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One launcher's file. All functions are pure."""

    name: str
    file_name: str
    stack: Stack
    render: Callable[[Question, Settings, About], str]
    """The file's text. Only for settings with no ``why_not``."""
    why_not: Callable[[Question, Settings], str | None] = lambda question, settings: None
    """Why the launcher cannot run the settings and what to do about it; ``None`` if it can."""
    media_type: str = "application/yaml"
    packages: tuple[str, ...] = ()
    """Those that train under the file, whose versions it tells; empty: the study's framework's."""
    argv: Callable[[Question, str], tuple[str, ...]] | None = None
    """The command that trains with the file at a path; ``None`` if the file starts nothing."""
    beside: Callable[[Question, Settings], tuple[str, ...]] = lambda question, settings: ()
    """What must be done beside the file, one sentence each, with lines of code below some: of files
    without comments, which cannot say it themselves."""
    script_sets: Callable[[Question, Settings], tuple[str, ...]] = lambda question, settings: ()
    """Knobs, as ``name=value``, that no field or variable of the file holds: they are in force only
    if the training script sets them, as its comments, or what is told beside it, show."""
    for_programs: bool = False
    """True where people hardly ever read it: pages then show no text of it."""
    merge: Callable[[str, str], str] | None = None
    """The rendered text merged into the text of a file of the user's own, whose other content is
    kept as it is; ``None`` where the file is whole by itself. Raises ``UsageError`` for a text
    that cannot be merged into."""


def has_data_parallel_ranks(question: Question, settings: Settings) -> bool:
    """Tells whether ranks see different data, or other parts of it."""
    return settings.sharing_size(question.cluster.world_size) > 1


def reduced_in(question: Question, settings: Settings) -> ReduceDtype:
    """Number format in which gradients are reduced over data-parallel ranks."""
    sharded = is_sharded(question, settings)
    return question.workload.reduced_in(sharded=sharded, split=settings.splits_layers)


def sync_acts(question: Question, settings: Settings) -> bool:
    """Tells whether it makes a difference when gradients are synchronized."""
    return settings.gradient_accumulation_steps > 1 and has_data_parallel_ranks(question, settings)


def batch_text(question: Question, settings: Settings) -> str:
    """How the global batch is made, as a product."""
    ranks = settings.data_parallel_size(question.cluster.world_size)
    return (
        f"an optimizer step: {settings.micro_batch_size} (micro-batch)"
        f" x {settings.gradient_accumulation_steps} (accumulation) x {ranks} (processes"
        f"{f' / cp_size {settings.cp_size}' if settings.cp_size > 1 else ''})"
        f" = {question.workload.global_batch_size} sequences"
    )


def fsdp2(launcher: str, question: Question, settings: Settings, framework: str) -> str | None:
    """Refuses zero1, and what FSDP2 cannot shard, for launchers that shard by it.

    ``framework`` is the one whose answers the launcher can run.
    """
    within = question.cluster.gpus_per_node // settings.tp_size
    what = "data-parallel rank" if settings.splits_layers else "GPU"
    return first(
        settings.sharding is Sharding.ZERO1
        and f"{launcher} cannot shard the optimizer state alone (zero1); ask again with"
        f" --framework {framework}",
        settings.sharding is Sharding.HYBRID_SHARD
        and within == 1
        and f"hybrid_shard shards within a node, and a node has one {what} here; ask again with"
        " --knob sharding=ddp,shard_grad_op,full_shard",
        settings.cpu_offload
        and not is_sharded(question, settings)
        and f"{launcher} offloads to the CPU only what it shards; ask for another sharding",
    )


def tensors(
    launcher: str, settings: Settings, framework: str, question: Question | None = None
) -> str | None:
    """Refuses tensor parallelism for launchers that split nothing but data; those of a ``question``
    of accelerate or the Trainer have transformers' plans."""
    if not settings.splits_layers:
        return None
    if question is None or not question.framework.puts_off:
        return (
            f"no tensor parallelism is written for {launcher}, and these settings have"
            f" tp_size={settings.tp_size}; ask again with --knob tp_size=1 or --framework"
            f" {framework}"
        )
    return first(
        settings.cpu_offload
        and "no offload is written beside tensor parallelism; ask again with --knob tp_size=1",
        has_data_parallel_ranks(question, settings)
        and settings.sharding is not Sharding.FULL_SHARD
        and "transformers shards what it splits, and in no other way than full_shard; ask again"
        " with --knob sharding=full_shard",
    )


# Releases of torch whose fused AdamW takes parameters on a CPU (pull request 123074; 2.3's
# ``_get_fused_kernels_supported_devices`` in utils/_foreach_utils.py names none, and
# ``AdamW.__init__`` ends with "`fused=True` requires all the params to be floating point Tensors of
# supported devices").
FUSED_ON_CPU = ">=2.4"


def lacking(
    launcher: str, question: Question, settings: Settings, *parts: str, framework: str = ""
) -> str | None:
    """Refuses the first of some parts of a step that a launcher's files cannot say: ``pipelines``,
    ``rings``, ``fused_loss``, ``liger`` (its kernels, where files carry the chunked loss),
    ``adapters`` (and frozen parts) or ``packing``; or that cannot run: ``varlen`` by FlashAttention
    on a CPU, and ``fused_adamw`` of parameters there, where torch would end with an error.

    ``framework`` is the one whose answers have no pipelines.
    """
    work, own = question.workload, question.script is not None
    variant = None if work.packing is None else work.packing.variant
    old = question.framework.too_old("torch", FUSED_ON_CPU)
    said = {
        "pipelines": settings.pp_size > 1
        and f"{launcher} runs no pipeline stages, and these settings have"
        f" pp_size={settings.pp_size}; ask again with --framework {framework}",
        "rings": settings.cp_size > 1
        and f"no context parallelism is written for {launcher}, and these settings have"
        f" cp_size={settings.cp_size}; take the format accelerate or torchtitan, or ask again with"
        " --knob cp_size=1",
        "fused_loss": settings.fused_loss
        and f"no loss of parts is written for {launcher}, and these settings have"
        " fused_loss=true; ask again with --knob fused_loss=false",
        "adapters": (work.adapter is not None or bool(work.frozen))
        and f"no {'adapter is' if work.adapter else 'frozen parts are'} written for {launcher}, and"
        " the study has such; ask again with --framework accelerate, or trainer with --knob"
        " sharding=ddp",
        "liger": settings.fused_loss
        and not own
        and usual_loss_kernel(question.framework.name) is LossKernel.LIGER
        and f"the study's loss is computed by Liger's kernels, and {launcher} carries another; take"
        " the format trainer, or ask again with --framework accelerate or --knob fused_loss=false",
        "packing": (not own and variant is not None)
        and f"no packing is written for {launcher}, and the study packs its sequences; take the"
        " format accelerate, or trainer",
        "varlen": variant is PackingVariant.VARLEN
        and not own
        and question.cluster.gpu.device is Device.CPU
        and "FlashAttention's library, which packing varlen is for, has no kernels for a CPU; ask"
        " again with --packing position_ids",
        "fused_adamw": work.optimizer is Optimizer.ADAMW_FUSED
        and not own
        and old
        and f"torch {old} has no fused AdamW of parameters on a CPU, where they are as the"
        " optimizer is made; ask again with --optimizer adamw or --framework-version"
        f" torch={FUSED_ON_CPU.strip('>=')}",
    }
    return first(*(said[part] for part in parts))


def own_script(what: str, question: Question) -> str | None:
    """Refuses files that say more of a training step than is known of a user's own script."""
    return first(
        question.script is not None
        and f"{what}, and the study is of a script of your own; launch the script by its own"
        " command, which tuner studies show tells"
    )


def first(*reasons: str | bool | None) -> str | None:
    """The first reason there is, among what does not hold."""
    return next((one for one in reasons if one and isinstance(one, str)), None)


PREFIX = "TUNED_"
# Characters of a DNS label (RFC 1035).
LONGEST_LABEL = 63


def variables(question: Question, settings: Settings) -> dict[str, str]:
    """Every knob, and what it belongs to, by variable; booleans are ``true`` and ``false``.

    Optimizer and number formats of a user's script are its own, and not known.
    """
    work = question.workload
    values = {
        **settings.all_values(),
        "world_size": question.cluster.world_size,
        "global_batch_size": work.global_batch_size,
        "sequence_length": work.sequence_length,
    }
    if question.script is None:
        values |= {
            "optimizer": work.optimizer,
            "precision": work.precision,
            "reduce_dtype": reduced_in(question, settings),
        }
        later = work.added_later()  # files of other studies stay as they are
        adapter = later.pop("adapter", None)
        packing = later.pop("packing", None)
        if not settings.splits_layers:  # nothing is split
            later.pop("tensor_parallel", None)
        values |= later
        if work.frozen:
            values["frozen"] = ",".join(work.frozen)
        if packing is not None:
            values["packing"] = packing["variant"]
        if adapter is not None:
            values["adapter"] = adapter["method"]
            names = ("rank", "alpha", "dropout")
            values |= {f"lora_{name}": adapter[name] for name in names}
            values["lora_targets"] = ",".join(adapter["target_modules"])
            if "modules_to_save" in adapter:
                values["lora_modules_to_save"] = ",".join(adapter["modules_to_save"])
            values |= {name: adapter[name] for name in QUANTIZED if name in adapter}
        if settings.fused_loss:
            values["loss_kernel"] = usual_loss_kernel(question.framework.name)
    return {
        f"{PREFIX}{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def surroundings(question: Question) -> dict[str, str]:
    """Variables that the ranks themselves need, so that they run as probed or predicted."""
    found, gpu = {}, question.cluster.gpu
    if gpu.device is Device.CPU and gpu.cores:  # without it torchrun sets one
        found["OMP_NUM_THREADS"] = str(max(1, gpu.cores // question.cluster.gpus_per_node))
    if question.framework.name is FrameworkName.NANOTRON:
        # asserted by its asynchronous tensor parallelism (parallel/tensor_parallel/functional.py)
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return found


def job_name(study_id: str) -> str:
    """A name for schedulers: a DNS label, whatever the study is called."""
    plain = re.sub(r"[^a-z0-9]+", "-", f"tuned-{study_id}".lower())
    return plain[:LONGEST_LABEL].strip("-")


# Characters of a comment line, without its mark.
WIDTH = 78


def shell_word(path: str) -> str:
    """A path as a word of a command in a comment."""
    return shlex.quote(printable(path))


def printable(text: str) -> str:
    """``text`` in one line: what cannot be printed is a space, and a backtick an apostrophe."""
    return "".join(c if c.isprintable() else " " for c in text).replace("`", "'")


def comment(text: str) -> list[str]:
    """Comment lines, whatever the text holds; of an item (``- ``), further lines are set in."""
    safe = printable(text)
    hang = "  " if safe.startswith("- ") else ""
    wrapped = textwrap.wrap(
        safe, WIDTH, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )
    return [f"# {line}" for line in wrapped]


def comments(*texts: str) -> list[str]:
    """Comment lines of several texts, each beginning a line."""
    return [line for text in texts for line in comment(text)]


# libyaml writes the same ten times as fast, where PyYAML was built with it.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def yaml_text(values: Mapping[str, Any]) -> str:
    """YAML of plain values, in their order."""
    return str(yaml.dump(values, Dumper=_DUMPER, sort_keys=False))


def code(text: str) -> Iterator[str]:
    """Python as comments between fences, to be taken out as it stands."""
    yield "# ```python"
    yield from (f"# {line}".rstrip() for line in text.splitlines())
    yield "# ```"


def header(*blocks: Iterable[str]) -> str:
    """Blocks of comment lines with an empty comment between them; empty blocks are left out."""
    return "\n#\n".join(filter(None, map("\n".join, blocks)))


def written(about: About) -> str:
    """Says who wrote the file, when, from what, and with which versions."""
    so_far = " It is the best so far: the study still runs." if about.is_open else ""
    return (
        f"Written by tuner on {about.date} from study {about.study_id}; its figures are"
        f" {about.provenance}{f', with {versions_text(about)}' if about.versions else ''}.{so_far}"
    )


def versions_text(about: About) -> str:
    """``torch 2.13.0, transformers 5.23.0``."""
    return ", ".join(f"{name} {version}" for name, version in sorted(about.versions.items()))


def asked(question: Question, settings: Settings) -> str:
    """Says what is trained, where, in one sentence; of a user's script what is known of it."""
    work = question.workload
    if question.script is not None:
        return (
            f"Your own script {question.script.path} on {question.cluster.name}: sequences of"
            f" {work.sequence_length} tokens, {work.global_batch_size} in an optimizer step."
        )
    name = work.model.name if work.model.is_causal_lm else f"{work.model.name} ({work.model.task})"
    reduced = f"in {work.reduce_dtype}"
    if work.reduce_dtype is ReduceDtype.FRAMEWORK:
        reduced = "as the framework does: in fp32 under DDP, in bf16 under FSDP"
        if settings.splits_layers:
            reduced += " but for a model that transformers splits, in fp32"
    return (
        f"{name} on {question.cluster.name}: sequences of {work.sequence_length} tokens,"
        f" {work.global_batch_size} in an optimizer step; {work.optimizer}, {work.precision},"
        f" gradients reduced {reduced}{_added(question, settings)}."
    )


def _added(question: Question, settings: Settings) -> str:
    """Says what the loss is, where it is not transformers' own, other tensor parallelism, and what
    is trained in the place of the model."""
    said, work = loss_text(question), question.workload
    whole = work.splits_sequence or settings.model_parallel_size == 1
    split = "" if whole else f", tensor parallelism with {work.tensor_parallel}"
    adapter = "" if work.adapter is None else f"; {work.adapter}, the model frozen"
    adapter += f"; {work.image_tokens} tokens of images" if work.image_tokens else ""
    adapter += f"; frozen {', '.join(work.frozen)}" if work.frozen else ""
    packing = "" if work.packing is None else f"; packing {work.packing}"
    return (f", the loss {said}" if said else "") + split + adapter + packing


def loss_text(question: Question) -> str:
    """Names the study's loss; empty where it is transformers' own."""
    loss = question.workload.loss
    said = {Loss.FP32: "an fp32 copy of the logits", Loss.OWN_DTYPE: "the logits as they are"}
    return f"cross entropy of {said[loss]}" if loss in said else ""


def provenance(question: Question, settings: Settings, about: About) -> list[str]:
    """The first block: study, date, provenance, versions, question, settings and figures."""
    figures = (f"- {figure}" for figure in about.figures)
    said = (written(about), about.other_stack, asked(question, settings))
    lines = comments(*said, str(settings).replace(",", ", "), *figures)
    if values := told(question, settings, about):
        # the one character that JSON leaves as it is, and YAML does not take
        packed = json.dumps(values, separators=(",", ":")).replace("\x7f", "\\u007f")
        lines += [_MARK, *(f"#   {packed[at : at + 76]}" for at in range(0, len(packed), 76))]
    return lines


# The line before those that :func:`told_in_comment` reads.
_MARK = "# Read by tuner check, where no field says otherwise:"


def told(question: Question, settings: Settings, about: About) -> dict[str, Any]:
    """All of a question and its settings, for files that say a part of it; of models and clusters
    that have a name here the name alone. Nothing of a user's own script."""
    if question.script is not None:
        return {}
    values, work, cluster = question.as_dict(), question.workload, question.cluster
    if models.find(work.model.name) == work.model.name:
        known = published_model(work.model.name, work.model.task)
        values["workload"]["model"] = None if known == work.model else work.model.as_config()
    if cluster.gpu.device is Device.CUDA and cluster.gpu.name in gpu_kinds():
        values["cluster"] = (
            cluster.name if parse_cluster(cluster.name) == cluster else values["cluster"]
        )
    del values["knobs"]
    return {"format": about.format_name, "settings": str(settings), **values}


def told_in(values: Mapping[str, Any], path: str) -> tuple[str, Question, Settings]:
    """The format, the question and the settings that :func:`told` made, of a file at ``path``.

    Raises:
        UsageError: it was changed.
    """
    try:
        work = dict(values["workload"])
        if work["model"] is None:
            task = Task(work.get("task", Task.CAUSAL_LM))
            work["model"] = published_model(work["model_name"], task).as_config()
        cluster = values["cluster"]
        if isinstance(cluster, str):
            named = parse_cluster(cluster)
            if named.name != cluster:  # such as local: whoever reads it is another machine
                raise ValueError(f"cluster: {cluster[:60]}")
            cluster = named.as_dict()
        parts = {**values, "workload": work, "cluster": cluster, "knobs": {}}
        return values["format"], Question.from_dict(parts), parse_settings(values["settings"])
    except (
        TunerError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:
        why = " ".join(str(error).split())[:200]
        changed = f"what is below '{_MARK[2:-1]}' is not as tuner export wrote it ({why})"
        raise UsageError("file", path, f"{changed}: take it out, or export anew") from error


def told_in_comment(text: str, path: str) -> tuple[str, Question, Settings] | None:
    """The same of the first comment that has it; ``None`` where none does."""
    found = re.search(rf"(?m)^{_MARK}\r?\n((?:#   .*\n?)*)", text)
    if found is None:
        return None
    try:
        values = json.loads("".join(line[4:] for line in found[1].splitlines()))
    except (ValueError, RecursionError):
        values = {}
    return told_in(values if isinstance(values, Mapping) else {}, path)
