"""What is not covered: of it nothing is predicted, and the answer says why."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from tuner.errors import TunerError
from tuner.model.fields import ARCHITECTURES

TYPO = 0.8
"""Similarity from which a name is taken for a misspelled one."""


class NotCoveredError(TunerError):
    """A model type or a GPU that nothing is known of. Not a mistake, but no ground to predict."""


def uncovered_model_type(model_type: object) -> str:
    """Why a type is not covered; empty for one that is, or that is no type at all."""
    if not isinstance(model_type, str) or not model_type or model_type in ARCHITECTURES:
        return ""
    shown = model_type[:80]
    near = get_close_matches(shown, ARCHITECTURES, n=1, cutoff=0.75)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"model type {shown!r} is not covered{hint}; covered are {', '.join(ARCHITECTURES)}"


def uncovered_gpu(name: str, known: Iterable[str]) -> str:
    """Why a GPU that has no figures is not covered; empty for a misspelled name of the catalogue.

    A name is misspelled when it is like a known one and has the same numbers: ``h100-80bg`` is,
    ``h300`` and ``b300`` are other products.
    """
    shown = name[:80]
    if any(_misspelled(shown.lower(), one) for one in known):
        return ""
    return (
        f"GPU {shown!r} is not in the catalogue and comes without figures; give it as an object"
        " with name, memory_bytes and rates"
    )


def _misspelled(name: str, known: str) -> bool:
    same_numbers = re.sub(r"[^0-9]", "", name) == re.sub(r"[^0-9]", "", known)
    return same_numbers and SequenceMatcher(None, name, known).ratio() >= TYPO
