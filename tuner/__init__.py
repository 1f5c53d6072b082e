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
    from tuner.client.answered import Answer as Answer
    from tuner.client.cases import Prediction as Prediction
    from tuner.client.check import Checked as Checked
    from tuner.client.check import check as check
    from tuner.client.predict import predict as predict
    from tuner.client.rehearse import Rehearsal as Rehearsal
    from tuner.client.rehearse import rehearse as rehearse
    from tuner.client.size import Sizes as Sizes
    from tuner.client.size import size as size
    from tuner.client.suggest import cost_model_sampler as cost_model_sampler
    from tuner.client.suggest import suggest as suggest
    from tuner.core.answer import Candidate as Candidate
    from tuner.core.answer import Suggestion as Suggestion
    from tuner.core.configuration import Settings as Settings
    from tuner.core.quantity import Provenance as Provenance
    from tuner.core.quantity import Quantity as Quantity
    from tuner.core.script import Launch as Launch
    from tuner.core.script import Script as Script
    from tuner.core.script import read_script as read_script
    from tuner.errors import NothingFitsError as NothingFitsError
    from tuner.errors import ProbeError as ProbeError
    from tuner.errors import ServiceError as ServiceError
    from tuner.errors import SpeedUnknownError as SpeedUnknownError
    from tuner.errors import StoreError as StoreError
    from tuner.errors import TrainsWronglyError as TrainsWronglyError
    from tuner.errors import TunerError as TunerError
    from tuner.errors import UsageError as UsageError

# The module of each public name.
_HOMES = {
    "client.answered": ("Answer",),
    "client.cases": ("Prediction",),
    "client.check": ("Checked", "check"),
    "client.predict": ("predict",),
    "client.rehearse": ("Rehearsal", "rehearse"),
    "client.size": ("Sizes", "size"),
    "client.suggest": ("cost_model_sampler", "suggest"),
    "core.answer": ("Candidate", "Suggestion"),
    "core.configuration": ("Settings",),
    "core.quantity": ("Provenance", "Quantity"),
    "core.script": ("Launch", "Script", "read_script"),
    "errors": (
        "NothingFitsError", "ProbeError", "ServiceError", "SpeedUnknownError", "StoreError",
        "TrainsWronglyError", "TunerError", "UsageError",
    ),
}  # fmt: skip
__all__ = sorted(name for names in _HOMES.values() for name in names)


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
