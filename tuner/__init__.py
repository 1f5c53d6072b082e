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
    from tuner.client.answered import Answer
    from tuner.client.cases import Prediction
    from tuner.client.check import Checked, check
    from tuner.client.predict import predict
    from tuner.client.rehearse import Rehearsal, rehearse
    from tuner.client.size import Sizes, size
    from tuner.client.suggest import cost_model_sampler, suggest
    from tuner.core.answer import Candidate, Suggestion
    from tuner.core.configuration import Settings
    from tuner.core.quantity import Provenance, Quantity
    from tuner.core.script import Launch, Script, read_script
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

__all__ = [
    "Answer",
    "Candidate",
    "Checked",
    "Launch",
    "NothingFitsError",
    "Prediction",
    "ProbeError",
    "Provenance",
    "Quantity",
    "Rehearsal",
    "Script",
    "ServiceError",
    "Settings",
    "Sizes",
    "SpeedUnknownError",
    "StoreError",
    "Suggestion",
    "TrainsWronglyError",
    "TunerError",
    "UsageError",
    "check",
    "cost_model_sampler",
    "predict",
    "read_script",
    "rehearse",
    "size",
    "suggest",
]

_HOMES = {
    "client.answered": ("Answer",),
    "client.check": ("Checked", "check"),
    "client.cases": ("Prediction",),
    "client.predict": ("predict",),
    "client.rehearse": ("Rehearsal", "rehearse"),
    "client.size": ("Sizes", "size"),
    "client.suggest": ("cost_model_sampler", "suggest"),
    "errors": (
        "NothingFitsError", "ProbeError", "ServiceError", "SpeedUnknownError", "StoreError",
        "TrainsWronglyError", "TunerError", "UsageError",
    ),
    "core.quantity": ("Provenance", "Quantity"),
    "core.script": ("Launch", "Script", "read_script"),
    "core.configuration": ("Settings",),
    "core.answer": ("Candidate", "Suggestion"),
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
