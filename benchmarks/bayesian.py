"""Constrained Bayesian optimisation with the cost model as prior mean, by BoTorch's own GP.

As OPPA has it (https://openreview.net/forum?id=YPf5hOFgyz), whose code is not published: a Gaussian
process of what the predicted logarithm of the seconds is off by, a second one of what the predicted
probability to run is off by, and the largest expected improvement times that probability. BoTorch
0.18 with its defaults: ``SingleTaskGP``, hyperparameters fitted anew after each probe.
"""

import warnings
from math import log

import numpy as np
from replay import Replay

from tuner.search.belief import Belief, normal_cdf
from tuner.search.gain import best_log_seconds, log_expected_gain, log_expected_speed
from tuner.search.kernel import Array
from tuner.search.trials import Result


def cost_model_gp(replay: Replay, seed: int) -> None:
    """Before a probe ran, the largest predicted speed; what is illegal is left out."""
    prior = replay.case.prior
    spread = np.ptp(prior.features, axis=0)
    points = (prior.features - prior.features.min(0)) / np.where(spread, spread, 1.0)
    seconds = prior.experts.mean(0)
    runs = prior.runs * normal_cdf((prior.log_limit - prior.log_need) / prior.need_error)
    while replay.going and (allowed := replay.open & replay.case.legal).any():
        ran = [trial for trial in replay.trials if trial.result is Result.RAN]
        rows = [trial.index for trial in ran]
        off = np.array([log(t.seconds or 1.0) for t in ran]) - seconds[rows]
        mean, error = gaussian_process(points, rows, off, seed)
        tried = [trial.index for trial in replay.trials]
        ended = np.array([float(trial.result is Result.RAN) for trial in replay.trials])
        more, _ = gaussian_process(points, tried, ended - runs[tried], seed)
        belief = Belief(
            weights=np.ones(1), means=(seconds + mean)[None], errors=error[None],
            log_need=prior.log_need, need_error=prior.need_error,
            fits=runs, succeeds=np.clip(runs + more, 0.01, 1.0),
        )  # fmt: skip
        best = best_log_seconds(prior, replay.trials)
        score = log_expected_speed(belief) if best is None else log_expected_gain(belief, best)
        replay.probe(int(np.argmax(np.where(allowed, score, -np.inf))))


def gaussian_process(
    points: Array, rows: list[int], values: Array, seed: int
) -> tuple[Array, Array]:
    """Mean and standard deviation at all points; zero and one before any value."""
    if not rows:
        return np.zeros(len(points)), np.ones(len(points))
    import torch
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(seed)
    every = torch.tensor(points, dtype=torch.double)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SingleTaskGP(every[rows], torch.tensor(values, dtype=torch.double)[:, None])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        with torch.no_grad():
            found = model.posterior(every)
            deviation = found.variance[:, 0].sqrt().numpy()
    return found.mean[:, 0].numpy(), deviation
