"""Makes data of a study and its answer for pages and any other reader.

Everything here is a pure function of a study, or of an :class:`Evidence` of it that several of them
share. Quantities keep their interval and where they come from.
"""

from tuner.results.points import BestSoFar, Evidence, Importance, importance, points, progress
from tuner.results.summary import Cell, Compared, Difference, Headline, Part, differences, headline
from tuner.results.what_if import Choices, KnobChoice, Option, Predictor, WhatIf, choices, what_if

__all__ = [
    "BestSoFar",
    "Cell",
    "Choices",
    "Compared",
    "Difference",
    "Evidence",
    "Headline",
    "Importance",
    "KnobChoice",
    "Option",
    "Part",
    "Predictor",
    "WhatIf",
    "choices",
    "differences",
    "headline",
    "importance",
    "points",
    "progress",
    "what_if",
]
