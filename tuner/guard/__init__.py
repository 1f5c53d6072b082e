"""The guard against wrong results: small twins of settings, trained against one process."""

from tuner.guard.shrink import NoTwinError
from tuner.guard.twin import Twin, family, family_of, stack_of, twin_of
from tuner.guard.verdict import Ruling, Verdict, judge, ruling_of

__all__ = [
    "NoTwinError",
    "Ruling",
    "Twin",
    "Verdict",
    "family",
    "family_of",
    "judge",
    "ruling_of",
    "stack_of",
    "twin_of",
]
