"""Expects the step times of configurations that were not probed, and how sure that is."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import exp
from typing import Any

import numpy as np

from tuner.core.answer import Grounds
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import QUANTILE, Change, Quantity, predicted
from tuner.core.study import Study
from tuner.cost.prediction import predict
from tuner.planner.knowledge import Knowledge
from tuner.planner.search import Search
from tuner.planner.similar import studies_alike
from tuner.search.kernel import Mask, Rows
from tuner.space import Space
from tuner.text import kept

# Probability from which a configuration is expected to fit.
EXPECTED = 0.5
# Similarity of workloads from which another study is said to correct a number; what less similar
# ones say has faded.
TOLD = 0.1


# A page asks for all of them after every probe, in the same space.
@kept(maxsize=512)
def _pairs(space: Space, knob: str, one: Any, other: Any) -> Rows:
    """Places of configurations with a value of a knob, each beside its like with another value, as
    :meth:`Space.differing_in` has them; shape ``(n, 2)``."""
    groups = space.differing_in(knob).values()
    found = [(each[one], each[other]) for each in groups if one in each and other in each]
    return np.array(found, dtype=np.intp).reshape(-1, 2)


class Expectation:
    """The belief of a study's search, looked up by configuration."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self.search = Search(known)
        self._index = known.space.places

    @cached_property
    def grounds(self) -> Grounds:
        known, question = self._known, self._known.study.question
        by_rules, is_assumed = not question.workload.has_arithmetic, False
        if not by_rules:
            found = predict(
                *question.job,
                known.space.legal[0],
                limit_bytes=known.limit_bytes,
                calibration=known.study.calibration,
            )
            is_assumed = found.step_time_s.value is None
        return Grounds(
            by_rules_of_thumb=by_rules,
            at_assumed_rates=is_assumed,
            by_other_fidelities=any(trial.indirect for trial in self.search.trials),
            by_other_studies=bool(self.others),
        )

    @cached_property
    def others(self) -> tuple[Study, ...]:
        """Other studies whose probes correct these numbers, the most similar first."""
        if self.search.past is None:
            return ()
        return tuple(studies_alike(self._known.study, self.search.past, TOLD))

    def seconds(self, settings: Settings) -> Quantity:
        index, belief = self._index[settings], self.search.belief
        mean, error = float(belief.log_seconds[index]), float(belief.error[index])
        half = QUANTILE * error
        return predicted(exp(mean), exp(mean - half), exp(mean + half))

    def needed_bytes(self, settings: Settings, known: Evaluation) -> float:
        """The memory that must be free, from that of another configuration, by the ratio of what is
        predicted of the two: of near ones predictions are wrong by the same factor."""
        log_need = self.search.prior.log_need
        ratio = exp(log_need[self._index[settings]] - log_need[self._index[known.settings]])
        return known.expected_bytes * ratio

    def is_expected_to_fit(self, settings: Settings) -> bool:
        """True of a legal configuration that is expected to, as far as probes and predictions say;
        and to run."""
        return bool(self._expected[self._index[settings]])

    @cached_property
    def _expected(self) -> Mask:
        known, place_of = self._known, self._index
        expected = self.search.belief.fits >= EXPECTED
        no_time = (one for one, slow in known.slow.items() if slow.step_time_s.value is None)
        out = {*known.findings, *known.infeasible, *known.closed, *no_time}
        expected[[place_of[one] for one in out if one in place_of]] = False
        if known.closed_layouts:
            legal = self.search.prior.settings
            for n in np.flatnonzero(expected).tolist():
                expected[n] = legal[n].layout not in known.closed_layouts
        for settings, found in known.findings.items():
            if known.fits(found):
                expected[place_of[settings]] = True
        return expected

    def runs(self, settings: Settings) -> float:
        belief, place = self.search.belief, self._index[settings]
        return float(belief.succeeds[place] / max(belief.fits[place], 1e-12))

    def effects(
        self, best: Settings, knob: str, values: Sequence[Any]
    ) -> Iterator[tuple[Any, Settings | None, Change, int]]:
        """Expects what other values of a knob do to the step time of a configuration: each with the
        configuration that has it, the change, and of how many pairs that is the mean.

        Only the knob itself changes; accumulation makes up the global batch. Where that is not
        legal, it is the mean change over all pairs that are expected to fit, and the configuration
        is ``None``. Values of which no pair is expected to fit are left out.
        """
        mine, space = getattr(best, knob), self._known.space
        group = space.changed(best, knob, puts_off=self._known.study.question.framework.puts_off)
        for value in values:
            pairs = _pairs(space, knob, mine, value)
            pairs = pairs[self._expected[pairs].all(1)]
            if not len(pairs):
                continue
            other = None
            if (place := group.get(value)) is not None:
                if not self._expected[place] and self.search.belief.fits[place] >= EXPECTED:
                    continue  # it has room, and did not run: nothing is to be expected of it
                other = space.legal[place]
            change = self.change(best, other) if other else self._mean_change(pairs)
            yield value, other, change, 1 if other else len(pairs)

    def change(self, one: Settings, other: Settings) -> Change:
        """From the step time of one legal configuration to another's."""
        return self._mean_change(np.array([[self._index[one], self._index[other]]], dtype=np.intp))

    def _mean_change(self, pairs: Rows) -> Change:
        # Two configurations are wrong together as far as they are alike: the kernel is taken for
        # the correlation of their errors. All pairs are taken to be wrong together.
        belief, points = self.search.belief, self.search.prior.features
        one, other = pairs.T
        alike = np.exp(-0.5 * ((points[one] - points[other]) ** 2).sum(1))
        a, b = belief.error[one], belief.error[other]
        error = np.sqrt(np.maximum(a**2 + b**2 - 2 * alike * a * b, 0.0))
        middle = float((belief.log_seconds[other] - belief.log_seconds[one]).mean())
        half = QUANTILE * float(error.mean())
        return Change(ratio=exp(middle), low=exp(middle - half), high=exp(middle + half))
