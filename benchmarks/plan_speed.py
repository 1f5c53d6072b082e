"""How long the planner itself takes: a study of more than 5,000 legal settings, 200 probes done.

One call is all that a worker waits for between two probes (:func:`tuner.planner.next_probe`): it
reads the probes, asks the search, and decides. The study goes on from call to call, as a worker's
does; the first call makes the predictions, which later ones find made. Beside it: the first
suggestion of a study without a probe, and the answer after all of them, from predictions that are
there and from none.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from time import perf_counter, process_time
from typing import Any

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity, Measurement, Memory, Outcome, OutOfMemory
from tuner.core.study import (
    Limits,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
)
from tuner.core.workload import Workload
from tuner.explain.known import answer
from tuner.model import load_model
from tuner.planner import forecast, next_probe, prior
from tuner.planner.prior import prior_of
from tuner.space import enumerate_space

PROBES = 200
"""Done when the clock starts."""
CALLS = 20
"""Of which the median is taken, beside the first."""
STEPS = 10
"""Timed steps of a probe."""


def question() -> Question:
    """Of PyTorch, with a global batch of many divisors: so many micro-batch sizes are legal."""
    return Question(
        workload=Workload(
            model=load_model("llama-3.1-8b"), sequence_length=2048, global_batch_size=720_720
        ),
        cluster=parse_cluster("4x8xh100-80gb"),
        framework=framework("torch", {"torch": "2.13.0"}, {}),
    )


class Machine:
    """Measures what is predicted, with noise: the same each time."""

    def __init__(self, asked: Question) -> None:
        self.limit_bytes = Limits().limit_bytes(asked.cluster)
        prior = prior_of(asked, None, self.limit_bytes)
        self._prior = prior
        self._place = {settings: n for n, settings in enumerate(prior.settings)}
        self._random = random.Random(0)

    def run(self, request: ProbeRequest) -> Measurement:
        """What a probe finds."""
        place, draw = self._place[request.settings], self._random
        needed = int(2.718 ** (self._prior.log_need[place] + draw.gauss(0, 0.05)))
        if needed > self.limit_bytes:
            return Measurement(outcome=Outcome.OOM, oom=self._shortage(), wall_s=20.0)
        seconds = 2.718 ** (float(self._prior.log_seconds[place]) + draw.gauss(0, 0.2))
        own = request.settings.gradient_accumulation_steps
        times = {
            n: tuple(seconds * n / own * (1 + 0.01 * draw.random()) for _ in range(STEPS))
            for n in request.accumulation_counts or (own,)
        }
        memory = Memory(
            allocated_bytes=needed,
            allocated_low_bytes=needed,
            reserved_bytes=needed,
            device_bytes=needed,
            overhead_bytes=0,
            by_phase={},
            by_category={},
            per_rank_bytes=(needed,),
        )
        return Measurement(outcome=Outcome.OK, memory=memory, step_times_s=times, wall_s=20.0)

    def _shortage(self) -> OutOfMemory:
        return OutOfMemory(
            rank=0,
            phase="backward",
            requested_bytes=2**20,
            allocated_bytes=self.limit_bytes,
            reserved_bytes=self.limit_bytes,
            limit_bytes=self.limit_bytes,
        )


def empty_study() -> Study:
    """Asked, and nothing done."""
    limits = Limits(max_probes=10_000, tolerance=0.0)
    return Study(id="st-0", question=question(), limits=limits, state=StudyState.RUNNING)


def with_probe(study: Study, request: ProbeRequest, machine: Machine) -> Study:
    """The study after one more probe."""
    probe = Probe(
        id=len(study.probes) + 1,
        request=request,
        state=ProbeState.DONE,
        memory_limit_bytes=machine.limit_bytes,
        measurement=machine.run(request),
    )
    return replace(study, probes=(*study.probes, probe))


def study_with_probes(machine: Machine) -> Study:
    """A study after :data:`PROBES` probes of settings drawn at random."""
    study = empty_study()
    legal = enumerate_space(study.question).legal
    for settings in random.Random(1).sample(legal, PROBES):
        study = with_probe(study, _request(settings), machine)
    return study


def _request(settings: Settings) -> ProbeRequest:
    return ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED)


def calls(machine: Machine) -> Iterator[Callable[[], object]]:
    """Calls of the planner, each with one probe more than the one before."""
    study = study_with_probes(machine)
    for _ in range(CALLS + 1):
        yield lambda study=study: next_probe(study)  # type: ignore[misc]
        request = next_probe(study)
        assert isinstance(request, ProbeRequest), request
        study = with_probe(study, request, machine)


def plan_lines() -> list[dict[str, Any]]:
    """The table."""
    machine = Machine(question())
    empty, full = empty_study(), study_with_probes(machine)
    return [
        _line("next_probe", PROBES, list(calls(machine))),
        _line("answer", PROBES, [lambda: answer(replace(full))] * (CALLS + 1)),
        _line("answer", 0, [lambda: answer(replace(empty))] * (CALLS + 1)),
    ]


def _line(name: str, probes: int, asked: list[Callable[[], object]]) -> dict[str, Any]:
    forget()
    walls, cpus = zip(*map(_timed, asked), strict=True)
    return {
        "call": name,
        "settings": len(enumerate_space(question()).legal),
        "probes": probes,
        "calls": len(asked) - 1,
        "first_s": round(walls[0], 3),
        "first_cpu_s": round(cpus[0], 3),
        "median_s": round(median(walls[1:]), 4),
        "largest_s": round(max(walls[1:]), 4),
        "cpu_s": round(median(cpus[1:]), 4),
    }


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    begun, used = perf_counter(), process_time()
    call()
    return perf_counter() - begun, process_time() - used


def forget() -> None:
    """Drop the predictions that earlier calls have made."""
    prior._prior.cache_clear()
    prior.predicted.cache_clear()
    forecast._by_arithmetic.cache_clear()
