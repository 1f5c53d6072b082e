"""What to probe next for its own sake, and what that is expected to gain.

A study's legal settings are the candidates, the cost model's predictions what is known of them
before any probe, and its probes the trials (:mod:`tuner.search`). Settings that are hardly expected
to fit are tried only while nothing else is left and nothing is known to fit.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tuner.planner.knowledge import Knowledge
from tuner.planner.outlook import MemoryOutlook
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.search.belief import Belief
    from tuner.search.features import Mask
    from tuner.search.prior import Prior
    from tuner.search.trials import Past, Trial

LAST_RESORTS = 2
"""Probes of settings that are not expected to fit, made only when nothing else is left.

They say what would be needed, in case the prediction is wrong.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """Settings that are worth a probe."""

    settings: Settings
    """Which."""
    gain: float
    """Expected gain in speed over the best known, relative; infinite while nothing fits."""
    succeeds: float
    """Probability that they fit and run."""


class Search:
    """A study's search as it stands: what is believed, and what to try next.

    NumPy and Optuna are imported by what is asked for, for they are slow to import.
    """

    def __init__(self, known: Knowledge) -> None:
        self._known = known

    @cached_property
    def prior(self) -> "Prior":
        """What is predicted of the legal settings, in the space's order."""
        from tuner.planner.candidates import prior_of

        study = self._known.study
        return prior_of(study.question, study.calibration, self._known.limit_bytes)

    @cached_property
    def trials(self) -> "list[Trial]":
        """What was tried."""
        from tuner.planner.trials import trials_of

        return trials_of(self._known)

    @cached_property
    def past(self) -> "Past | None":
        """What earlier studies have tried."""
        from tuner.planner.history import past_of

        return past_of(self._known.study)

    @cached_property
    def belief(self) -> "Belief":
        """What is believed of the legal settings, in the space's order."""
        from tuner.search.belief import believe

        return believe(self.prior, self.trials, self.past)

    @cached_property
    def allowed(self) -> "Mask":
        """Which legal settings may be probed: untried, and not ruled out."""
        import numpy as np

        candidates, outlook = set(self._known.candidates()), MemoryOutlook(self._known)
        large = self.prior.log_need > self.prior.log_limit
        return np.array(
            [
                one in candidates and not (is_large and outlook.cannot_fit(one))
                for one, is_large in zip(self.prior.settings, large, strict=True)
            ]
        )

    def propose(self) -> Proposed | None:
        """The most promising settings; ``None`` when none are worth a probe."""
        from tuner.search.sampler import ask

        if not self.allowed.any():
            return self._last_resort()
        found = ask(self.prior, self.trials, self.allowed, self.past)
        if found.is_hopeless:
            return self._last_resort()
        settings = self.prior.settings[found.index]
        return Proposed(settings=settings, gain=found.gain, succeeds=found.succeeds)

    def _last_resort(self) -> Proposed | None:
        """The smallest of what is not expected to fit, while nothing is known to fit."""
        known, candidates = self._known, set(self._known.candidates())
        if known.fitting or len(known.repetitions) >= LAST_RESORTS or not candidates:
            return None
        needs = dict(zip(self.prior.settings, self.belief.log_need.tolist(), strict=True))
        smallest = min(candidates, key=lambda one: (needs[one], str(one)))
        return Proposed(settings=smallest, gain=float("inf"), succeeds=0.0)


def propose(known: Knowledge) -> Proposed | None:
    """The settings to probe next, or ``None`` when none are worth it."""
    return Search(known).propose()
