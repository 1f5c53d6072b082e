"""Other ways to search the same tables: rules of thumb, and Optuna's samplers.

Rivals see a workload's settings and what their own probes told. Nobody is made to probe settings
twice, or settings that are in no row: that would cost him probes. Optuna's samplers do not know
of tables, so what they suggest is taken to the nearest candidate that is open.
"""

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, log2

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial
from replay import Case, Replay

from tuner.core.configuration import Settings, Sharding
from tuner.cost.memory.tensors import counts
from tuner.search.engine import quiet
from tuner.search.kernel import Array
from tuner.search.trials import Result, Trial

Rival = Callable[[Replay, int], None]
"""A search: it probes until no probe is left; the second argument is its seed."""


def at_random(replay: Replay, seed: int) -> None:
    """All candidates in a random order."""
    _in_order(replay, seed, lambda settings: 0)


def legal_at_random(replay: Replay, seed: int) -> None:
    """Only what the product's rules allow, in a random order."""
    replay.open &= replay.case.legal
    at_random(replay, seed)


def grid(replay: Replay, seed: int) -> None:
    """Nested loops, each from its smallest value."""
    _in_order(replay, seed, grid_order)


def grid_order(settings: Settings) -> tuple[object, ...]:
    """ZeRO's stage outside, then tensor and pipeline parallelism, then the micro-batch."""
    return settings.sharding, settings.tp_size, settings.pp_size, settings.micro_batch_size


def largest_micro_batch(replay: Replay, seed: int) -> None:
    """The largest micro-batch first; a random order among the same."""
    _in_order(replay, seed, lambda settings: -settings.micro_batch_size)


def least_parallel(replay: Replay, seed: int) -> None:
    """The least model parallelism first, then the largest micro-batch; then at random."""
    _in_order(replay, seed, lambda s: (s.tp_size * s.pp_size, -s.micro_batch_size))


def _in_order(replay: Replay, seed: int, order: Callable[[Settings], object]) -> None:
    """Probe candidates by ``order``, those of the same place at random."""
    indices = [int(i) for i in np.flatnonzero(replay.open)]
    random.Random(seed).shuffle(indices)
    settings = replay.case.prior.settings
    for index in sorted(indices, key=lambda i: order(settings[i])):  # type: ignore[arg-type]
        if not replay.going:
            return
        replay.probe(index)


def tpe(replay: Replay, seed: int) -> None:
    """Optuna's TPE as it comes: random until ten have run, failed ones ignored."""
    _optuna(replay, TPESampler(seed=seed, n_startup_trials=0), Way(startup=AS_IT_COMES), seed)


def gp(replay: Replay, seed: int) -> None:
    """Optuna's GP as it comes: the same."""
    _optuna(replay, _gp(seed), Way(startup=AS_IT_COMES), seed)


def helped_tpe(replay: Replay, seed: int) -> None:
    """Optuna's TPE after two that were random, told that failed settings are slow."""
    _optuna(replay, TPESampler(seed=seed, n_startup_trials=0), HELPED, seed)


def helped_gp(replay: Replay, seed: int) -> None:
    """Optuna's GP, likewise."""
    _optuna(replay, _gp(seed), HELPED, seed)


def taught_tpe(others: Sequence[Case]) -> Rival:
    """Optuna's TPE, told of other workloads' rows first, and that failed settings are slow.

    Their seconds are made comparable as seconds of one GPU per token and parameter.
    """
    told = [_trial(c, c.trial(i), failed_as_slow=True) for c in others for i in range(len(c.runs))]

    def search(replay: Replay, seed: int) -> None:
        sampler = TPESampler(seed=seed, n_startup_trials=0)
        _optuna(replay, sampler, Way(startup=0, failed_as_slow=True, before=told), seed)

    return search


def _gp(seed: int) -> BaseSampler:
    with quiet():
        return GPSampler(seed=seed, n_startup_trials=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a sampler of Optuna's is used."""

    startup: int
    """Trials that must have been told before it is asked; until then candidates are random."""
    failed_as_slow: bool = False
    """Whether it is told a time for what failed; Optuna's samplers ignore failures."""
    before: Sequence[FrozenTrial] = ()  # what it is told first


AS_IT_COMES = 10
"""Random trials that Optuna's samplers start with."""
HELPED = Way(startup=2, failed_as_slow=True)
AXES = ("tp_size", "pp_size", "micro_batch_size")
"""Sizes; they are searched by their logarithm."""
SPACE: Mapping[str, BaseDistribution] = {
    **{axis: FloatDistribution(0, 9) for axis in AXES},
    "sharding": CategoricalDistribution(("ddp", "zero1")),
}
"""Sizes up to 512. The rest of the settings follows from these."""
SLOW = 3.0
"""Logarithm of 20: how much slower than at the device's peak a failed run is told to be."""


def _optuna(replay: Replay, sampler: BaseSampler, way: Way, seed: int) -> None:
    places = np.array([_place(settings) for settings in replay.case.prior.settings])
    start = np.random.default_rng(seed)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(sampler=sampler)
        study.add_trials(list(way.before))
        while replay.going:
            if len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])) < way.startup:
                index = int(start.choice(np.flatnonzero(replay.open)))
            else:
                index = _asked(study, places, replay)
            trial = replay.probe(index)
            study.add_trial(_trial(replay.case, trial, failed_as_slow=way.failed_as_slow))


def _asked(study: optuna.Study, places: Array, replay: Replay) -> int:
    """The open candidate that is nearest to what is suggested, which is then forgotten."""
    asked = study.ask(dict(SPACE))
    study.tell(asked, state=TrialState.FAIL)
    wanted = [*(asked.params[axis] for axis in AXES), float(asked.params["sharding"] == "zero1")]
    far = np.abs(places - wanted).sum(1)
    return int(np.argmin(np.where(replay.open, far, np.inf)))


def _place(settings: Settings) -> tuple[float, ...]:
    """A candidate in Optuna's space; a choice is as far as a doubling."""
    sizes = [log2(getattr(settings, axis)) for axis in AXES]
    return (*sizes, float(settings.sharding is Sharding.ZERO1))


def _trial(case: Case, trial: Trial, *, failed_as_slow: bool) -> FrozenTrial:
    *sizes, zero1 = _place(case.prior.settings[trial.index])
    told = trial.result is Result.RAN or failed_as_slow
    return create_trial(
        state=TrialState.COMPLETE if told else TrialState.FAIL,
        value=_comparable(case, trial) if told else None,
        params={**dict(zip(AXES, sizes, strict=True)), "sharding": "zero1" if zero1 else "ddp"},
        distributions=dict(SPACE),
    )


def _comparable(case: Case, trial: Trial) -> float:
    """Logarithm of seconds over those of the same work at 10^15 FLOPs per second and GPU."""
    if trial.seconds is None:
        return SLOW
    workload = case.runs[trial.index].workload
    flops = 6 * counts(workload.model).parameters * workload.tokens_per_step
    return log(trial.seconds) - log(flops / 1e15 / case.runs[trial.index].gpus)
