"""Expects the step times of configurations that were not probed, and how sure that is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any

from tuner.core.configuration import OTHERS_CHOSEN, Settings
from tuner.core.quantity import QUANTILE, Provenance, Quantity
from tuner.core.study import Study
from tuner.core.words import listed
from tuner.cost.prediction import predict
from tuner.model.shape import is_named
from tuner.planner.knowledge import Knowledge
from tuner.planner.search import Search
from tuner.planner.step_times import StepTimeChange

# Probability from which settings are expected to fit.
EXPECTED = 0.5
# Similarity of workloads from which another study is said to correct a number; what less similar
# ones say has faded.
TOLD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Expected effect of another value of one knob on the step time, on average."""

    knob: str
    """Which."""
    value: Any
    """The other value."""
    change: StepTimeChange
    """What it does; all of the pairs are taken to be wrong together."""
    pairs: int
    """Pairs of settings that this is the mean of; the members of each differ in the knob alone."""


class SpeedOutlook:
    """The belief of a study's search, looked up by settings."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self.search = Search(known)

    @cached_property
    def grounds(self) -> str:
        """Says what these numbers rest on."""
        if not is_named(self._known.study.question.workload.model):
            return "ordered by rules of thumb and corrected by the probes"
        rates = "predicted" if self._rates_are_known else "predicted with assumed rates"
        grounds = ["by the probes"]
        if any(trial.indirect for trial in self.search.trials):
            grounds.append("by those of other fidelities")
        if self.others:
            grounds.append("by other studies' probes")
        return f"{rates} and corrected {listed(grounds)}"

    @cached_property
    def others(self) -> tuple[Study, ...]:
        """Other studies whose probes correct these numbers, the most similar first."""
        if self.search.past is None:
            return ()
        from tuner.planner.similar import studies_alike

        return tuple(studies_alike(self._known.study, self.search.past, TOLD))

    def seconds(self, settings: Settings) -> Quantity:
        """Expected seconds of an optimizer step of legal configurations."""
        index, belief = self._index[settings], self.search.belief
        mean, error = float(belief.log_seconds[index]), float(belief.error[index])
        return Quantity(
            value=exp(mean),
            low=exp(mean - QUANTILE * error),
            high=exp(mean + QUANTILE * error),
            provenance=Provenance.PREDICTED,
        )

    def is_expected_to_fit(self, settings: Settings) -> bool:
        """Tells whether legal settings are, as far as probes and predictions say; and run."""
        finding = self._known.findings.get(settings)
        if finding is not None:
            return self._known.fits(finding)
        if not self._may_fit[self._index[settings]]:
            return False
        return not (settings in self._known.infeasible or _is_ruled_out(self._known, settings))

    @cached_property
    def expected(self) -> tuple[Settings, ...]:
        """All legal settings that are expected to fit and run, in the space's order."""
        return tuple(self.search.prior.settings[place] for place in self._fitting)

    def runs(self, settings: Settings) -> float:
        """Probability that legal settings run, if their memory suffices."""
        belief, place = self.search.belief, self._index[settings]
        return float(belief.succeeds[place] / max(belief.fits[place], 1e-12))

    def effects(self, best: Settings, knob: str, values: Sequence[Any]) -> Iterator[Effect]:
        """Expects what other values of a knob do to the step time, over all that is expected to
        fit.

        Only the knob itself changes; accumulation makes up the global batch. Values of which no
        pair is expected to fit are left out.
        """
        for value in values:
            pairs = list(self._pairs(knob, getattr(best, knob), value))
            if pairs:
                change = self._mean_change(pairs)
                yield Effect(knob=knob, value=value, change=change, pairs=len(pairs))

    def _pairs(self, knob: str, mine: Any, other: Any) -> Iterator[tuple[int, int]]:
        """Places in the space of settings that differ in ``knob`` alone, and may both fit."""
        rest = OTHERS_CHOSEN[knob]
        having = [(place, one) for place, one in self._rows if getattr(one, knob) in (mine, other)]
        places = {rest(one): place for place, one in having if getattr(one, knob) == mine}
        for place, one in having:
            if getattr(one, knob) == other and (first := places.get(rest(one))) is not None:
                yield first, place

    def _mean_change(self, pairs: Sequence[tuple[int, int]]) -> StepTimeChange:
        """The mean over pairs; all are taken to be wrong together.

        Two settings are wrong together as far as they are alike: the kernel is taken for the
        correlation of their errors.
        """
        import numpy as np

        belief, points = self.search.belief, self.search.prior.features
        one, other = np.array(pairs, dtype=np.intp).T
        alike = np.exp(-0.5 * ((points[one] - points[other]) ** 2).sum(1))
        a, b = belief.error[one], belief.error[other]
        error = np.sqrt(np.maximum(a**2 + b**2 - 2 * alike * a * b, 0.0))
        middle = float((belief.log_seconds[other] - belief.log_seconds[one]).mean())
        half = QUANTILE * float(error.mean())
        return StepTimeChange(ratio=exp(middle), low=exp(middle - half), high=exp(middle + half))

    @cached_property
    def _index(self) -> dict[Settings, int]:
        return {settings: place for place, settings in enumerate(self.search.prior.settings)}

    @cached_property
    def _may_fit(self) -> list[bool]:
        return [fits >= EXPECTED for fits in self.search.belief.fits.tolist()]

    @cached_property
    def _rows(self) -> list[tuple[int, Settings]]:
        """Lists what is expected to fit, with its place in the space."""
        return list(zip(self._fitting, self.expected, strict=True))

    @cached_property
    def _fitting(self) -> list[int]:
        return [place for s, place in self._index.items() if self.is_expected_to_fit(s)]

    @cached_property
    def _rates_are_known(self) -> bool:
        """Says if the cost model knows the cluster's rates, and did not have to assume any."""
        study, settings = self._known.study, self._known.space.legal[0]
        question = study.question
        found = predict(
            question.workload,
            question.cluster,
            question.framework,
            settings,
            limit_bytes=self._known.limit_bytes,
            calibration=study.calibration,
        )
        return found.step_time_s.value is not None


def _is_ruled_out(known: Knowledge, settings: Settings) -> bool:
    """Tells whether they failed, ran out of time, or their class is refused."""
    slow, classes = known.slow.get(settings), known.closed_classes
    ran_out = slow is not None and slow.step_time.value is None
    return settings in known.closed or ran_out or settings.settings_class in classes
