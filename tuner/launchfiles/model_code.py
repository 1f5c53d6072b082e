"""Code that gives a model a loss that is not transformers' own, an adapter of peft, or packed
batches, as the probe program does; by ``templates/``."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.catalog.models import Task
from tuner.catalog.versions import version_table
from tuner.core.adapter import ALL_LINEAR
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.framework import ADAPTER_PACKAGE, FOUR_BIT_PACKAGE, FrameworkName
from tuner.core.packing import PackingVariant
from tuner.core.study import Question
from tuner.core.workload import Loss, Optimizer, Precision
from tuner.launchfiles.contract import batch_text
from tuner.launchfiles.fsdp import (
    DTYPES,
    ddp_reduce_dtype,
    dtype_argument,
    loaded,
    optimizer_import,
)

if TYPE_CHECKING:
    from jinja2 import Template

# The first whose kernels are operators that torch knows by name (catalog/versions.toml).
FLASH_NEEDED = "flash-attn 2.7 or newer"

_CROSS_ENTROPY = '''\
def cross_entropy(logits, labels, vocab_size, **_):
    """The loss that the settings are for: cross entropy {what}."""
    targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    logits = logits.view(-1, vocab_size){widened}
    return torch.nn.functional.cross_entropy(logits, targets)'''

# What the probe program fuses a loss with. It is read, not imported: it would import torch.
_FUSED = Path(__file__).parents[2] / "workers" / "probe" / "fused_loss.py"


@cache
def _fused_code() -> str:
    whole = _FUSED.read_text(encoding="utf-8").partition("import torch\n")[2].strip("\n")
    return whole.replace("  # type: ignore\n", "\n")


def use_loss(question: Question, settings: Settings) -> str:
    """The line that gives a model its loss; empty where the model's own is left to it."""
    if settings.fused_loss:
        return "fuse_loss(model)"
    return "model.loss_function = cross_entropy" if loss_code(question, settings) else ""


def loss_code(question: Question, settings: Settings) -> str:
    """What :func:`use_loss` needs: ``fuse_loss``, or ``cross_entropy`` of a model's logits."""
    if settings.fused_loss:
        code = _fused_code()
    elif settings.splits_layers and not question.workload.gathers_logits:
        return ""  # parallelize makes the loss
    elif question.workload.loss is Loss.HF:
        return ""
    else:
        wide = question.workload.loss is Loss.FP32
        code = _CROSS_ENTROPY.format(
            what="of an fp32 copy of the logits" if wide else "of the logits as they are",
            widened=".float()" if wide else "",
        )
    if settings.cp_size == 1:
        return code
    # A part of a sequence has not all labels: they are shifted already.
    shifted = r"torch\.nn\.functional\.pad\((\S+), \(0, 1\), value=-100\)\[\.\.\., 1:\]"
    return re.sub(shifted, r"\1", code)


def distributed_config(question: Question, settings: Settings) -> str:
    """The argument by which transformers splits a model as it loads it, and shards it over the
    data-parallel ranks; empty where nothing splits it."""
    if not settings.splits_layers or question.script is not None:
        return ""
    ranks = settings.data_parallel_size(question.cluster.world_size)
    mixed = ranks > 1 and question.workload.precision is Precision.BF16_MIXED
    given = f"tp_size={settings.tp_size}, fsdp_size={ranks}"
    return f"DistributedConfig({given}{', fsdp_mixed_precision=True' if mixed else ''})"


def mask_code(question: Question) -> tuple[str, str]:
    """The probe program's function that makes a mask of numbers, and the line of a loop that gives
    it to a batch on its device; both empty where there is none."""
    work = question.workload
    if work.packing is None or work.packing.variant is not PackingVariant.BLOCK_DIAGONAL:
        return "", ""
    dtype = "torch.float32" if work.precision is Precision.FP32 else "torch.bfloat16"
    use = f'batch["attention_mask"] = block_mask(batch["position_ids"], {dtype})'
    return _function("batches.py", "block_mask"), use


def freeze_code(question: Question) -> tuple[str, str]:
    """The probe program's function that freezes parts of a model, and the line that does it; both
    empty where all is trained."""
    parts = question.workload.frozen
    if not parts:
        return "", ""
    code = _function("model.py", "freeze").replace("model: Any, parts: list[str]", "model, parts")
    return code, f"freeze(model, {_quoted(list(parts))})"


@cache
def _function(file: str, name: str) -> str:
    """The source of a function of the probe program."""
    whole = _FUSED.with_name(file).read_text(encoding="utf-8")
    functions = (one for one in ast.parse(whole).body if isinstance(one, ast.FunctionDef))
    return ast.get_source_segment(whole, next(f for f in functions if f.name == name)) or ""


def attention(question: Question) -> str:
    """What the model is loaded with to compute attention."""
    known = question.workload.model.known_type
    if known is not None and not known.sdpa:  # transformers would refuse to load it
        return "eager"
    return "flash_attention_2" if is_varlen(question) else "sdpa"


def head_arguments(question: Question) -> str:
    """The arguments of ``from_pretrained`` that a classifier's head is made by; else empty."""
    given = question.workload.model.fields
    if question.workload.model.task is not Task.SEQUENCE_CLASSIFICATION:
        return ""
    return "".join(
        f"{name}={_quoted(given[name])}, "
        for name in ("num_labels", "problem_type")
        if name in given
    )


def labels_text(question: Question) -> str:
    """Says what labels a task's rows have; empty where they are the tokens."""
    return {
        Task.MASKED_LM: "labels are -100 but where a token is predicted, as"
        " DataCollatorForLanguageModeling makes them",
        Task.SEQUENCE_CLASSIFICATION: "labels are one for each row",
        Task.IMAGE_TEXT_TO_TEXT: f"{question.workload.image_tokens} tokens are of images, as the"
        " model's AutoProcessor makes them; labels are -100 there",
    }.get(question.workload.model.task, "")


def is_varlen(question: Question) -> bool:
    """Whether FlashAttention's library attends to the documents of a row."""
    packing = question.workload.packing
    return packing is not None and packing.variant is PackingVariant.VARLEN


def packing_needs(question: Question) -> tuple[str, ...]:
    """The releases that keep attention within documents."""
    work, needs = question.workload, []
    if oldest := work.packing.oldest_transformers(work.model) if work.packing else "":
        needs.append(f"transformers {oldest} or newer")
    if is_varlen(question):
        needs.append(FLASH_NEEDED)
    return tuple(needs)


def packing_text(question: Question) -> Iterator[str]:
    """Says how the Trainer is given packed or padded batches.

    TRL's trainer masks first tokens, begins positions anew and makes one row of a micro-batch by
    itself (``SFTTrainer.__init__`` and ``DataCollatorForLanguageModeling`` in
    trl/trainer/sft_trainer.py, 1.14); its default strategy, bfd, packs whole documents.
    """
    packing, tokens = question.workload.packing, question.workload.sequence_length
    if question.script is not None or packing is None:
        return
    blocks: Any = _template("blocks.py.j2").module
    collator = " ".join(blocks.collated(packing.variant, tokens).split())
    rows = "input_ids, as many tokens at most"
    if packing.restarts:
        rows = f"documents, lists of tokens, {tokens} in all"
    needs = " and ".join(packing_needs(question))
    needs = needs and f" This needs {needs}."
    yield f"Give the Trainer data_collator=lambda rows: {collator}. Its rows have {rows}.{needs}"
    if packing.variant is PackingVariant.VARLEN:
        yield (
            f"Or take TRL's SFTTrainer: its SFTConfig takes these arguments with packing=True and"
            f" max_length={tokens}, and packs and collates by itself."
        )


def adapter_needs(question: Question) -> str:
    """The releases of peft and bitsandbytes that the adapter's code needs; empty without one."""
    oldest = version_table().frameworks[FrameworkName.ACCELERATE].oldest
    adapter = question.workload.adapter
    packages = [ADAPTER_PACKAGE] * (adapter is not None)
    quantizes = adapter is not None and (adapter.quantizes or adapter.eight_bits)
    packages += [FOUR_BIT_PACKAGE] * quantizes
    return ", ".join(f"{name} {oldest[name]} or newer" for name in packages)


def imports(question: Question) -> tuple[str, ...]:
    """Lines that import what loads the model, makes its batches and wraps it."""
    work = question.workload
    quantizes = work.adapter is not None and (work.adapter.quantizes or work.adapter.eight_bits)
    names = [work.model.task.auto_class, *["BitsAndBytesConfig"] * quantizes]
    names += ["DataCollatorWithFlattening"] * (work.packing is not None and work.packing.restarts)
    regular = ["import re"] * bool(work.frozen)
    peft = ["from peft import LoraConfig, get_peft_model"] * (work.adapter is not None)
    return (*regular, *peft, f"from transformers import {', '.join(names)}")


def checkpoints_reentrantly(question: Question, settings: Settings) -> bool:
    """Tells whether torch's checkpoints are to be reentrant: others do not drop what layers in
    eight bits keep."""
    return question.in_eight_bits and settings.activation_checkpointing is Checkpointing.FULL


def _quoted(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def rendered(template: str, question: Question, settings: Settings, **more: object) -> str:
    """Code by one of the templates, of what they all need and ``more``."""
    work, hook = question.workload, ddp_reduce_dtype(question, settings)
    targets = list(work.adapter.target_modules) if work.adapter is not None else []
    freeze, freezes = freeze_code(question)
    known = {
        "settings": settings,
        "work": work,
        "size": question.cluster.world_size,
        "batch": batch_text(question, settings),
        "labels": labels_text(question),
        "loss": loss_code(question, settings),
        "use_loss": use_loss(question, settings),
        "muon": work.optimizer is Optimizer.MUON,
        "optimizer_import": optimizer_import(work.optimizer),
        "hook": DTYPES[hook] if hook else "",
        "imports": imports(question),
        "head": head_arguments(question),
        "dtype_name": dtype_argument(question),
        "dtype": DTYPES[loaded(question)],
        "attention": attention(question),
        "split": distributed_config(question, settings),
        "reentrant": checkpoints_reentrantly(question, settings),
        "targets": ALL_LINEAR if targets == [ALL_LINEAR] else targets,
        "freeze": freeze,
        "freezes": freezes,
    }
    return _template(template).render(known | more).rstrip("\n")


@cache
def _template(name: str) -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # few commands need it

    environment = Environment(  # noqa: S701  (no HTML)
        loader=PackageLoader("tuner.launchfiles"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quoted"] = _quoted
    return environment.get_template(name)
