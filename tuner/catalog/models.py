"""Published models by name: ``models/<name>.json`` beside this file, one for each.

A file holds ``source`` (the page that publishes the figures), ``parameters`` (the exact count,
tied weights once) and ``config`` (fields of the published ``config.json`` that shape the model);
where the page was not at hand, ``read`` says what quotes it, and what the count was held against,
or that it is of the model that transformers builds of these fields.
A name that ends in ``-text`` is the language model alone of one that sees images too.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

# Where most sources are: what follows is the repository, which is understood as a name too.
HUB = "https://huggingface.co/"


_FOLDER = files("tuner.catalog").joinpath("models")
_BLANK = {ord(c): None for c in "-_ "}


@cache
def names() -> tuple[str, ...]:
    found = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


@cache
def _repositories() -> dict[str, str]:
    sources = ((entry(name)["source"], name) for name in names())
    return {s.removeprefix(HUB).lower(): name for s, name in sources if s.startswith(HUB)}


def find(spec: str) -> str | None:
    """The catalogue's name for what a user wrote, or ``None``.

    Case, dashes, underscores and blanks do not matter: ``Llama3.1_8B`` is ``llama-3.1-8b``. The
    repository that publishes the model (``meta-llama/Llama-3.1-8B``) is understood too.
    """
    if "/" in spec:
        return _repositories().get(spec.lower())
    return _by_letters().get(spec.lower().translate(_BLANK))


@cache
def _by_letters() -> dict[str, str]:
    return {name.translate(_BLANK): name for name in names()}


# Words of a repository's name that say how its weights were trained or stored, and nothing of its
# shape.
_NO_SHAPE = re.compile(
    r"[-_.](instruct|chat|it|hf|base|pt|sft|dpo|bf16|fp16|bnb|nf4|4bit|gptq|awq|fp8|nvfp4|dequantized"
    r"|linearized|reasoning|2[0-9]{3}|v2[0-9]{3})(?=[-_.]|$)|^meta-"
)


@cache
def _families() -> dict[str, str]:
    names_of = {one: find(one) or one for one in names()}
    repositories = {**_same_shape(), **_repositories()}
    names_of |= {source.rpartition("/")[2]: name for source, name in repositories.items()}
    return {_family(one): name for one, name in names_of.items()}


def _family(name: str) -> str:
    return _NO_SHAPE.sub("", name.lower()).translate(_BLANK)


@cache
def _same_shape() -> dict[str, str]:
    text = files("tuner.catalog").joinpath("same_shape.toml").read_text("utf-8")
    return {repository.lower(): one["like"] for repository, one in tomllib.loads(text).items()}


def alike(repository: str) -> str | None:
    """The catalogue's name of a model that is as large as a repository's, or ``None``.

    ``NousResearch/Llama-2-7b-chat-hf`` is as large as ``llama-2-7b``: training, format and
    publisher change no shape; others are listed in same_shape.toml. Of a model that sees images
    too it is the language model's.
    """
    if (known := _same_shape().get(repository.lower())) is not None:
        return known
    family = _family(repository.rpartition("/")[2])
    return _families().get(family) or _families().get(f"{family}text")


@cache
def traced_types() -> tuple[str, ...]:
    """Types of causal language models that transformers builds, and that only dry runs know."""
    text = files("tuner.catalog").joinpath("model_types.txt").read_text("utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


class Task(StrEnum):
    """What a model is trained for, which decides its head, its batches and its loss."""

    CAUSAL_LM = "causal_lm"  # each token is predicted from those before it
    MASKED_LM = "masked_lm"  # some tokens are predicted from all others
    SEQUENCE_CLASSIFICATION = "sequence_classification"  # a label for each sequence
    IMAGE_TEXT_TO_TEXT = "image_text_to_text"  # each token of text, from those and images before it

    @property
    def auto_class(self) -> str:
        """The class of transformers that builds the model."""
        return _AUTO_CLASSES[self]


_AUTO_CLASSES: Mapping[Task, str] = {
    Task.CAUSAL_LM: "AutoModelForCausalLM",
    Task.MASKED_LM: "AutoModelForMaskedLM",
    Task.SEQUENCE_CLASSIFICATION: "AutoModelForSequenceClassification",
    Task.IMAGE_TEXT_TO_TEXT: "AutoModelForImageTextToText",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """A model type, as transformers' class for a task has it."""

    layer: str  # class of its layers
    positions: int = 0  # the longest sequence by default; 0 where there is no such field
    padding: int | None = None
    """The default token of padding, where positions are counted from the one after it: RoBERTa's
    514 are for 512 tokens."""
    checkpoints: bool = True  # whether transformers can compute its layers again in backward
    shards: bool = True
    """Whether FSDP2 takes it: the bias of BERT's head is one parameter of two modules, of which
    accelerate puts one into a group of its own, and torch 2.13 refuses that."""
    sdpa: bool = True  # whether its attention may be torch's; else it is computed by operators


@cache
def task_types(task: Task) -> Mapping[str, TaskType]:
    """Types that transformers builds for a task; of causal language models none is listed so."""
    text = files("tuner.catalog").joinpath("task_types.toml").read_text("utf-8")
    return {name: TaskType(**one) for name, one in tomllib.loads(text).get(task, {}).items()}


def entry(name: str) -> dict[str, Any]:
    """A model's file as it is: ``source``, ``parameters``, ``config`` and perhaps ``read``."""
    values: dict[str, Any] = json.loads(_FOLDER.joinpath(f"{name}.json").read_text("utf-8"))
    return values
