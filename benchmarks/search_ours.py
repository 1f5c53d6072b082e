"""The product's search on a replay, and what is left of it when parts are taken away."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log

import numpy as np
from replay import Replay

from tuner.search.belief import Belief, believe
from tuner.search.engine import ask
from tuner.search.gain import HOPEFUL, log_expected_speed
from tuner.search.kernel import Array
from tuner.search.trials import Past, Prior, Result, Trial

RIDGE = 1.0
"""Weight of a ridge regression's penalty, of features in length scales."""
Searching = Callable[[Replay, Past | None], None]
"""A search of ours: it probes until no probe is left."""


def product(replay: Replay, past: Past | None) -> None:
    """What the planner does: :func:`tuner.search.engine.ask`, of what is legal."""
    while replay.going and (allowed := replay.open & replay.case.legal).any():
        replay.probe(ask(replay.case.prior, replay.trials, allowed, past).index)


def prior_only(replay: Replay, past: Past | None) -> None:
    """Candidates in the order of their expected speed, before any trial and whatever happens."""
    scores = _scores(believe(replay.case.prior, [], past))
    while replay.going and (allowed := replay.open & replay.case.legal).any():
        replay.probe(_best(scores, allowed))


def ridge(replay: Replay, past: Past | None) -> None:
    """The largest expected speed, corrected by a ridge regression of what predictions are off by.

    The probability of success is the product's own. Nothing is known of uncertainty.
    """
    prior = replay.case.prior
    while replay.going and (allowed := replay.open & replay.case.legal).any():
        belief = believe(prior, replay.trials, past)
        seconds = prior.log_seconds + ridge_excess(prior, replay.trials, past)
        replay.probe(_best(_scores(replace(belief, log_seconds=seconds)), allowed))


def ridge_excess(prior: Prior, trials: Sequence[Trial], past: Past | None) -> Array:
    """Logarithm of seconds over predicted, shape ``(n,)``; an earlier trial counts a tenth."""
    ran = [trial for trial in trials if trial.result is Result.RAN and trial.seconds]
    rows = np.array([trial.index for trial in ran], dtype=int)
    excess = np.array([log(t.seconds or 1.0) for t in ran]) - prior.log_seconds[rows]
    weights, features = np.ones(len(ran)), prior.features[rows]
    if past is not None:
        timed = ~np.isnan(past.log_excess)
        excess = np.concatenate([excess, np.clip(past.log_excess[timed], -1.5, 1.0)])
        features = np.concatenate([features, past.features[timed]])
        weights = np.concatenate([weights, np.full(timed.sum(), 0.1)])
    if not len(excess):
        return np.zeros(len(prior.features))
    mean, center = np.average(excess, weights=weights), np.average(features, 0, weights)
    around = features - center
    penalty = RIDGE * np.eye(features.shape[1])
    slopes = np.linalg.solve(
        around.T @ (around * weights[:, None]) + penalty, around.T @ (weights * (excess - mean))
    )
    return np.asarray(mean + (prior.features - center) @ slopes)


def _scores(belief: Belief) -> Array:
    """Expected speed; what is hardly expected to succeed comes last, as in the product."""
    scores = log_expected_speed(belief)
    return np.where(belief.succeeds < HOPEFUL, scores - 1e6, scores)


def _best(scores: Array, allowed: Array) -> int:
    return int(np.argmax(np.where(allowed, scores, -np.inf)))
