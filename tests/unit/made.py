"""Measurements, studies and verdicts made by hand."""

from tests.records import VERSIONS
from tuner.core.configuration import parse_settings
from tuner.core.measurement import (
    CheckState,
    Collective,
    Fidelity,
    Measurement,
    Memory,
    Outcome,
    OutOfMemory,
)
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from tuner.guard.check import GuardCheck
from tuner.space import check_settings
from tuner.store import WorkerIdentity

MIB = 2**20


def ok(seconds, mib, counts=(1, 2, 4, 8)):
    """A probe whose steps took about ``seconds``."""
    size = int(mib * MIB)
    memory = Memory(
        allocated_bytes=size,
        allocated_low_bytes=size,
        reserved_bytes=size,
        device_bytes=size * 2,
        overhead_bytes=0,
        by_phase={"forward": size // 2, "backward": size},
        by_category={"parameters": size // 4},
        per_rank_bytes=(size, size),
    )
    times = tuple(seconds * (1 + 0.001 * i) for i in range(-5, 5))
    return Measurement(
        outcome=Outcome.OK,
        memory=memory,
        step_times_s=dict.fromkeys(counts, times),
        collectives=(
            Collective(op="all_reduce", axis="dp", phase="backward", count=4, bytes=3 * MIB),
        ),
        tracked_accumulation=1,
        losses=(4.5, 4.25),
        versions={"torch": "2.13.0"},
        wall_s=12.0,
        device_s=24.0,
    )


def oom(mib):
    """A probe that ran out of memory."""
    shortage = OutOfMemory(
        rank=1,
        phase="backward",
        requested_bytes=MIB,
        allocated_bytes=int(mib * MIB),
        reserved_bytes=int(mib * MIB),
        limit_bytes=int(mib * MIB),
    )
    return Measurement(
        outcome=Outcome.OOM,
        detail="rank 1 ran out of memory in backward",
        oom=shortage,
        log_tails={0: "a warning of no interest"},
        wall_s=3.0,
        device_s=6.0,
    )


def crashed():
    """A probe that failed."""
    return Measurement(
        outcome=Outcome.CRASHED,
        detail="rank 0 raised RuntimeError: no such kernel",
        log_tails={0: "Traceback ...\nRuntimeError: no such kernel"},
        wall_s=2.0,
        device_s=4.0,
    )


MISCOUNTED = "rank 0: the optimizer stepped 18 times instead of 6"


def verdict(text, *, wrong=False, ranks=2, **more):
    """On a replica of another model than the question's, unless its family is given."""
    values = {
        "key": f"{text} {ranks} {more}",
        "family": "another",
        "result": CheckState.FAILED if wrong else CheckState.PASSED,
        "outcome": Outcome.WRONG_RESULT if wrong else Outcome.OK,
        "detail": MISCOUNTED if wrong else "",
        "settings": parse_settings(text).as_dict(),
        "ranks": ranks,
        "precision": "fp32",
        "versions": VERSIONS,
        **more,
    }
    return GuardCheck(**values)


def request_of(question, text, repetition=0):
    """A probe of settings that are written down."""
    settings = check_settings(question, parse_settings(text))
    return ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED, repetition=repetition)


def study_of(question, *found, limits=None):
    """A study with these probes, in this order."""
    probes = []
    for number, (text, result) in enumerate(found, start=1):
        done = isinstance(result, Measurement)
        probes.append(
            Probe(
                id=number,
                request=request_of(question, text),
                state=ProbeState.DONE if done else ProbeState(result),
                measurement=result if isinstance(result, Measurement) else None,
                finished_at=f"2026-11-21T06:{29 + number}:00+00:00" if done else None,
            )
        )
    return Study(
        id="st-0123456789ab",
        question=question,
        limits=limits or Limits(max_probes=5),
        state=StudyState.DONE,
        probes=tuple(probes),
        created_at="2026-11-21T06:00:00+00:00",
        asked_at="2026-11-21T06:10:00+00:00",
    )


def stored(store, question, *found, limits=None):
    """A finished study with these probes in a database."""
    study = store.ask(question, limits or Limits(max_probes=5))
    for number, (text, result) in enumerate(found):
        request = request_of(question, text, number)
        revision = store.study(study.id).revision
        assert store.enter_probe(study.id, revision, request, None)
        while claim := store.claim(study.id, WorkerIdentity.of_this_process()):
            assert store.record(claim, result)
    store.move(study.id, StudyState.RUNNING)
    store.move(study.id, StudyState.DONE, "the budget is spent")
    return store.study(study.id)
