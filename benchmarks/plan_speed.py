"""How long the planner itself takes: a study of more than 5,000 legal settings, 200 probes done.

One call is all that a worker waits for between two probes (:func:`tuner.planner.next_probe`): it
reads the probes, asks the search, and decides. The study goes on from call to call, as a worker's
does; the first call makes the predictions, which later ones find made. Beside it: the first
suggestion of a study without a probe, and the answer after all of them, from predictions that are
there and from none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter, process_time
from typing import Any

from pages_study import Machine, probes

from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.study import Limits, Probe, ProbeRequest, Question, Study, StudyState
from tuner.core.workload import Workload
from tuner.explain.known import answer
from tuner.model import load_model
from tuner.planner import forecast, next_probe, prior
from tuner.space import enumerate_space

PROBES = 200
"""Done when the clock starts."""
CALLS = 20
"""Of which the median is taken, beside the first."""


def question() -> Question:
    """Of PyTorch, with a global batch of many divisors: so many micro-batch sizes are legal."""
    return Question(
        workload=Workload(
            model=load_model("llama-3.1-8b"), sequence_length=2048, global_batch_size=720_720
        ),
        cluster=parse_cluster("4x8xh100-80gb"),
        framework=framework("torch", {"torch": "2.13.0"}, {}),
    )


def study_of(probes: Sequence[Probe] = ()) -> Study:
    """A study that goes on after these."""
    limits = Limits(max_probes=10_000, tolerance=0.0)
    return Study(
        id="st-0", question=question(), limits=limits, state=StudyState.RUNNING,
        probes=tuple(probes),
    )  # fmt: skip


def calls(machine: Machine) -> Iterator[Callable[[], object]]:
    """Calls of the planner, each with one probe more than the one before."""
    study = study_of(probes(machine, PROBES))
    for _ in range(CALLS + 1):
        yield lambda study=study: next_probe(study)  # type: ignore[misc]
        request = next_probe(study)
        assert isinstance(request, ProbeRequest), request
        found = machine.probe(len(study.probes) + 1, request)
        study = replace(study, probes=(*study.probes, found))


def plan_lines() -> list[dict[str, Any]]:
    machine, empty = Machine(question()), study_of()
    full = study_of(probes(Machine(question()), PROBES))
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
