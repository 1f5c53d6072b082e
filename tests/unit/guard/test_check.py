"""A replica passes when its collectives and its figures are those that they must be."""

import pytest

from tests.questions import question_about
from tuner.core.configuration import parse_settings
from tuner.core.measurement import CheckState, Collective, Measurement, Outcome
from tuner.core.workload import Precision
from tuner.guard.check import GuardCheck, caused, judge
from tuner.guard.replica import STEPS, replica_of

FULL = "sharding=full_shard,gradient_accumulation_steps=4"


def replica(precision=Precision.FP32, text=FULL):
    asked = question_about("llama-3.1-8b", "8xa100-80gb", tokens=512, batch=64)
    return replica_of(asked, parse_settings(text), precision)


def counts(of):
    return caused(of.workload, of.settings, of.cluster)


def measured(seen=None, *, off=0.0, step=2):
    """Four steps, of which one has a gradient norm that is off; two more are not compared."""
    norms = [3.0 - i for i in range(STEPS)]
    norms[step] *= 1 + off
    return Measurement(
        outcome=Outcome.OK,
        losses=(4.0, 3.0, 2.0, 1.0, 99.0, 99.0),
        gradient_norms=(*norms[:3], 0.5),
        collectives=tuple(
            Collective(op=op, axis=axis, phase=phase, count=n, bytes=1)
            for (op, axis, phase), n in (seen or {}).items()
        ),
    )


REFERENCE = measured()


def test_a_replica_that_agrees_passes():
    assert judge(replica(), measured(counts(replica()), off=1e-7), REFERENCE) == (
        Outcome.OK,
        "",
        "",
    )


def test_a_difference_is_said_with_its_step_and_size():
    outcome, why, knob = judge(replica(), measured(counts(replica()), off=7e-4), REFERENCE)
    assert outcome is Outcome.WRONG_RESULT
    assert why == (
        "gradient norm of optimizer step 2 is off by 7.0e-04 of one process's, 1e-05 at most"
    )
    assert knob == ""  # losses show none


def test_bf16_has_its_own_tolerance():
    for precision in [Precision.BF16, Precision.BF16_MIXED]:
        one = replica(precision)
        assert judge(one, measured(counts(one), off=3e-3), REFERENCE)[0] is Outcome.OK
        assert judge(one, measured(counts(one), off=5e-2), REFERENCE)[0] is Outcome.WRONG_RESULT


def test_a_knob_that_acts_as_another_value_is_named():
    last = replica(text=f"{FULL},sync_each_batch=false")
    outcome, why, knob = judge(replica(), measured(counts(last)), REFERENCE)
    assert (outcome, knob) == (Outcome.KNOB_INACTIVE, "sync_each_batch")
    assert why.startswith("sync_each_batch acts as false: ")


def test_a_collective_that_no_knob_explains_is_told():
    seen = counts(replica())
    seen["all_to_all", "dp_shard", "forward"] += 1
    outcome, why, _ = judge(replica(), measured(seen), REFERENCE)
    assert outcome is Outcome.OK
    assert why == (
        "it communicates otherwise than is priced: 1 all_to_all over dp_shard in forward instead"
        " of 0"
    )
    assert judge(replica(), measured(seen, off=1e-3), REFERENCE)[0] is Outcome.WRONG_RESULT


def test_a_verdict_survives_json():
    verdict = GuardCheck(
        key="k", family="f", result=CheckState.FAILED, outcome=Outcome.WRONG_RESULT, detail="why",
        structure="s", settings=replica().settings.as_dict(), worst=0.1, versions={"torch": "2"},
        notes=("n",), model_type="llama",
    )  # fmt: skip
    assert GuardCheck.from_dict(verdict.as_dict()) == verdict
    with pytest.raises(ValueError, match="format"):
        GuardCheck.from_dict(verdict.as_dict() | {"format": 0})
