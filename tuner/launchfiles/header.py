"""The comments that every file with comments begins with: where its settings come from.

Comments hold text of others, such as a model's name: nothing in it can end a comment.
"""

import textwrap
from collections.abc import Iterable, Iterator

from tuner.core.configuration import Settings
from tuner.core.study import Question
from tuner.core.workload import Loss, ReduceDtype
from tuner.launchfiles.contract import About

# Characters of a comment line, without its mark.
WIDTH = 78


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
    return (
        f"Written by tuner on {about.date} from study {about.study_id}; its figures are"
        f" {about.provenance}{f', with {versions_text(about)}' if about.versions else ''}."
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
    return comments(*said, str(settings).replace(",", ", "), *figures)
