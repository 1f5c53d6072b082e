"""Published models by name: ``models/<name>.json`` beside this file, one for each.

A file holds ``source`` (the page that publishes the figures), ``parameters`` (the exact count,
tied weights once) and ``config`` (fields of the published ``config.json`` that shape the model).
"""

import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from tuner.errors import UnknownNameError

# Where most sources are: what follows is the repository, which is understood as a name too.
HUB = "https://huggingface.co/"


@cache
def names() -> tuple[str, ...]:
    """All names, sorted."""
    found = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


def find(spec: str) -> str | None:
    """The catalogue's name for what a user wrote, or ``None``.

    Case, dashes, underscores and blanks do not matter: ``Llama3.1_8B`` is ``llama-3.1-8b``. The
    repository that publishes the model (``meta-llama/Llama-3.1-8B``) is understood too.
    """
    if "/" in spec:
        return _by_repository().get(spec.lower()) if spec.count("/") == 1 else None
    return _by_letters().get(_letters(spec))


def published(spec: str) -> tuple[str, dict[str, Any]]:
    """The catalogue's name of a published model and its config, by a name that :func:`find` takes.

    Raises:
        UnknownNameError: no such name; it holds the nearest ones.
    """
    name = find(spec)
    if name is None:
        shown = spec if len(spec) <= 100 else f"{spec[:100]}..."
        raise UnknownNameError("model", shown, names(), "(or give the path of a config.json)")
    config: dict[str, Any] = entry(name)["config"]
    return name, config


def entry(name: str) -> dict[str, Any]:
    """A model's file as it is: ``source``, ``parameters`` and ``config``."""
    text = _folder().joinpath(f"{name}.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


def _folder() -> Traversable:
    return files("tuner.catalog").joinpath("models")


def _letters(spec: str) -> str:
    return spec.lower().translate({ord(c): None for c in "-_ "})


@cache
def _by_letters() -> dict[str, str]:
    return {_letters(name): name for name in names()}


@cache
def _by_repository() -> dict[str, str]:
    sources = ((entry(name)["source"], name) for name in names())
    return {s.removeprefix(HUB).lower(): name for s, name in sources if s.startswith(HUB)}
