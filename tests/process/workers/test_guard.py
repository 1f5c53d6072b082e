"""Replicas pass in the stack as it is, and each planted fault is caught with its outcome."""

import time
from pathlib import Path

import pytest

from tests.questions import question_about
from tuner.core.configuration import parse_settings
from tuner.core.measurement import CheckState, Outcome
from tuner.core.workload import Optimizer, Precision
from tuner.guard.check import TOLERANCE
from tuner.guard.replica import family_of, replica_of
from workers.launchers.local import series_argv
from workers.replicas import ReplicaTrainer

FAULTY = Path(__file__).with_name("faulty_series.py")
ACCUMULATES = "gradient_accumulation_steps=4"
SYNC = f"sharding=full_shard,{ACCUMULATES},sync_each_batch"
TENSOR = f"tp_size=4,{ACCUMULATES},tp_recompute_allgather"


pytestmark = pytest.mark.xdist_group("ranks")


def question(cluster="8xa100-80gb", optimizer=Optimizer.ADAMW):
    return question_about("tinyllama-1.1b", cluster, tokens=128, batch=64, optimizer=optimizer)


def argv_with(fault):
    def argv(directory):
        usual = list(series_argv(directory))
        at = usual.index("-m")
        usual[at : at + 2] = [str(FAULTY), fault]
        return tuple(part for part in usual if part != "-P")

    return argv


@pytest.fixture
def check(tmp_path, preloaded):
    """``check(fault, *texts)``: the verdicts on settings in a stack with a fault."""

    def run(fault, *texts, precision=Precision.FP32, optimizer=Optimizer.ADAMW):
        def pause(seconds):
            time.sleep(seconds)
            return ""

        cold = argv_with(fault) if fault else series_argv

        def argv(directory):
            return preloaded(cold(directory))

        asked = [
            replica_of(
                question("4xa100-80gb" if "tp_size" in text else "8xa100-80gb", optimizer),
                parse_settings(text),
                precision,
            )
            for text in texts
        ]
        return list(ReplicaTrainer(pause=pause, folder=tmp_path / "guard", argv=argv).train(asked))

    return run


def test_the_stack_as_it_is_passes(check):
    checkpoints = f"{SYNC}=true,activation_checkpointing=full"
    verdicts = check("", f"{SYNC}=true", f"{SYNC}=false", f"{TENSOR}=true", checkpoints)
    # without a detail: the collectives are those of the cost model's list, to the last one
    assert [(v.result, v.outcome, v.detail) for v in verdicts] == [
        (CheckState.PASSED, Outcome.OK, "")
    ] * 4
    assert all(v.worst is not None and v.worst < TOLERANCE[Precision.FP32] / 10 for v in verdicts)
    assert {v.family for v in verdicts} == {family_of(question())}


@pytest.mark.long
def test_bf16_passes_within_its_own_tolerance(check):
    for precision in (Precision.BF16, Precision.BF16_MIXED):
        (verdict,) = check("", f"{SYNC}=false", precision=precision)
        assert verdict.result is CheckState.PASSED
        assert verdict.worst is not None
        assert TOLERANCE[Precision.FP32] < verdict.worst < TOLERANCE[precision]


@pytest.mark.long
def test_an_optimizer_that_steps_on_every_micro_batch(check):
    each, last = check("steps_on_every_micro_batch", f"{SYNC}=true", f"{SYNC}=false")
    assert (each.result, each.outcome) == (CheckState.FAILED, Outcome.WRONG_RESULT)
    assert "the optimizer stepped 18 times instead of 6" in each.detail
    assert last.result is CheckState.PASSED


@pytest.mark.long
def test_a_knob_that_is_ignored(check):
    each, last = check("ignores_sync_each_batch", f"{SYNC}=true", f"{SYNC}=false")
    assert (each.result, each.outcome) == (CheckState.FAILED, Outcome.KNOB_INACTIVE)
    assert each.detail.startswith("sync_each_batch acts as false: ")
    assert each.detail.endswith(": 1 of 3 micro-batches reduced gradients")
    assert last.result is CheckState.PASSED


@pytest.mark.slow
def test_buffers_that_are_used_again_before_backward_reads_them(check):
    texts = (f"{TENSOR}={recomputes},activation_checkpointing=none" for recomputes in (True, False))
    verdicts = check("reuses_buffers", *texts)
    assert [bool(v.settings["tp_recompute_allgather"]) for v in verdicts] == [True, False]
    for verdict in verdicts:
        assert (verdict.result, verdict.outcome) == (CheckState.FAILED, Outcome.WRONG_RESULT)
        assert "of optimizer step" in verdict.detail
        assert "is off by" in verdict.detail
        assert verdict.worst is not None
        assert verdict.worst > 100 * TOLERANCE[Precision.FP32]


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "recomputes"),
    [("overwrites_the_saved_shard", True), ("reuses_a_gathered_buffer", False)],
)
def test_each_fault_of_buffers_is_one_settings_own(check, fault, recomputes):
    off, on = check(fault, *(f"{TENSOR}={value}" for value in (False, True)))
    wrong, right = (on, off) if recomputes else (off, on)
    assert (wrong.result, wrong.outcome) == (CheckState.FAILED, Outcome.WRONG_RESULT)
    assert right.result is CheckState.PASSED


@pytest.mark.long
def test_checkpointing_that_does_not_act(check):
    texts = (f"{SYNC}=false,activation_checkpointing={value}" for value in ("full", "none"))
    full, none = check("ignores_checkpointing", *texts)
    assert (full.result, full.outcome) == (CheckState.FAILED, Outcome.KNOB_INACTIVE)
    assert full.detail.startswith("activation_checkpointing acts as none: backward computed 0 of ")
    assert none.result is CheckState.PASSED
