"""Studies made by hand, of any size and any outcomes, with names of any kind."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from api.answers import Whole
from api.pages.study import study_page
from tests.records import VERSIONS
from tests.unit import made as plain
from tests.unit.api.studies import TINY
from tuner.client.answered import with_launch
from tuner.client.request import read_request
from tuner.core.measurement import Fidelity
from tuner.core.study import OPEN, Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from tuner.explain.known import best_known
from tuner.results.points import Evidence
from tuner.space import enumerate_space
from tuner.store import Moments, StudyStatus

GIB = 2**30
BEGAN = datetime(2026, 11, 21, 6, tzinfo=UTC)


def question(cluster="8xa100-80gb", batch=256, name="tiny", **knobs):
    body = {
        "workload": {
            "model": TINY,
            "model_name": name,
            "sequence_length": 128,
            "global_batch_size": batch,
        },
        "cluster": cluster,
        "knobs": knobs,
    }
    return read_request(body).question(VERSIONS)


def ok(seconds, count, allocated):
    found = plain.ok(seconds, allocated / 2**20)
    assert found.memory
    parts = {"parameters": 8, "gradients": 8, "optimizer": 4, "activations_and_temporaries": 2}
    memory = replace(
        found.memory,
        overhead_bytes=2**28,
        by_category={name: allocated // share for name, share in parts.items()},
        per_rank_bytes=(allocated, allocated - 1024),
    )
    steps = {count: tuple(seconds * (1 + 0.002 * n) for n in range(8))}
    return replace(found, memory=memory, step_times_s=steps, versions=VERSIONS)


def oom(phase="backward", log="CUDA out of memory"):
    found = plain.oom(76 * 1024)
    assert found.oom
    where = {"rank": 3, "phase": phase, "requested_bytes": 3 * GIB, "allocated_bytes": 75 * GIB}
    return replace(found, oom=replace(found.oom, **where), log_tails={3: log})


def crashed(detail="signal 11", log="Traceback\nRuntimeError: no"):
    return replace(plain.crashed(), detail=detail, log_tails={0: log})


def study(asked, found, state=StudyState.DONE, reason="the budget is spent", **more):
    """A study whose probes are the first legal settings, with these findings; ``None`` runs."""
    settings = enumerate_space(asked).legal
    assert len(settings) >= len(found), len(settings)
    step = max(1, len(settings) // max(1, len(found)))
    probes = tuple(
        Probe(
            id=number,
            request=ProbeRequest(
                settings=settings[(number - 1) * step], fidelity=Fidelity.MEASURED
            ),
            state=ProbeState.DONE if one else ProbeState.RUNNING,
            memory_limit_bytes=76 * GIB,
            measurement=one and _at_its_count(one, settings[(number - 1) * step]),
            finished_at=_moment(20 * number) if one else None,
        )
        for number, one in enumerate(found, start=1)
    )
    made = Study(
        id="st-0123456789ab",
        question=asked,
        limits=Limits(max_probes=max(1, len(found) + 3)),
        state=state,
        reason=reason,
        probes=probes,
        created_at=_moment(0),
        asked_at=_moment(0),
    )
    return replace(made, **more)


def whole(made):
    found = best_known(made)
    return Whole(
        status=_status(made),
        study=made,
        suggestion=found and with_launch(found, made.question),
        evidence=Evidence(made),
    )


def shown(made):
    return study_page(whole(made), moments(made))


def moments(made):
    """Running probes began half a minute after each other; a study at its end ended later."""
    running = (p.id for p in made.probes if p.state is ProbeState.RUNNING)
    ended = "" if made.state in OPEN else _moment(20_000)
    return Moments(ended=ended, began={n: _moment(30 * n) for n in running})


def _status(made):
    return StudyStatus(
        id=made.id,
        identity=made.question.identity,
        state=made.state,
        reason=made.reason,
        pool="",
        revision=made.revision,
        limits=made.limits.as_dict(),
        asked_at=made.asked_at,
        newest_event=7,
    )


def _at_its_count(found, settings):
    steps = next(iter(found.step_times_s.values()), ())
    count = settings.gradient_accumulation_steps
    return replace(found, step_times_s={count: steps} if steps else {})


def _moment(after_s):
    return (BEGAN + timedelta(seconds=after_s)).isoformat(timespec="milliseconds")


def stored(store, made):
    """Enters a made study's question and finished probes into a store, and ends it; its id."""
    study_id = store.ask(made.question, made.limits).id
    store.move(study_id, StudyState.RUNNING)
    for probe in made.probes:
        revision = store.study(study_id).revision
        assert probe.measurement is not None
        limit = probe.memory_limit_bytes
        done = store.enter_probe(study_id, revision, probe.request, limit, probe.measurement)
        assert done is not None
    assert store.move(study_id, StudyState.DONE, made.reason)
    return study_id
