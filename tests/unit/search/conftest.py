"""Small searches, made by hand."""

from math import log
from types import SimpleNamespace

import numpy as np
import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.workload import Workload
from tuner.model import load_model
from tuner.search.trials import Past, Prior, Result, Trial, settings_features

GIB = 2**30
WORKLOAD = Workload(model=load_model("llama-3.1-8b"), sequence_length=4096, global_batch_size=64)
KNOBBED = (
    *(Settings(micro_batch_size=n, gradient_accumulation_steps=8 // n) for n in (1, 2, 4, 8)),
    *(
        Settings(
            sharding=Sharding.FULL_SHARD,
            tp_size=tp,
            tp_recompute_allgather=again,
            gradient_accumulation_steps=8,
        )
        for tp, again in ((1, False), (2, False), (2, True))
    ),
    Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=4),
)
"""Four values of the micro-batch under one sharding, three of tensor parallelism under another, and
there two of the micro-batch, of four that it has: the other two are illegal."""


def make_prior(seconds, needs=None, *, limit=80.0, settings=None):
    """Candidates, that differ in the micro-batch size unless given; needs and limit in GiB."""
    settings = settings or [Settings(micro_batch_size=2**n) for n in range(len(seconds))]
    count = len(seconds)
    return Prior(
        settings=settings,
        features=settings_features(settings, WORKLOAD, parse_cluster("8xa100-80gb")),
        experts=np.log(np.array(seconds, dtype=float))[None],
        log_need=np.log(np.array(needs or [10.0] * count) * GIB),
        need_error=np.full(count, 0.02),
        runs=np.full(count, 0.95),
        simplicity=np.zeros(count),
        log_limit=log(limit * GIB),
        workload=np.zeros(4),
    )


def make_trial(index, seconds, need=10.0, **more):
    return Trial(index=index, result=Result.RAN, seconds=seconds, need_bytes=need * GIB, **more)


def make_past(prior, excess, *, studies=2):
    """Every candidate in every study, with the same excess (logarithms) and some noise."""
    count = len(excess)
    noise = np.random.default_rng(1).normal(0, 0.02, studies * count)
    return Past(
        study=np.repeat(np.arange(studies, dtype=float), count),
        features=np.tile(prior.features, (studies, 1)),
        workload=np.tile(prior.workload, (studies * count, 1)),
        excess=(np.tile(np.array(excess), studies) + noise)[:, None],
        ran=np.ones(studies * count),
        expected=np.full(studies * count, 0.95),
    )


@pytest.fixture(scope="session")
def made():
    """Makers of priors, trials and pasts."""
    return SimpleNamespace(
        prior=make_prior,
        trial=make_trial,
        past=make_past,
        knobbed=lambda: make_prior(
            [4.0, 3.0, 2.0, 1.0, 3.5, 3.0, 2.5, 3.2], [10, 20, 40, 90, 5, 6, 7, 9], settings=KNOBBED
        ),
        GIB=GIB,
    )
