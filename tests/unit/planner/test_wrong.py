"""Knob values that train something else: found once, confirmed once, and never answered."""

import random
from dataclasses import replace

import pytest

from tests.records import VERSIONS
from tests.unit.made import MISCOUNTED, verdict
from tests.unit.planner.machines import play_at_once
from tuner.core.configuration import Sharding, parse_settings
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import ProbeRequest, ProbeState, StudyState
from tuner.errors import TrainsWronglyError
from tuner.explain.known import answer, require_best, why_none
from tuner.guard.faults import path_of
from tuner.guard.replica import replica_of
from tuner.planner import Stop, next_probe, to_guard
from tuner.planner.knowledge import learned

GIB = 2**30


def steps_on_each(settings):
    return settings.gradient_accumulation_steps > 1 and settings.sync_each_batch


def only_ddp(settings):
    return steps_on_each(settings) and settings.sharding is Sharding.DDP and settings.tp_size == 1


def miscounted():
    return Measurement(
        outcome=Outcome.WRONG_RESULT,
        detail=MISCOUNTED,
        optimizer_steps=18,
        expected_optimizer_steps=6,
        wall_s=1.0,
        device_s=2.0,
    )


def study_of(lab, *, cluster="cpu:2", limits=None, **knobs):
    asked = replace(lab.question(cluster, **knobs), framework=framework("torch", VERSIONS, {}))
    return lab.study(asked, **(limits or {}))


def machine(lab, study, bug):
    """What a probe finds in a stack with a bug."""
    usual = lab.Machine(question=study.question)

    def run(request, limit):
        return miscounted() if bug(request.settings) else usual.run(request, limit)

    return run


def played(lab, study, bug):
    study, stop, _ = play_at_once(study, machine(lab, study, bug), 1, random.Random(0))
    state = StudyState.FAILED if stop.failure else StudyState.DONE
    return replace(study, state=state, reason=stop.failure or stop.reason), stop


def wrong_probes(study):
    return [p for p in study.probes if p.measurement.outcome is Outcome.WRONG_RESULT]


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_value_is_wrong_after_a_probe_and_a_confirmation(lab, at_once, seed):
    study = study_of(lab, limits={"max_probes": 30, "tolerance": 0.0})
    run = machine(lab, study, steps_on_each)
    study, stop, _ = play_at_once(study, run, at_once, random.Random(seed))
    found = wrong_probes(study)
    assert 1 <= len(found) <= 2 * at_once
    if at_once == 1 and len(found) == 2:
        paths = [dict(path_of(p.request.settings, 2)) for p in found]
        assert len({path.get("sharding") for path in paths}) == 2
    suggestion = answer(study)
    assert suggestion.best is not None
    shown = [suggestion.best, *suggestion.alternatives, *suggestion.pareto]
    assert not any(steps_on_each(one.settings) for one in shown)
    assert not stop.failure


def test_the_confirmation_leaves_what_is_right(lab):
    study = study_of(lab, limits={"max_probes": 60, "tolerance": 0.0}, sync_each_batch=(True,))
    study, _ = played(lab, study, only_ddp)
    assert len(wrong_probes(study)) == 1
    right = [p for p in study.probes if steps_on_each(p.request.settings)]
    assert len({p.request.settings.sharding for p in right}) > 1
    closed = learned(study).closed
    assert closed.keys() == {one for one in learned(study).space.legal if only_ddp(one)}


def test_no_second_confirmation_is_on_its_way(lab):
    study = study_of(lab, limits={"max_probes": 30, "tolerance": 0.0}, sync_each_batch=(True,),
                     gradient_accumulation_steps=(2, 4))  # fmt: skip
    first = next_probe(study)
    study = replace(study, probes=(lab.probe(1, first.settings, miscounted()),))
    second = next_probe(study)
    assert path_of(second.settings, 2) != path_of(first.settings, 2)
    running = lab.probe(2, second.settings, None, state=ProbeState.RUNNING)
    beside = next_probe(replace(study, probes=(*study.probes, running)), beside=True)
    assert not isinstance(beside, ProbeRequest)


def test_where_all_that_fits_is_wrong_the_end_says_so(lab):
    knobs = {"sync_each_batch": (True,), "gradient_accumulation_steps": (2, 4)}
    study, stop = played(lab, study_of(lab, limits={"max_probes": 8}, **knobs), steps_on_each)
    assert len(study.probes) == 2
    assert stop.failure.startswith(
        f"what fits trains something else: sync_each_batch=true trains something else: {MISCOUNTED}"
    )
    found = answer(study)
    assert (found.best, found.alternatives, found.pareto) == (None, (), ())
    assert not any("the next would be" in line for line in found.explanation)
    with pytest.raises(TrainsWronglyError, match="what fits trains something else") as raised:
        require_best(study, found)
    assert raised.value.exit_code == 4
    assert "nothing" not in str(why_none(study, found))


def test_a_budget_that_ends_at_a_wrong_probe_answers_nothing_wrong(lab):
    knobs = {"sync_each_batch": (True,), "gradient_accumulation_steps": (2, 4)}
    study, _ = played(lab, study_of(lab, limits={"max_probes": 1}, **knobs), steps_on_each)
    found = answer(study)
    assert found.best is None
    assert isinstance(why_none(study, found), TrainsWronglyError)


@pytest.mark.parametrize("probed", [Fidelity.MEASURED, Fidelity.EMULATED])
@pytest.mark.parametrize("asked", list(Fidelity))
def test_a_probe_that_blames_no_knob_closes_such_settings_at_every_fidelity(lab, probed, asked):
    """Steps that were miscounted without accumulation are no knob's that is known."""
    knobs = {"sharding": (Sharding.DDP,), "tp_size": (1,), "gradient_accumulation_steps": (1,),
             "activation_checkpointing": ("none",), "cpu_offload": (False,)}  # fmt: skip
    limits = {"fidelity": asked, "memory_limit_bytes": None}
    study = study_of(lab, cluster="8xh100-80gb", limits=limits, batch=64, **knobs)
    one = learned(study).space.legal[0]
    assert answer(study).best is not None
    probe = lab.probe(1, one, miscounted())
    probe = replace(probe, request=replace(probe.request, fidelity=probed))
    study = replace(study, probes=(probe,))
    stop = next_probe(study)
    assert isinstance(stop, Stop)
    assert stop.failure.startswith("what fits trains something else: such settings ended as")
    study = replace(study, state=StudyState.FAILED, reason=stop.failure)
    found = answer(study)
    assert (found.best, found.alternatives, found.pareto) == (None, (), ())
    assert isinstance(why_none(study, found), TrainsWronglyError)


FEW = {"tp_size": (1,), "gradient_accumulation_steps": (1,), "cpu_offload": (False,),
       "sharding": (Sharding.DDP, Sharding.FULL_SHARD)}  # fmt: skip


def test_the_speed_of_what_is_wrong_is_nothing_to_beat(lab):
    """All that was tried and fits is found to be wrong by replicas: the search goes on."""
    study = study_of(lab, limits={"tolerance": 0.5}, activation_checkpointing=("none",), **FEW)
    fast, slow = learned(study).space.legal
    assert (fast.sharding, slow.sharding) == (Sharding.DDP, Sharding.FULL_SHARD)
    study = replace(study, probes=(lab.probe(1, fast, lab.ok(0.01, GIB)),))
    proposed = next_probe(study)
    assert not isinstance(proposed, ProbeRequest) or proposed.settings == fast
    replica = replica_of(study.question, fast)
    failed = verdict(str(replica.settings), wrong=True, key=replica.key(VERSIONS))
    study = replace(study, guards={failed.key: failed})
    assert fast in learned(study).wrong
    proposed = next_probe(study)
    assert proposed.settings == slow
    spent = next_probe(replace(study, limits=replace(study.limits, max_probes=1)))
    assert isinstance(spent, Stop)
    study = replace(study, probes=(*study.probes, lab.probe(2, slow, lab.ok(0.5, GIB))))
    found = answer(study)
    assert found.best.settings == slow
    (compared,) = (line for line in found.explanation if "sharding=ddp: " in line)
    assert "(#1; trains wrongly)" in compared


def of_the_doctor(**more):
    """That each synchronization is wrong, and the last one right, in all shardings of a node."""
    found = []
    for sharding in ("ddp", "shard_grad_op", "full_shard"):
        text = f"sharding={sharding},gradient_accumulation_steps=3,sync_each_batch"
        found.append(verdict(f"{text}=true", wrong=True, knob="sync_each_batch", **more))
        found.append(verdict(f"{text}=false", **more))
    return {one.key: one for one in found}


def test_no_study_probes_what_is_known_to_be_wrong(lab):
    study = replace(study_of(lab, limits={"max_probes": 30, "tolerance": 0.0}), id="st-1")
    study, _ = played(lab, replace(study, guards=of_the_doctor()), steps_on_each)
    assert wrong_probes(study) == []
    assert answer(study).best is not None


@pytest.mark.parametrize("fidelity", list(Fidelity))
def test_no_fidelity_answers_it(lab, fidelity):
    knobs = {"sync_each_batch": (True,), "gradient_accumulation_steps": (2, 4)}
    asked = {"fidelity": fidelity, "memory_limit_bytes": None}
    plain = study_of(lab, cluster="8xh100-80gb", limits=asked, **{**knobs, "batch": 64})
    assert isinstance(next_probe(plain), ProbeRequest)
    known = replace(plain, guards=of_the_doctor())
    stop = next_probe(known)
    assert isinstance(stop, Stop)
    assert stop.failure.startswith("what fits trains something else: sync_each_batch=true")
    ended = replace(known, state=StudyState.FAILED, reason=stop.failure)
    found = answer(ended)
    assert (found.best, found.alternatives, found.pareto) == (None, (), ())
    assert isinstance(why_none(ended, found), TrainsWronglyError)
    for versions in ({**VERSIONS, "accelerate": "1.14.0"}, {**VERSIONS, "torch": "2.12.0"}):
        other = replace(plain, guards=of_the_doctor(versions=versions))
        assert isinstance(next_probe(other), ProbeRequest)


def test_a_prediction_of_any_model_leaves_it_out(lab):
    limits = {"fidelity": Fidelity.PREDICTED, "memory_limit_bytes": None}
    plain = study_of(lab, cluster="8xh100-80gb", limits=limits, batch=512,
                     gradient_accumulation_steps=(8, 16))  # fmt: skip
    found = answer(replace(plain, guards=of_the_doctor()))
    assert found.best is not None
    shown = [found.best, *found.alternatives, *found.pareto]
    assert not any(steps_on_each(one.settings) for one in shown)
    assert any(MISCOUNTED in line for line in found.explanation)


def predicted(lab, *guards, **limits):
    asked = {"fidelity": Fidelity.PREDICTED, "memory_limit_bytes": None, **limits}
    study = study_of(lab, cluster="8xh100-80gb", limits=asked, batch=64)
    return replace(study, guards={one.key: one for one in guards})


def test_a_checked_one_goes_first_within_the_tolerance(lab):
    plain = answer(predicted(lab, tolerance=0.2)).best.settings
    other = Sharding.FULL_SHARD if plain.sharding is not Sharding.FULL_SHARD else Sharding.DDP
    checkpointing = plain.activation_checkpointing
    guards = [
        verdict(
            f"sharding={other},gradient_accumulation_steps={count},sync_each_batch={sync},"
            f"activation_checkpointing={checkpointing}",
            wrong=False,
        )
        for count in (1, 3)
        for sync in ("true", "false")
    ]
    found = answer(predicted(lab, *guards, tolerance=0.2))
    assert found.best.settings.sharding is other
    assert found.best.guard.verdict == "knobs_passed"
    assert any("were not seen to train what they should" in line for line in found.explanation)
    tight = answer(predicted(lab, *guards, tolerance=0.0))
    assert tight.best.settings == answer(predicted(lab, tolerance=0.0)).best.settings
    assert tight.best.guard.verdict == "unchecked"


def test_a_failure_that_losses_show_is_confirmed_by_a_replica(lab):
    """Probes compare no losses, so that one that runs confirms nothing."""
    fast = parse_settings("sharding=full_shard,micro_batch_size=4,activation_checkpointing=full")
    slow = parse_settings("sharding=full_shard,micro_batch_size=4")
    study = study_of(lab)
    probes = (lab.probe(1, fast, lab.ok(1.0, GIB)), lab.probe(2, slow, lab.ok(2.0, GIB)))
    failed = verdict("sharding=ddp,activation_checkpointing=full", wrong=True)
    right = verdict("sharding=ddp")
    study = replace(study, probes=probes, guards={failed.key: failed, right.key: right})
    known = learned(study)
    assert known.wrong[fast].is_unconfirmed
    assert answer(study).best.settings == slow
    assert to_guard(known)[0] == fast
    replica = replica_of(study.question, fast)
    passed = verdict(str(replica.settings), key=replica.key(VERSIONS))
    known = learned(replace(study, guards={**study.guards, passed.key: passed}))
    assert fast not in known.wrong
