"""A study of 500 probes as a search leaves one: part of ``make bench-pages``.

Its probes find what is predicted of their settings, each class off by a factor of its own and each
run by some luck, the same each time: most ran, some ran out of memory, were ended early or failed,
and the fastest were run again. Each has the evidence that a real one has: the ranks' memory, the
collectives, losses, versions, and logs where it failed.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import exp

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.measurement import (
    Collective,
    Fidelity,
    Measurement,
    Memory,
    Outcome,
    OutOfMemory,
)
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
from tuner.explain.known import best_known
from tuner.model import load_model
from tuner.planner.prior import prior_of
from tuner.planner.timing import counts_to_run
from tuner.results.summary import summary_of
from tuner.store import Store, WorkerIdentity

PROBES = 500
AGAIN = 24
"""Of them are repetitions of the fastest."""
STEPS = 10
"""Timed steps of a probe."""
TOO_SLOW = 1.1
"""Over the fastest so far, from which a probe is ended early."""
FAILS = 0.03
"""Share of probes that crash or lose a collective."""
VERSIONS = {"python": "3.11.2", "torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
BEGAN = datetime(2026, 11, 1, 6, tzinfo=UTC)
LOG = "\n".join(f"[rank3]: File train.py, line {n}, in step" for n in range(40))
PROBE_S = 40.0


def question(global_batch_size: int = 5040) -> Question:
    """Of 1,408 legal settings; a batch of more divisors has more of them."""
    return Question(
        workload=Workload(
            model=load_model("llama-3.1-8b"),
            sequence_length=2048,
            global_batch_size=global_batch_size,
        ),
        cluster=parse_cluster("4x8xh100-80gb"),
        framework=framework("torch", {"torch": VERSIONS["torch"]}, {}),
    )


class Machine:
    """Runs probes of a question, one after the other."""

    def __init__(self, asked: Question, seed: int = 0) -> None:
        self.question = asked
        self.limit_bytes = Limits().limit_bytes(asked.cluster)
        self._prior = prior_of(asked, None, self.limit_bytes)
        self._places = {settings: n for n, settings in enumerate(self._prior.settings)}
        self._random = random.Random(seed)
        self._factors: dict[Settings, float] = {}
        self._best_s = float("inf")
        self._repetitions: dict[Settings, int] = {}
        self.fastest: dict[Settings, float] = {}
        """Seconds of a step of what ran and fits."""

    def drawn(self, count: int) -> list[Settings]:
        """Settings to try, no two the same: the fastest by what is predicted, within limits."""
        noisy = {
            one: self._prior.log_seconds[n] + 0.5 * max(0.0, self._over(n)) + self._gauss(0.7)
            for one, n in self._places.items()
        }
        return sorted(noisy, key=lambda one: float(noisy[one]))[:count]

    def run(self, number: int, settings: Settings) -> Probe:
        repetition = self._repetitions.get(settings, 0)
        self._repetitions[settings] = repetition + 1
        own = settings.gradient_accumulation_steps
        request = ProbeRequest(
            settings=settings,
            fidelity=Fidelity.MEASURED,
            repetition=repetition,
            accumulation_counts=() if repetition else counts_to_run(own),
        )
        return self.probe(number, request)

    def probe(self, number: int, request: ProbeRequest) -> Probe:
        return Probe(
            id=number,
            request=request,
            state=ProbeState.DONE,
            memory_limit_bytes=self.limit_bytes,
            measurement=self._found(request),
            finished_at=moment(number * (PROBE_S + 5)),
        )

    def _over(self, place: int) -> float:
        return float(self._prior.log_need[place] - self._prior.log_limit)

    def _gauss(self, error: float) -> float:
        return self._random.gauss(0.0, error)

    def _found(self, request: ProbeRequest) -> Measurement:
        settings, place = request.settings, self._places[request.settings]
        factor = self._factors.setdefault(settings.layout, self._gauss(0.15))
        seconds = exp(float(self._prior.log_seconds[place]) + factor + self._gauss(0.01))
        needed = int(exp(float(self._prior.log_need[place]) + self._gauss(0.03)))
        if self._random.random() < FAILS and not request.repetition:
            return self._failed()
        if needed > self.limit_bytes:
            return self._too_large()
        early = seconds > TOO_SLOW * self._best_s and self._random.random() < 0.5
        if not early:
            self._best_s = min(self._best_s, seconds)
            self.fastest[settings] = seconds
        return self._ran(request, seconds, needed, STEPS if not early else 3)

    def _ran(self, request: ProbeRequest, seconds: float, needed: int, steps: int) -> Measurement:
        own = request.settings.gradient_accumulation_steps
        times = {
            count: tuple(seconds * (count + 0.05) / (own + 0.05) * exp(self._gauss(0.004))
                         for _ in range(steps))
            for count in request.accumulation_counts or (own,)
        }  # fmt: skip
        return Measurement(
            outcome=Outcome.OK if steps == STEPS else Outcome.STOPPED_EARLY,
            memory=self._memory(needed),
            step_times_s=times,
            collectives=tuple(collectives()),
            tracked_accumulation=2,
            losses=tuple(11.9 - n / 50 for n in range(steps + 2)),
            gradient_norms=(2.25, 2.24),
            optimizer_steps=2,
            expected_optimizer_steps=2,
            versions=VERSIONS,
            hardware={"gpu": "NVIDIA H100 80GB HBM3", "driver": "550.54.15"},
            wall_s=PROBE_S,
            device_s=PROBE_S * self.question.cluster.world_size,
        )

    def _memory(self, needed: int) -> Memory:
        allocated = needed - 2**30
        return Memory(
            allocated_bytes=allocated,
            allocated_low_bytes=allocated - 2**20,
            reserved_bytes=allocated + 2**29,
            device_bytes=needed + 2**29,
            overhead_bytes=2**30,
            by_phase={"forward": allocated * 3 // 4, "backward": allocated,
                      "optimizer": allocated // 2},
            by_category={"parameters": allocated // 8, "gradients": allocated // 8,
                         "optimizer": allocated // 4,
                         "activations_and_temporaries": allocated // 2},
            per_rank_bytes=tuple(allocated - 2**16 * n
                                 for n in range(self.question.cluster.world_size)),
        )  # fmt: skip

    def _too_large(self) -> Measurement:
        return Measurement(
            outcome=Outcome.OOM,
            detail="rank 3: CUDA out of memory",
            oom=OutOfMemory(
                rank=3,
                phase="backward",
                requested_bytes=self._random.randrange(1, 9) * 2**30,
                allocated_bytes=self.limit_bytes - 2**28,
                reserved_bytes=self.limit_bytes,
                limit_bytes=self.limit_bytes,
            ),
            log_tails={3: LOG},
            versions=VERSIONS,
            wall_s=PROBE_S / 2,
            device_s=PROBE_S / 2 * self.question.cluster.world_size,
        )

    def _failed(self) -> Measurement:
        outcome = self._random.choice([Outcome.CRASHED, Outcome.COMMUNICATION_ERROR])
        return Measurement(
            outcome=outcome,
            detail="rank 3: ended by signal 11",
            log_tails=dict.fromkeys(range(4), LOG),
            versions=VERSIONS,
            wall_s=PROBE_S / 4,
            device_s=PROBE_S / 4 * self.question.cluster.world_size,
        )


def collectives() -> Iterator[Collective]:
    """As one step of a sharded model has them."""
    for axis in ("dp_shard", "tp"):
        for phase, op in (("forward", "all_gather"), ("backward", "all_gather"),
                          ("backward", "reduce_scatter")):  # fmt: skip
            yield Collective(op=op, axis=axis, phase=phase, count=66, bytes=2**34)


def probes(machine: Machine, count: int = PROBES) -> tuple[Probe, ...]:
    """So many of them, all done; the last ones are repetitions."""
    again = min(AGAIN, count // 5)
    found = [machine.run(n, one) for n, one in enumerate(machine.drawn(count - again), start=1)]
    best = sorted(machine.fastest, key=lambda one: machine.fastest[one])[: max(again // 2, 1)]
    repeated = [machine.run(n + 1, best[n % len(best)]) for n in range(len(found), count)]
    return (*found, *repeated)


def study(asked: Question | None = None, count: int = PROBES, seed: int = 0) -> Study:
    """A study that goes on after so many probes."""
    asked = asked or question()
    return Study(
        id=f"st-{asked.identity[:12]}",
        question=asked,
        limits=Limits(max_probes=2 * count),
        state=StudyState.RUNNING,
        probes=probes(Machine(asked, seed), count),
        created_at=moment(0),
        asked_at=moment(0),
    )


def enter(store: Store, made: Study, count: int) -> str:
    """Asks the study's question in a store, and enters its first probes there; its id."""
    study_id = store.ask(made.question, made.limits).id
    store.move(study_id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
    for probe in made.probes[:count]:
        enter_one(store, study_id, probe)
    return study_id


def enter_one(store: Store, study_id: str, probe: Probe) -> None:
    """One more probe of the study is done: one event."""
    status = store.status(study_id)
    assert status is not None
    assert probe.measurement is not None
    told = (probe.request, probe.memory_limit_bytes, probe.measurement)
    assert store.enter_probe(study_id, status.revision, *told) is not None


def enter_many(store: Store, count: int) -> None:
    """Asks so many questions in a store, which have ended with answers that are kept."""
    made = study(question(), 12)
    answer = summary_of(made, best_known(made))
    for number in range(count):
        asked = store.ask(question(2 * (number + 1)), Limits())
        store.move(asked.id, StudyState.CANCELLED, "enough")
        status = store.status(asked.id)
        assert status is not None
        store.keep_summary(
            asked.id,
            replace(answer, study_id=asked.id, state="cancelled").as_dict(),
            status.newest_event,
            tokens_per_s=1000.0 + number * 37 % 1000,
            needed_share=answer.needed_share,
        )


def moment(after_s: float) -> str:
    """So long after the study was asked, UTC in ISO 8601."""
    return (BEGAN + timedelta(seconds=after_s)).isoformat(timespec="milliseconds")
