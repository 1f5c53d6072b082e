"""Knobs as parameters of an Optuna study, and a sampler of ours that knows the cost model.

The sampler serves any study that minimises seconds, and reads Optuna's own trials: a value is the
seconds of a step, the constraint :data:`MEMORY` the bytes over the limit; a pruned trial was too
large (its constraint is above zero) or too slow (its last report says how slow).
``examples/optuna_study.py`` is such a study.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tuner.core.configuration import ACCUMULATION, KNOBS, Settings
from tuner.search.belief import believe, believed_trials
from tuner.search.gain import Proposal, chosen
from tuner.search.kernel import Mask
from tuner.search.trials import Past, Prior, Result, Trial
from tuner.text import kept

# Name of the constraint: bytes that one device needs, less those that it may need.
MEMORY = "memory_over_limit_bytes"
# Name of the user attribute that says how a replayed trial ended (:class:`Result`).
RESULT = "result"
# Names of the user attributes that are fields of a replayed trial.
ATTRIBUTES = ("seconds", "error", "need_bytes", "indirect", "is_wrong", "is_believed")

# Accumulation follows from the others, so it comes last: it is never a question.
_ORDER = (*(knob for knob in KNOBS if knob != ACCUMULATION), ACCUMULATION)


class KnobParameters:
    """The knobs of legal configurations as categorical parameters, one for each that is active.

    Define-by-run: a knob is suggested where the configurations that agree in all earlier choices
    differ in it. Inactive knobs do not, and neither does accumulation.

    Args:
        legal: configurations, each once.
    """

    def __init__(self, legal: Sequence[Settings]) -> None:
        self.legal = legal
        rows = [configuration.all_values() for configuration in legal]
        values = {knob: sorted({row[knob] for row in rows}) for knob in _ORDER}
        self.choices: Mapping[str, tuple[Any, ...]] = {
            knob: tuple(found) for knob, found in values.items() if len(found) > 1
        }
        """The values of each knob that has several."""
        self.distributions: dict[str, BaseDistribution] = {
            knob: CategoricalDistribution(found) for knob, found in self.choices.items()
        }
        """Those of Optuna, by knob."""
        self._places = {
            knob: {value: place for place, value in enumerate(choices)}
            for knob, choices in self.choices.items()
        }
        codes = [[self._places[knob][row[knob]] for knob in self.choices] for row in rows]
        self._codes = np.array(codes, dtype=np.intp).reshape(len(rows), len(self.choices))
        self._params: dict[int, dict[str, Any]] = {}
        self._index: dict[frozenset[tuple[str, Any]], int | None] = {}

    def suggest(self, trial: optuna.Trial) -> int | None:
        """The index of the configuration that a trial is for; ``None`` where it is illegal."""
        return self._walk(trial.suggest_categorical)

    def params(self, index: int) -> dict[str, Any]:
        """The parameters of a configuration: its active knobs."""
        # Each ask replays all trials, most of which were replayed before.
        if index not in self._params:
            own, active = self.legal[index].all_values(), {}

            def choose(knob: str, choices: Sequence[Any]) -> Any:
                active[knob] = own[knob]
                return own[knob]

            self._walk(choose)
            self._params[index] = active
        return self._params[index]

    def index_of(self, params: Mapping[str, Any]) -> int | None:
        """The reverse; ``None`` where a knob is missing or they are illegal together."""
        key = frozenset((knob, params[knob]) for knob in self.choices if knob in params)
        if key not in self._index:
            try:
                self._index[key] = self._walk(lambda knob, choices: params[knob])
            except KeyError:
                self._index[key] = None
        return self._index[key]

    # By elimination: the legal configurations decide which knobs are active, and no rule is kept
    # twice.
    def _walk(self, choose: Callable[[str, Sequence[Any]], Any]) -> int | None:
        rows = np.arange(len(self.legal))
        for column, (knob, choices) in enumerate(self.choices.items()):
            left = self._codes[rows, column]
            if (left == left[0]).all():
                continue
            rows = rows[left == self._places[knob].get(choose(knob, choices), -1)]
            if not len(rows):
                return None
        return int(rows[0])


# A study is planned again after every probe, and its space stays the same.
parameters_of = kept(maxsize=8)(KnobParameters)


class CostModelSampler(BaseSampler):
    """Samples the configuration with the largest expected gain; for studies that minimise seconds.

    Parameters that are no knobs are sampled at random.

    Args:
        prior: the candidates, with what the cost model predicts of each.
        allowed: the candidates that may be sampled, shape ``(n,)``, booleans; by default those that
            the study has not tried.
        past: trials of earlier searches.
        seed: of parameters that are no knobs.
    """

    def __init__(
        self,
        prior: Prior,
        allowed: Mask | None = None,
        past: Past | None = None,
        seed: int | None = None,
    ) -> None:
        self.parameters = parameters_of(prior.settings)  # the knobs as parameters
        self.proposal: Proposal | None = None  # the latest proposal
        self._prior, self._allowed, self._past = prior, allowed, past
        self._others = RandomSampler(seed)

    @property
    def limit_bytes(self) -> float:
        """Bytes that one device may need; what exceeds them is told as :data:`MEMORY`."""
        return self._prior.limit_bytes

    def suggest(self, trial: optuna.Trial) -> Settings:
        """The configuration that a trial is for; its active knobs become parameters. Raises
        TrialPruned: values that were enqueued, or fixed, are illegal together."""
        index = self.parameters.suggest(trial)
        if index is None:
            raise optuna.TrialPruned("these values are illegal together")
        return self.parameters.legal[index]

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self.parameters.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The active knobs of the proposal, from the study's finished and running trials."""
        _check_direction(study)
        sampled = {
            name: self._others.sample_independent(study, trial, name, distribution)
            for name, distribution in search_space.items()
            if name not in self.parameters.choices
        }
        if len(sampled) < len(search_space):
            self.proposal = self._propose(study, trial.number)
            active = self.parameters.params(self.proposal.index)
            sampled |= {knob: value for knob, value in active.items() if knob in search_space}
        return sampled

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random value: it is of no knob, or of one that the proposal does not ask for."""
        _check_direction(study)
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        self._others.reseed_rng()

    def _propose(self, study: optuna.Study, number: int) -> Proposal:
        trials, running = [], []
        for one in study.get_trials(deepcopy=False):
            if one.number == number or (index := self.parameters.index_of(one.params)) is None:
                continue
            if one.state.is_finished():
                trials.append(trial_of(one, index, self.limit_bytes))
            else:
                running.append(index)
        belief = believe(self._prior, trials, self._past)
        if running:
            # The next one is chosen as if each had taken the seconds that are believed.
            trials += believed_trials(belief, running)
            belief = believe(self._prior, trials, self._past)
        allowed = self._allowed
        if allowed is None:
            allowed = np.ones(len(self._prior.settings), dtype=bool)
            allowed[[trial.index for trial in trials]] = False
            if not allowed.any():  # a study may go on when all is tried
                allowed = ~allowed
        return chosen(self._prior, belief, trials, allowed)


def _check_direction(study: optuna.Study) -> None:
    if study.directions != [StudyDirection.MINIMIZE]:
        raise ValueError("CostModelSampler is for studies with one objective, seconds to minimise")


def trial_of(frozen: FrozenTrial, index: int, limit_bytes: float) -> Trial:
    """A finished trial of Optuna's as one of ours."""
    if RESULT in frozen.user_attrs:
        own = {name: v for name, v in frozen.user_attrs.items() if name in ATTRIBUTES}
        return Trial(index=index, result=Result(frozen.user_attrs[RESULT]), **own)
    over = frozen.constraints.get(MEMORY)
    need = None if over is None else limit_bytes + over
    if frozen.state is TrialState.COMPLETE and _is_time(frozen.value):
        return Trial(index=index, result=Result.RAN, seconds=frozen.value, need_bytes=need)
    if frozen.state is TrialState.PRUNED and over is not None and over > 0:
        return Trial(index=index, result=Result.TOO_LARGE, need_bytes=need)
    if frozen.state is TrialState.PRUNED and frozen.last_step is not None:
        reported = frozen.intermediate_values[frozen.last_step]
        if _is_time(reported):
            return Trial(index=index, result=Result.SLOW, seconds=reported, need_bytes=need)
    return Trial(index=index, result=Result.FAILED)


def _is_time(value: float | None) -> bool:
    return value is not None and isfinite(value) and value > 0
