"""Finds the fastest training settings that fit in memory, before a distributed job starts.

This package thinks: it imports neither torch nor a web framework. Importing it imports nothing else
of it; each public name is looked up when it is first used::

    import tuner

    found = tuner.suggest(
        model="llama-3.1-8b", cluster="8xh100-80gb",
        global_batch_size=256, sequence_length=4096, fidelity="predicted",
    )
    print(found.best.settings, found.best.tokens_per_s_per_gpu)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.asking.answered import Answer
    from tuner.asking.predicting import Prediction, predict
    from tuner.asking.suggesting import suggest
    from tuner.errors import (
        NothingFitsError,
        ProbeError,
        ServiceError,
        SpeedUnknownError,
        StoreError,
        TrainsWronglyError,
        TunerError,
        UsageError,
    )
    from tuner.quantity import Provenance, Quantity
    from tuner.script.script import Launch, Script, read_script
    from tuner.settings import Settings
    from tuner.suggestion import Candidate, Suggestion

__all__ = [
    "Answer",
    "Candidate",
    "Launch",
    "NothingFitsError",
    "Prediction",
    "ProbeError",
    "Provenance",
    "Quantity",
    "Script",
    "ServiceError",
    "Settings",
    "SpeedUnknownError",
    "StoreError",
    "Suggestion",
    "TrainsWronglyError",
    "TunerError",
    "UsageError",
    "predict",
    "read_script",
    "suggest",
]

_HOMES = {
    "asking.answered": ("Answer",),
    "asking.predicting": ("Prediction", "predict"),
    "asking.suggesting": ("suggest",),
    "errors": (
        "NothingFitsError", "ProbeError", "ServiceError", "SpeedUnknownError", "StoreError",
        "TrainsWronglyError", "TunerError", "UsageError",
    ),
    "quantity": ("Provenance", "Quantity"),
    "script.script": ("Launch", "Script", "read_script"),
    "settings": ("Settings",),
    "suggestion": ("Candidate", "Suggestion"),
}  # fmt: skip
"""The module of each public name."""


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used (PEP 562)."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            found: object = getattr(import_module(f"tuner.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
