"""What probes that ended otherwise than well teach a search."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, Study
from tuner.explain.known import answer
from tuner.planner.knowledge import learn
from tuner.planner.search import Search, trials_of
from tuner.search.gain import log_expected_speed
from tuner.search.trials import Result
from tuner.space import enumerate_space

DEADLINE_S = 600.0
HUNG = Measurement(outcome=Outcome.TIMEOUT, wall_s=DEADLINE_S, device_s=2 * DEADLINE_S)


def hangs(lab: SimpleNamespace, study: Study, does: Callable[[Settings], bool]) -> Study:
    """The study played through on a machine on which some settings hang until the deadline."""

    class Machine(lab.Machine):
        def run(self, request: ProbeRequest, limit: int) -> Measurement:
            return HUNG if does(request.settings) else super().run(request, limit)

    played, _ = Machine(study.question).play(study)
    return played


def timeouts(study: Study) -> list[Probe]:
    found = [p for p in study.probes if p.measurement]
    return [p for p in found if p.measurement.outcome is Outcome.TIMEOUT]


def test_a_timeout_is_a_lower_bound_of_the_step(lab: SimpleNamespace) -> None:
    one, two, three = enumerate_space(lab.question(batch=512)).legal[:3]
    probes = [lab.probe(n, s, HUNG) for n, s in enumerate((one, two), start=1)]
    short = replace(probes[1].request, accumulation_counts=(2, 4))
    probes[1] = replace(probes[1], request=short)
    probes.append(lab.probe(3, three, replace(HUNG, wall_s=0.0)))
    found = trials_of(learn(lab.study(lab.question(batch=512), probes=probes)))
    assert [t.result for t in found] == [Result.TIMED_OUT] * 3
    # at least six steps at each count, and some of the time for starting
    assert [t.seconds for t in found] == [DEADLINE_S / 8, DEADLINE_S / 16, None]
    assert [t.need_bytes for t in found] == [None] * 3


def test_what_ran_once_and_hung_once_has_run(lab: SimpleNamespace) -> None:
    one = enumerate_space(lab.question()).legal[0]
    done = lab.ok(1.0, 100 * lab.MIB, count=one.gradient_accumulation_steps)
    probes = [lab.probe(1, one, done), lab.probe(2, one, HUNG, repetition=1)]
    (trial,) = trials_of(learn(lab.study(probes=probes)))
    assert trial.result is Result.RAN


def test_neighbours_of_what_hung_lose_rank(lab: SimpleNamespace) -> None:
    """DDP without checkpointing hung; sharded settings without it are nearer than those with."""
    before = Search(learn(lab.study()))
    legal = before.prior.settings
    of = {
        (sharding, kept): [
            n
            for n, s in enumerate(legal)
            if (s.sharding, s.activation_checkpointing) == (sharding, kept) and s.tp_size == 1
        ]
        for sharding in (Sharding.DDP, Sharding.FULL_SHARD)
        for kept in Checkpointing
    }
    hung = of[Sharding.DDP, Checkpointing.NONE]
    probes = [lab.probe(k, legal[n], HUNG) for k, n in enumerate(hung, start=1)]
    after = Search(learn(lab.study(probes=probes)))
    gained = log_expected_speed(after.belief) - log_expected_speed(before.belief)
    near = gained[of[Sharding.FULL_SHARD, Checkpointing.NONE]].mean()
    assert near < gained[of[Sharding.FULL_SHARD, Checkpointing.FULL]].mean() - 0.2
    assert near < -1.0
    asked = after.propose().settings
    assert (asked.tp_size, asked.activation_checkpointing) != (1, Checkpointing.NONE)


@pytest.mark.parametrize(("cluster", "batch"), [("cpu:2", 8), ("cpu:4", 96)])
@pytest.mark.parametrize(
    "does",
    [
        lambda s: s.activation_checkpointing is Checkpointing.NONE,
        lambda s: s.tp_size == 1,
    ],
    ids=["unchecked", "tp_size=1"],
)
def test_a_study_is_answered_though_what_looks_fastest_hangs(
    lab: SimpleNamespace, cluster: str, batch: int, does: Callable[[Settings], bool]
) -> None:
    study = hangs(lab, lab.study(lab.question(cluster, batch), max_probes=20), does)
    best = answer(study).best
    assert best is not None
    assert not does(best.settings)
    assert len(timeouts(study)) <= 15
    machine = lab.Machine(study.question)
    legal = [s for s in enumerate_space(study.question).legal if not does(s)]
    seconds = machine.seconds(best.settings, best.settings.gradient_accumulation_steps)
    assert seconds <= 1.1 * machine.best_seconds(legal, 4096 * lab.MIB)
