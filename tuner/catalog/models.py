"""Published models by name: ``models/<name>.json`` beside this file, one for each.

A file holds ``source`` (the page that publishes the figures), ``parameters`` (the exact count,
tied weights once) and ``config`` (fields of the published ``config.json`` that shape the model);
where the page was not at hand, ``read`` says what quotes it, and what the count was held against.
A name that ends in ``-text`` is the language model alone of one that sees images too.
"""

import json
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
    letters = {name.translate(_BLANK): name for name in names()}
    return letters.get(spec.lower().translate(_BLANK))


@cache
def traced_types() -> tuple[str, ...]:
    """Types of causal language models that transformers builds, and that only dry runs know."""
    text = files("tuner.catalog").joinpath("model_types.txt").read_text("utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def entry(name: str) -> dict[str, Any]:
    """A model's file as it is: ``source``, ``parameters``, ``config`` and perhaps ``read``."""
    values: dict[str, Any] = json.loads(_FOLDER.joinpath(f"{name}.json").read_text("utf-8"))
    return values
