"""The product's search on a replay, and what is left of it when parts are taken away."""

from collections.abc import Callable

import numpy as np
from replay import Replay

from tuner.search.belief import Belief, believe
from tuner.search.engine import ask
from tuner.search.gain import HOPEFUL, log_expected_speed
from tuner.search.kernel import Array
from tuner.search.trials import Past

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


def _scores(belief: Belief) -> Array:
    """Expected speed; what is hardly expected to succeed comes last, as in the product."""
    scores = log_expected_speed(belief)
    return np.where(belief.succeeds < HOPEFUL, scores - 1e6, scores)


def _best(scores: Array, allowed: Array) -> int:
    return int(np.argmax(np.where(allowed, scores, -np.inf)))
