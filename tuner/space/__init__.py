"""The space of legal settings: what the knobs can be, which of them are inactive, and why.

A knob that cannot act is collapsed to one canonical value, so that equal settings train alike
and nothing is probed twice. Three things can hold of a value: it acts; it does not act, and
the knob is *inactive* there; or it is refused, because the stack would fail or train wrongly.
"""

from tuner.space.enumeration import (
    Space,
    check_settings,
    count_settings,
    divisors,
    enumerate_space,
    legal_settings,
    settings_notes,
)
from tuner.space.rules import (
    NO_TENSOR_PARALLEL,
    NO_TENSOR_PARALLEL_WITH,
    SHARDINGS,
    TENSOR_PARALLEL_MODEL_TYPES,
    no_liger,
)

__all__ = [
    "NO_TENSOR_PARALLEL",
    "NO_TENSOR_PARALLEL_WITH",
    "SHARDINGS",
    "TENSOR_PARALLEL_MODEL_TYPES",
    "Space",
    "check_settings",
    "count_settings",
    "divisors",
    "enumerate_space",
    "legal_settings",
    "no_liger",
    "settings_notes",
]
