"""What planning costs as clusters and spaces grow: part of ``make bench-scale``.

A question about Llama 3.1 8B on nodes of eight H100, its global batch a number with many divisors
where many settings are wanted. Everything is made anew for each row: the space, the prediction of
every settings by arithmetic, the first plan of a search, and the answer that is given without a
probe.
"""

import gc
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from common import Goal, show
from plan_speed import forget

from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.study import Limits, Question, Study, StudyState
from tuner.core.workload import Workload
from tuner.explain.known import answer
from tuner.model import load_model
from tuner.planner import next_probe
from tuner.space import enumerate_space

GPUS_PER_NODE = 8
QUESTIONS = (
    # GPUs, sequences in an optimizer step, whether cpu_offload is asked for too
    (8, 64, False),
    (64, 5_040, False),
    (512, 40_320, False),
    (4_096, 65_536, False),
    (16_384, 65_536, False),
    (8, 5_040, False),
    (8, 720_720, False),
    (8, 720_720, True),
)
"""From few settings to many. A micro-batch size must divide what one rank has of a batch, and no
batch that is allowed has more divisors than 720,720: there is no question with 100,000 settings."""


def rows() -> list[dict[str, Any]]:
    """A row for each question, by the number of its settings."""
    found = [_row(*question) for question in QUESTIONS]
    return sorted(found, key=lambda row: (row["settings"], row["gpus"]))


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """None: the figures are a sheet, and docs/deploy.md says what follows from them."""
    return []


def study(gpus: int, batch: int, offload: bool) -> Study:
    """One that was asked, and nothing done."""
    question = Question(
        workload=Workload(
            model=load_model("llama-3.1-8b"), sequence_length=2048, global_batch_size=batch
        ),
        cluster=parse_cluster(f"{gpus // GPUS_PER_NODE}x{GPUS_PER_NODE}xh100-80gb"),
        framework=framework("torch", {"torch": "2.13.0"}, {}),
        knobs={"cpu_offload": (False, True)} if offload else {},
    )
    limits = Limits(max_probes=10_000)
    return Study(id="st-0", question=question, limits=limits, state=StudyState.RUNNING)


def _row(gpus: int, batch: int, offload: bool) -> dict[str, Any]:
    forget()
    gc.collect()
    asked = study(gpus, batch, offload)
    space_s, space = _timed(lambda: enumerate_space(asked.question))
    answer_s, _ = _timed(lambda: answer(asked))
    plan_s, _ = _timed(lambda: next_probe(asked))
    again_s, _ = _timed(lambda: next_probe(replace(asked, revision=1)))
    return {
        "gpus": gpus,
        "global_batch": batch,
        "settings": len(space.legal),
        "space_s": space_s,
        "answer_s": answer_s,
        "first_plan_s": plan_s,
        "next_plan_s": again_s,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load": os.getloadavg()[0],
    }


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    found = call()
    return perf_counter() - began, found


if __name__ == "__main__":
    show("planning", rows())
