"""How long one ask takes: 200 measurements, 5,000 legal settings, with and without a past of 300.

What is predicted of the candidates is made once for a study (``tuner/planner/prior.py``) and
is not part of an ask; its seconds are shown beside it. So are the processor's seconds of an ask,
which are fewer where other programs use the cores.
"""

from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from replay import part_of

from tuner.core.cluster import parse_cluster
from tuner.core.framework import Framework, FrameworkName
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.model import load_model
from tuner.planner.prior import prior_of
from tuner.search.engine import ask
from tuner.search.kernel import alike
from tuner.search.trials import Past, Prior, Result, Trial

LIMIT_S = 0.1
"""Goal for the median."""
SETTINGS, TRIALS, PAST = 5000, 200, 300
ASKS = 20
"""Of which the median is taken; one before them is not counted, as in a study that goes on."""


def big_question() -> Question:
    """Of more legal settings than are needed."""
    return Question(
        workload=Workload(
            model=load_model("llama-3.1-70b"), sequence_length=4096, global_batch_size=4096
        ),
        cluster=parse_cluster("64x8xh100-80gb"),
        framework=Framework(name=FrameworkName.NANOTRON),
    )


def candidates() -> tuple[Prior, float]:
    """A prior of 5,000 legal settings, spread over the space, and the seconds it took."""
    begun = perf_counter()
    question = big_question()
    whole = prior_of(question, None, int(question.cluster.gpu.memory_bytes * 0.95))
    seconds = perf_counter() - begun
    rows = np.linspace(0, len(whole.settings) - 1, SETTINGS).astype(int)
    return part_of(whole, rows), seconds


def trials(prior: Prior) -> list[Trial]:
    """Measurements with noise, some too large, some failed; the same each time."""
    random = np.random.default_rng(0)
    found = []
    for index in random.permutation(len(prior.settings))[:TRIALS].tolist():
        need = float(np.exp(prior.log_need[index] + random.normal(0, 0.1)))
        seconds = float(np.exp(prior.log_seconds[index] + random.normal(0, 0.3)))
        failed, large = random.random() < 0.1, need > np.exp(prior.log_limit)
        result = Result.FAILED if failed else Result.TOO_LARGE if large else Result.RAN
        ran = result is Result.RAN
        known = None if failed else need
        found.append(Trial(index=index, result=result, seconds=seconds if ran else None,
                           error=0.02, need_bytes=known))  # fmt: skip
    return found


def past(prior: Prior) -> Past:
    """Trials of six other searches, each of a workload of its own, that were off alike: only then
    is there anything to be learned from them.
    """
    random = np.random.default_rng(1)
    rows = random.permutation(len(prior.settings))[:PAST]
    study = np.arange(PAST) % 6
    shift = random.normal(0, 0.1, (6, len(prior.workload)))
    features, workload = prior.features[rows], prior.workload + shift[study]
    near = alike(features, features) * alike(workload, workload)
    common = np.linalg.cholesky(near + 1e-6 * np.eye(PAST)) @ random.normal(0, 0.5, PAST)
    return Past(
        study=study.astype(float),
        features=features,
        workload=workload,
        excess=common[:, None] + random.normal(0.0, 0.1, (PAST, len(prior.experts))),
        ran=(random.random(PAST) < 0.8).astype(float),
        expected=np.full(PAST, 0.9),
    )


def ask_lines() -> list[dict[str, Any]]:
    prior, seconds = candidates()
    told, allowed = trials(prior), np.ones(len(prior.settings), dtype=bool)
    allowed[[trial.index for trial in told]] = False
    found = []
    for name, known in (("nothing", None), (f"{PAST} earlier trials", past(prior))):
        times, cpu = [], []
        for _ in range(ASKS + 1):
            begun, used = perf_counter(), process_time()
            ask(prior, told, allowed, known)
            times.append(perf_counter() - begun)
            cpu.append(process_time() - used)
        found.append({
            "settings": len(allowed), "measurements": len(told), "known": name, "asks": ASKS,
            "first_s": round(times[0], 4), "median_s": round(median(times[1:]), 4),
            "largest_s": round(max(times[1:]), 4), "cpu_s": round(median(cpu[1:]), 4),
            "predictions_s": round(seconds, 2),
        })  # fmt: skip
    return found
