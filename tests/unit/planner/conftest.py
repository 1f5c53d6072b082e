"""A machine made of arithmetic, on which studies can be played through in milliseconds."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from tests.questions import question_about
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import framework
from tuner.core.measurement import Measurement, Memory, Outcome, OutOfMemory
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Question, Study, StudyState
from tuner.core.workload import Precision
from tuner.cost.memory.step import memory_bound
from tuner.planner import Stop, Wait, next_probe

MIB = 2**20
APART_S = 1000
"""Between the ends of two probes: more than any takes."""
SIZES = {
    "hidden_size": 288,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def make_question(cluster="cpu:2", batch=8, heads=6, **knobs):
    sizes = {**SIZES, "num_attention_heads": heads, "num_key_value_heads": heads}
    return question_about(
        {"model_type": "llama", **sizes}, cluster, framework("torch", {"torch": "2.13.0"}, {}),
        tokens=128, batch=batch, knobs=knobs, precision=Precision.FP32,
    )  # fmt: skip


def make_study(question=None, *, probes=(), seed=0, **limits):
    return Study(
        id="st-000000000000",
        question=question or make_question(),
        limits=Limits(**{"memory_limit_bytes": 4096 * MIB, **limits}),
        state=StudyState.RUNNING,
        seed=seed,
        probes=tuple(probes),
    )


def make_memory(allocated, overhead=0):
    return Memory(
        allocated_bytes=allocated,
        allocated_low_bytes=allocated - allocated // 100,
        reserved_bytes=allocated + allocated // 10,
        device_bytes=allocated + overhead,
        overhead_bytes=overhead,
        by_phase={"backward": allocated},
        by_category={"parameters": allocated // 4, "gradients": allocated // 4},
        per_rank_bytes=(allocated,),
    )


def make_ok(seconds, allocated, *, count=1, **more):
    """Done, with ten equal steps, or the steps that are given by count."""
    times = seconds if isinstance(seconds, dict) else {count: (seconds,) * 10}
    return Measurement(
        outcome=Outcome.OK,
        memory=make_memory(allocated, more.pop("overhead", 0)),
        step_times_s={n: tuple(steps) for n, steps in times.items()},
        versions={"torch": "2.13.0"},
        wall_s=more.pop("wall_s", 2.0),
        device_s=more.pop("device_s", 4.0),
        **more,
    )


def make_oom(needed, limit):
    shortage = OutOfMemory(
        rank=0,
        phase="backward",
        requested_bytes=needed // 10,
        allocated_bytes=needed - needed // 10,
        reserved_bytes=needed,
        limit_bytes=limit,
    )
    return Measurement(outcome=Outcome.OOM, oom=shortage, wall_s=1.0, device_s=2.0)


def moment(number):
    """When a probe was done that no other ran beside."""
    at = datetime(2026, 1, 1) + timedelta(seconds=(number - 1) * APART_S)
    return f"{at.isoformat()}Z"


def make_probe(number, settings, measurement, *, repetition=0, limit=None, state=ProbeState.DONE):
    request = ProbeRequest(settings=settings, fidelity=Limits().fidelity, repetition=repetition)
    return Probe(
        id=number,
        request=request,
        state=state,
        memory_limit_bytes=limit,
        measurement=measurement,
        finished_at=moment(number) if measurement else None,
    )


def done(number, request, found, limit):
    """A finished probe."""
    return Probe(
        id=number,
        request=request,
        state=ProbeState.DONE,
        memory_limit_bytes=limit,
        measurement=found,
        finished_at=moment(number),
    )


def play(study, run, most=500):
    """Ask and measure until the planner stops; it fails where that takes more than ``most``."""
    limit = study.limits.limit_bytes(study.question.cluster)
    for _ in range(most):
        step = next_probe(study)
        if isinstance(step, Stop):
            return study, step
        assert not isinstance(step, Wait)
        probe = done(len(study.probes) + 1, step, run(step, limit), limit)
        study = replace(study, probes=(*study.probes, probe))
    raise AssertionError("the planner does not stop")


@dataclass
class Machine:
    """Says what a probe would find. Deterministic: noise comes from the settings' names."""

    question: Question
    noise: float = 0.0
    memory_factor: float = 0.9
    fail: Callable[[Settings], Outcome | None] = lambda _: None

    def memory(self, settings):
        bound = memory_bound(self.question.workload, settings, self.question.cluster)
        return int(max(self.memory_factor * bound.total_bytes, bound.floor_bytes))

    def seconds(self, settings, count):
        """The truth: compute, communication, and a fixed part."""
        tokens = settings.micro_batch_size * 128
        compute = (tokens + 60) / settings.tp_size**0.8 * 1e-3
        compute *= 1.3 if settings.activation_checkpointing is Checkpointing.FULL else 1.0
        gather = {Sharding.FULL_SHARD: 0.04, Sharding.HYBRID_SHARD: 0.03}
        each = compute + gather.get(settings.sharding, 0.0)
        each += 0.03 * (settings.tp_size - 1) * (1.5 if settings.tp_recompute_allgather else 1)
        syncs = count if settings.sync_each_batch else 1
        return count * each + 0.05 * syncs + 0.02

    def run(self, request, limit):
        settings = request.settings
        outcome = self.fail(settings)
        if outcome is not None:
            return Measurement(outcome=outcome, wall_s=1.0, device_s=2.0)
        needed = self.memory(settings)
        if needed > limit:
            return make_oom(max(limit + 1, needed // 2), limit)
        counts = request.accumulation_counts or (settings.gradient_accumulation_steps,)
        draw = random.Random(zlib.crc32(f"{settings} {request.repetition}".encode()))
        luck = 1 + self.noise * draw.gauss(0, 1)
        times = {
            n: tuple(
                self.seconds(settings, n) * luck * (1 + self.noise * abs(draw.gauss(0, 1)))
                for _ in range(10)
            )
            for n in counts
        }
        return make_ok(times, needed, wall_s=sum(map(sum, times.values())))

    def play(self, study):
        return play(study, self.run)

    def best_seconds(self, legal, limit):
        """The fastest of all that fit."""
        fitting = [s for s in legal if self.memory(s) <= limit]
        return min(self.seconds(s, s.gradient_accumulation_steps) for s in fitting)


@pytest.fixture(scope="session")
def lab():
    """Makers of questions, studies, probes and measurements, and the machine."""
    return SimpleNamespace(
        Machine=Machine,
        question=make_question,
        study=make_study,
        probe=make_probe,
        ok=make_ok,
        oom=make_oom,
        memory=make_memory,
        MIB=MIB,
    )
