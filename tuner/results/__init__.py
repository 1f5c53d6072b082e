"""Makes data of a study and its answer for pages and any other reader.

Everything here is a pure function of a study, or of an :class:`Evidence` of it that several of them
share. Quantities keep their interval and where they come from.
"""

from tuner.results.choices import Choices, KnobChoice, Option, choices
from tuner.results.differences import Cell, Compared, Difference, Part, differences
from tuner.results.effects import KnobEffect, KnobValue, knob_effects
from tuner.results.evidence import Evidence
from tuner.results.points import BestSoFar, Point, PointKind, points, progress
from tuner.results.summary import Headline, headline
from tuner.results.what_if import Predictor, WhatIf, what_if

__all__ = [
    "BestSoFar",
    "Cell",
    "Choices",
    "Compared",
    "Difference",
    "Evidence",
    "Headline",
    "KnobChoice",
    "KnobEffect",
    "KnobValue",
    "Option",
    "Part",
    "Point",
    "PointKind",
    "Predictor",
    "WhatIf",
    "choices",
    "differences",
    "headline",
    "knob_effects",
    "points",
    "progress",
    "what_if",
]
