"""What to probe next for its own sake, and what that is expected to gain.

A study's legal settings are the candidates, the cost model's predictions what is known of them
before any probe, and its probes the trials (:mod:`tuner.search`). Settings that are hardly expected
to fit are tried only while nothing else is left and nothing is known to fit.
"""

from collections.abc import Collection
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
    from tuner.search.proposal import Proposal
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

    def __init__(
        self, known: Knowledge, pending: Collection[Settings] = (), *, confirms: bool = False
    ) -> None:
        """A search.

        Args:
            known: what the probes that are done have taught.
            pending: settings of probes on their way. The next one is chosen as if each had taken
                what is believed of it, so that it is not one more of the same (the "Kriging
                believer" of Ginsbourger, Le Riche and Carraro 2010).
            confirms: whether settings may be tried whose knob was wrong in another layout; one at
                a time.
        """
        self._known = known
        self._confirms = confirms and known.unconfirmed.isdisjoint(pending)
        self._pending = frozenset(pending)

    @cached_property
    def prior(self) -> "Prior":
        """What is predicted of the legal settings, in the space's order."""
        if not self.asked_elsewhere:
            return self._arithmetic
        from tuner.planner.elsewhere import informed

        return informed(self._arithmetic, self._known)

    @cached_property
    def trials(self) -> "list[Trial]":
        """What was tried, also at other fidelities."""
        from tuner.planner.trials import trials_of

        mine = trials_of(self._known)
        if not self.asked_elsewhere:
            return mine
        from tuner.planner.elsewhere import trials_elsewhere

        return [*mine, *trials_elsewhere(self._known)]

    @property
    def asked_elsewhere(self) -> bool:
        """Whether there are probes of other fidelities."""
        return len(self._known.whole.probes) > len(self._known.study.probes)

    @cached_property
    def _arithmetic(self) -> "Prior":
        from tuner.planner.candidates import prior_of

        study = self._known.study
        return prior_of(study.question, study.calibration, self._known.limit_bytes)

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

        candidates, outlook = set(self._candidates()), MemoryOutlook(self._known)
        large = self._arithmetic.log_need > self._arithmetic.log_limit
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
        told = [*self.trials, *self._lies()]
        return self._proposed(ask(self.prior, told, self.allowed, self.past))

    def expect(self) -> Proposed | None:
        """What :meth:`propose` gives, by the belief at hand: for what is said of more probes."""
        from tuner.search.proposal import chosen

        assert not self._pending
        if not self.allowed.any():
            return self._last_resort()
        return self._proposed(chosen(self.prior, self.belief, self.trials, self.allowed))

    def _proposed(self, found: "Proposal") -> Proposed | None:
        if found.is_hopeless:
            return self._last_resort()
        settings = self.prior.settings[found.index]
        return Proposed(settings=settings, gain=found.gain, succeeds=found.succeeds)

    def _candidates(self) -> list[Settings]:
        left = [one for one in self._known.candidates() if one not in self._pending]
        return left if self._confirms else [s for s in left if s not in self._known.unconfirmed]

    def _lies(self) -> "list[Trial]":
        """What is believed of the probes on their way, told as if it had been seen."""
        from tuner.planner.trials import believed_trials

        return believed_trials(self.prior, self.belief, self._pending) if self._pending else []

    def _last_resort(self) -> Proposed | None:
        """The smallest of what is not expected to fit, while nothing is known to fit.

        Each is waited for: it may show that others fit.
        """
        known, candidates = self._known, self._candidates()
        tried = known.tried - known.wrong.keys()  # those fit, and say nothing of what is needed
        if self._pending or known.fitting or len(tried) >= LAST_RESORTS:
            return None
        if not candidates:
            return None
        needs = dict(zip(self.prior.settings, self.belief.log_need.tolist(), strict=True))
        smallest = min(candidates, key=lambda one: (needs[one], str(one)))
        return Proposed(settings=smallest, gain=float("inf"), succeeds=0.0)


def propose(known: Knowledge, pending: Collection[Settings] = ()) -> Proposed | None:
    """The settings to probe next, or ``None`` when none are worth it; see :class:`Search`."""
    return Search(known, pending, confirms=True).propose()
