"""Which processes the guard starts, and what it makes of how they end; nothing is trained."""

import pytest

from tests.questions import question_about
from tests.unit.workers.fakes import FakeLauncher
from tuner.core.configuration import parse_settings
from tuner.core.framework import installed_versions
from tuner.core.measurement import CheckState, Outcome
from tuner.guard.check import caused
from tuner.guard.replica import STEPS, replica_of
from workers import replicas as guard_module
from workers.replicas import ReplicaTrainer, check_knobs_here

FULL = "sharding=full_shard,gradient_accumulation_steps=4,sync_each_batch"


def question():
    return question_about("llama-3.2-1b", "8xa100-80gb", tokens=512, batch=64)


def replica(sync):
    return replica_of(question(), parse_settings(f"{FULL}={sync}"))


def asked(*syncs):
    return [replica(sync) for sync in syncs]


def good(spec):
    """A record of a rank that did as it was told."""
    of = replica(str(spec["settings"]["sync_each_batch"]).lower())
    seen = caused(of.workload, of.settings, of.cluster) if spec["world_size"] > 1 else {}
    kinds = [
        {"op": op, "axis": axis, "phase": phase, "count": count, "bytes": 1}
        for (op, axis, phase), count in seen.items()
    ]
    each = spec["settings"]["sync_each_batch"] and spec["world_size"] > 1
    reducing = spec["accumulation_counts"][-1] if each else 1
    return {"outcome": "ok", "collectives": kinds, "reducing_micro_batches": reducing}


TRAINED = {
    "losses": [4.0, 3.0, 2.0, 1.0, 0.9, 0.8],
    "gradient_norms": [1.0] * STEPS,
    "optimizer_steps": 6,
    "expected_optimizer_steps": 6,
    "tracked_accumulation": 1,
    "recomputed_layers": 0,
    "versions": {"torch": "2.13.0+cpu"},
}


def launched(launcher):
    """Of each job: its ranks, and the orders that they followed."""
    return [[run.job.ranks, len(run.orders)] for run in launcher.runs]


@pytest.fixture
def guard(tmp_path):
    def make(does, why=""):
        launcher = FakeLauncher(act=lambda run, spec, number: {**TRAINED, **does(spec)})
        pause = lambda seconds: why  # noqa: E731
        return ReplicaTrainer(pause=pause, launcher=launcher, folder=tmp_path), launcher

    return make


def test_a_reference_is_trained_once_for_all(guard, tmp_path):
    checks, launcher = guard(good)
    first = list(checks.train(asked("true", "false")))
    assert [verdict.result for verdict in first] == [CheckState.PASSED] * 2
    assert launched(launcher) == [[1, 1], [2, 2]]
    assert first[0].key == replica("true").key(installed_versions())
    assert first[0].worst == 0.0
    list(checks.train(asked("true")))
    assert launched(launcher)[2:] == [[2, 1]]
    assert not list(tmp_path.iterdir())


def test_those_after_one_that_failed_are_trained_in_new_processes(guard):
    def does(spec):
        return {"outcome": "crashed"} if spec["settings"]["sync_each_batch"] else good(spec)

    checks, launcher = guard(does)
    each, last = checks.train(asked("true", "false"))
    assert (each.result, each.outcome) == (CheckState.NOT_CHECKED, Outcome.CRASHED)
    assert last.result is CheckState.PASSED
    assert launched(launcher) == [[1, 1], [2, 1], [2, 1]]


def test_what_one_process_cannot_train_says_nothing(guard):
    def does(spec):
        return {"outcome": "non_finite"}

    checks, launcher = guard(does)
    (verdict,) = checks.train(asked("true"))
    assert verdict.result is CheckState.NOT_CHECKED
    assert verdict.detail.startswith("one process could not train it: non_finite")
    list(checks.train(asked("true")))
    assert launched(launcher) == [[1, 1], [2, 1]] * 2  # a bad reference is not remembered


def test_optimizer_steps_count_without_a_reference(guard):
    def does(spec):
        if spec["world_size"] == 1:
            return {"outcome": "crashed"}
        return good(spec) | {"optimizer_steps": 18}

    (verdict,) = guard(does)[0].train(asked("true"))
    assert (verdict.result, verdict.outcome) == (CheckState.FAILED, Outcome.WRONG_RESULT)


def test_a_request_to_stop_starts_nothing_more(guard):
    checks, launcher = guard(good, "stop")
    verdicts = list(checks.train(asked("true", "false")))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.CANCELLED] * 2
    assert [verdict.result for verdict in verdicts] == [CheckState.NOT_CHECKED] * 2
    assert launched(launcher) == []


def test_checkpointing_that_was_not_seen_is_a_dead_knob(guard):
    full = replica_of(question(), parse_settings(f"{FULL}=false,activation_checkpointing=full"))
    (verdict,) = guard(good)[0].train([full])
    assert (verdict.result, verdict.outcome) == (CheckState.FAILED, Outcome.KNOB_INACTIVE)
    assert verdict.detail.startswith("activation_checkpointing acts as none: ")


def test_each_verdict_comes_when_it_is_reached(guard):
    checks, launcher = guard(good)
    verdicts = checks.train(asked("true", "false"))
    assert next(verdicts).key == replica("true").key(installed_versions())
    assert launched(launcher) == [[1, 1], [2, 1]]  # the second replica was not begun
    verdicts.close()
    assert launched(launcher) == [[1, 1], [2, 1]]


@pytest.fixture
def knobs_here(guard, tmp_path, monkeypatch):
    """``knobs_here(does, store)``: what ``tuner doctor --run`` has a worker do."""

    def run(does, store):
        monkeypatch.setattr(guard_module, "ReplicaTrainer", lambda pause: guard(does)[0])
        monkeypatch.setattr(guard_module, "default_lock_path", lambda: tmp_path / "lock")
        cases = [(question(), twin_settings) for twin_settings in CASES]
        monkeypatch.setattr(guard_module, "usual_cases", lambda: iter(cases))
        return check_knobs_here(store, lambda seconds: "")

    return run


CASES = [parse_settings(f"{FULL}=true"), parse_settings(f"{FULL}=false")]


def test_what_the_doctor_found_is_kept_when_it_is_killed(knobs_here, store):
    class KilledError(BaseException):
        """As no code of ours expects it."""

    def does(spec):
        if not spec["settings"]["sync_each_batch"] and spec["world_size"] > 1:
            raise KilledError
        return good(spec)

    with pytest.raises(KilledError):
        knobs_here(does, store)
    (kept,) = store.checks().values()
    assert (kept.result, kept.settings["sync_each_batch"]) == (CheckState.PASSED, True)


def test_the_doctor_comes_to_its_end(knobs_here, store):
    assert knobs_here(good, store)
    assert [verdict.result for verdict in store.checks().values()] == [CheckState.PASSED] * 2
