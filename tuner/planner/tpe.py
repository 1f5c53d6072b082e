"""Optuna's TPE as a function: a history in, one suggestion out.

Our database is the only truth. Optuna's study lives in memory for one ask and is replayed
from the history; so nothing needs to be kept in step, and another planner could take over.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one probe has taught."""

    knobs: Mapping[str, Any]
    """Value of each knob that is searched."""
    seconds: float
    """Time of an optimizer step, or a guess for what is too large or too slow to know."""
    overshoot: float
    """Memory beyond the limit, in limits; above 0 it does not fit."""


def suggest(
    knobs: Mapping[str, Sequence[Any]], history: Sequence[Trial], *, seed: int
) -> dict[str, Any]:
    """A value of each knob that TPE expects to be faster and to fit.

    Args:
        knobs: the values of each knob, at least two, sizes ascending.
        history: what is known, oldest first; the values in it are among the knobs'.
        seed: of the sampler.
    """
    import optuna

    distributions = {knob: _distribution(values) for knob, values in knobs.items()}
    with _quiet():
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
        )
        for trial in history:
            params = {knob: _encode(knobs[knob], value) for knob, value in trial.knobs.items()}
            study.add_trial(_frozen(trial, params, distributions))
        asked = study.ask(distributions).params
    return {knob: knobs[knob][_decoded(knobs[knob], asked[knob])] for knob in knobs}


def is_size(value: object) -> bool:
    """Whether a knob's value is a size, which has an order, and not a choice."""
    return isinstance(value, int) and not isinstance(value, bool)


def _frozen(
    trial: Trial, params: dict[str, Any], distributions: "dict[str, Any]"
) -> "optuna.trial.FrozenTrial":
    """A finished trial. What does not fit is complete, with a violated constraint.

    A failed trial would be ignored by the sampler, and its settings suggested again.
    """
    import optuna

    return optuna.trial.create_trial(
        params=params,
        distributions=distributions,
        value=trial.seconds,
        constraints={"memory": trial.overshoot},
    )


def _distribution(values: Sequence[Any]) -> Any:
    """Sizes go by their place in the list: they are divisors, in no regular steps."""
    import optuna

    if is_size(values[0]):
        return optuna.distributions.IntDistribution(0, len(values) - 1)
    return optuna.distributions.CategoricalDistribution([_plain(value) for value in values])


def _encode(values: Sequence[Any], value: Any) -> Any:
    return values.index(value) if is_size(value) else _plain(value)


def _decoded(values: Sequence[Any], param: Any) -> int:
    """The place in ``values`` that a parameter stands for."""
    return int(param) if is_size(values[0]) else [_plain(value) for value in values].index(param)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool) else str(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's log lines and warnings of new features are not for our users."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
