"""What pages, and any other reader, show of a study: pure data made of it and of its answer.

Everything here is a pure function of a study, or of an :class:`Evidence` of it that several of them
share. Quantities keep their interval and where they come from.
"""

from tuner.results.choices import Choices, KnobChoice, Option, choices
from tuner.results.differences import Cell, Compared, Difference, Part, differences
from tuner.results.effects import KnobEffect, KnobValue, knob_effects
from tuner.results.evidence import Evidence
from tuner.results.figures import Figures
from tuner.results.headline import Headline, headline
from tuner.results.points import Point, PointKind, points
from tuner.results.progress import Progress, progress
from tuner.results.what_if import Predictor, WhatIf, what_if

__all__ = [
    "Cell",
    "Choices",
    "Compared",
    "Difference",
    "Evidence",
    "Figures",
    "Headline",
    "KnobChoice",
    "KnobEffect",
    "KnobValue",
    "Option",
    "Part",
    "Point",
    "PointKind",
    "Predictor",
    "Progress",
    "WhatIf",
    "choices",
    "differences",
    "headline",
    "knob_effects",
    "points",
    "progress",
    "what_if",
]
