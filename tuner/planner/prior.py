"""The prior of a search: beliefs about each legal configuration before any probe."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log, log2, nan
from typing import Any

import numpy as np

from tuner.core.cluster import Cluster, Device, Link
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import QUANTILE, Provenance, Quantity
from tuner.core.study import Question
from tuner.cost.calibration import Calibration
from tuner.cost.memory.shards import axis_sizes
from tuner.cost.memory.step import memory_bound
from tuner.cost.prediction import Profile, predict
from tuner.cost.time.step import step_time
from tuner.planner.forecast import Asked
from tuner.planner.ranking import complexity
from tuner.search.trials import Prior, settings_features, workload_features
from tuner.space import enumerate_space

# Standard deviation of the logarithm of a need: a factor of seven.
UNSURE = 2.0
# Of a device's memory that one sequence is taken to need, for want of anything better.
SHARE = 0.25


# Of a model that is not named, rules give the order in which configurations are tried, and no
# figures: what is answered of it is from probes alone.


# What each way of checkpointing keeps, and how long its step is, beside those of none.
BY_RULE = {
    Checkpointing.NONE: (1.0, 1.0),
    Checkpointing.SELECTIVE: (0.75, 1.1),
    Checkpointing.EVERY_2: (0.75, 1.15),
    Checkpointing.FULL: (0.5, 1.3),
    Checkpointing.OFFLOAD: (0.45, 1.35),
}


def need_by_rule(question: Question, settings: Settings) -> tuple[float, float]:
    share = SHARE * settings.micro_batch_size**0.5
    share *= BY_RULE[settings.activation_checkpointing][0]
    share *= 0.5 if settings.sharding in FSDP else 1.0
    share /= axis_sizes(settings, question.cluster).tp ** 0.5
    return log(share * question.cluster.gpu.memory_bytes), UNSURE


def step_by_rule(settings: Settings) -> Quantity:
    """An optimizer step's length beside those of other settings; it has no unit."""
    count = settings.gradient_accumulation_steps
    length = 1 + 0.1 * log2(count)
    length *= BY_RULE[settings.activation_checkpointing][1]
    length *= 1.1 if settings.sharding in (Sharding.FULL_SHARD, Sharding.HYBRID_SHARD) else 1.0
    length *= 1.05 if settings.sync_each_batch and count > 1 else 1.0
    length *= 0.98 if settings.defer_all_reduce else 1.0
    length *= 1 + 0.1 * log2(settings.model_parallel_size)
    length *= 2.0 if settings.cpu_offload else 1.0
    return Quantity(value=length, low=length / 2, high=length * 2, provenance=Provenance.PREDICTED)


# Probability that settings which fit run: published sweeps have failures of other kinds too.
RUNS = 0.95
# Standard deviation of the logarithm of a need that the cost model does not cover.
CANDIDATES_UNSURE = 0.1

# What fits is the search's own question: a limit that nothing exceeds.
ANY_BYTES = 2**62

# Of a need that was dry-run: allocators free blocks at other moments from run to run.
LEAST_ERROR = 0.001

# Rates of a GPU of which some are not known, such as an A100's, and of a core of a CPU that was not
# calibrated: they only order candidates.
RATES = ("dense_bf16_flops_per_s", "fp32_flops_per_s", "memory_bytes_per_s")
ASSUMED = {Device.CUDA: (3e14, 2e13, 2e12), Device.CPU: (5e10, 5e10, 1e10)}
# A link that is not known: bytes/s and seconds.
ASSUMED_LINK = {
    Device.CUDA: Link(bytes_per_s=1e11, latency_s=5e-6),
    Device.CPU: Link(bytes_per_s=2e9, latency_s=5e-5),
}


def prior_of(question: Question, calibration: Calibration | None, limit_bytes: int) -> Prior:
    """All legal settings, in the space's order.

    Where a speed is unknown for want of a rate, rates are assumed: what all candidates have in
    common drops out of their order, and no such figure is shown to anybody.
    """
    prior = replace(_prior(Asked(question, calibration)), log_limit=log(limit_bytes))
    if question.workload.has_arithmetic:
        return prior
    # by rules a need is a share of a device, and so of what of it may be used
    return replace(
        prior, log_need=prior.log_need + log(limit_bytes / question.cluster.gpu.memory_bytes)
    )


# A study is planned again after every probe, and its arithmetic is the same.
@lru_cache(maxsize=8)
def _prior(key: Asked) -> Prior:
    return prior_among(key, enumerate_space(key.question).legal)


def prior_among(asked: Asked, candidates: Sequence[Settings]) -> Prior:
    """The prior of some configurations of a question; its limit is left to the caller."""
    question = asked.question
    needs, steps = zip(*(predicted(asked, settings) for settings in candidates), strict=True)
    seconds = [[log(step.value) if step.value else nan for step in each] for each in steps]
    return Prior(
        settings=candidates,
        features=settings_features(candidates, question.workload, question.cluster),
        experts=np.array(seconds).T,
        log_need=np.array([mean for mean, _ in needs]),
        need_error=np.array([error for _, error in needs]),
        runs=np.full(len(candidates), RUNS),
        simplicity=np.array(
            [-complexity(question, settings) for settings in candidates], dtype=float
        ),
        log_limit=0.0,
        workload=workload_features(question.workload, question.cluster),
    )


def with_dry_runs(prior: Prior, asked: Asked, profiles: Mapping[Settings, Profile]) -> Prior:
    """The prior of a question with what dry runs of some layouts say that these need."""
    question = asked.question
    if not profiles or not question.workload.has_arithmetic:
        return prior
    log_need, need_error = prior.log_need.copy(), prior.need_error.copy()
    for place, settings in enumerate(prior.settings):
        if (profile := profiles.get(settings.layout)) is not None:
            found = predict(
                *question.job,
                settings,
                limit_bytes=ANY_BYTES,
                profile=profile,
                calibration=asked.calibration,
            )
            need, error = _need(question, settings, found)
            log_need[place], need_error[place] = need, max(error, LEAST_ERROR)
    return replace(prior, log_need=log_need, need_error=need_error)


# A study is planned again after every probe: what is predicted of it and of its past stays the
# same, though both are read anew.
@lru_cache(maxsize=8192)
def predicted(asked: Asked, settings: Settings) -> tuple[tuple[float, float], tuple[Quantity, ...]]:
    """Logarithm of the need with its error, and each expert's seconds of a step, at assumed rates
    if need be."""
    question, experts = asked.question, asked.experts
    if not question.workload.has_arithmetic:
        return need_by_rule(question, settings), (step_by_rule(settings),) * len(experts)
    found = predict(
        *question.job,
        settings,
        limit_bytes=ANY_BYTES,
        calibration=asked.calibration,
        costs=experts[0],
    )
    where, told = question.cluster, [found.step_time_s]
    if found.step_time_s.value is None:
        where, told = _assumed(question.cluster), []
    name = question.framework.name
    others = (
        step_time(question.workload, settings, where, name, costs)[0]
        for costs in experts[len(told) :]
    )
    return _need(question, settings, found), (*told, *others)


def _need(question: Question, settings: Settings, found: Evaluation) -> tuple[float, float]:
    need = found.needed_bytes
    if need.value and need.low and need.high:
        return log(need.value), log(need.high / need.low) / (2 * QUANTILE)
    bound = memory_bound(question.workload, settings, question.cluster)
    return log(bound.total_bytes), CANDIDATES_UNSURE


def _assumed(cluster: Cluster) -> Cluster:
    gpu, device = cluster.gpu, cluster.gpu.device
    rates = zip(RATES, ASSUMED[device], strict=True)
    missing: dict[str, Any] = {name: rate for name, rate in rates if getattr(gpu, name) is None}
    links: dict[str, Any] = {
        name: ASSUMED_LINK[device]
        for name in ("intra_node", "inter_node")
        if getattr(cluster, name).bytes_per_s is None
    }
    gpu = replace(gpu, device=Device.CUDA, processor="", cores=0, **missing)
    return replace(cluster, gpu=gpu, **links)
