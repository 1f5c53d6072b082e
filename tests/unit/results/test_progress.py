"""The way to the answer: it ends at the fastest that the answer knows, and at what it has cost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.planner.conftest import make_ok, make_oom, make_question, make_study, play
from tests.unit.planner.machines import Rough
from tests.unit.results.studies import MIB, measured_study
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Measurement, Outcome
from tuner.core.quantity import UNKNOWN
from tuner.planner.knowledge import learned
from tuner.planner.timing import speed_of
from tuner.results.points import Evidence, progress

FOUR = Settings(micro_batch_size=4)
TWO = Settings(micro_batch_size=2, gradient_accumulation_steps=2)
SHARDED = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
TOKENS = 128 * 8 / 2
"""Of a step of ``make_question()``, by rank."""


@given(
    seed=st.integers(0, 2**31),
    limit_mib=st.sampled_from([1, 130, 260, 4000]),
    trouble=st.sampled_from([0.0, 0.3, 0.9]),
)
@settings(max_examples=examples(8))
def test_it_ends_where_the_answer_is(seed, limit_mib, trouble):
    question = make_question("cpu:2", 12)
    study = make_study(question, memory_limit_bytes=limit_mib * MIB, max_probes=10, seed=seed)
    study, _ = play(study, Rough(study=study, seed=seed, trouble=trouble).run)
    steps = progress(Evidence(study))
    assert [step.number for step in steps] == list(range(1, len(study.probes) + 1))
    fitting = learned(study).fitting
    best = speed_of(fitting[0].step_time_s, question).value if fitting else None
    assert (steps[-1].best if steps else None) == (best and pytest.approx(best))


def test_the_best_so_far():
    told = [
        (TWO, make_ok(2.0, 500 * MIB, count=2)),
        (FOUR, make_oom(900 * MIB, 700 * MIB)),
        (SHARDED, make_ok(1.0, 600 * MIB)),
        (TWO, make_ok(1.5, 500 * MIB, count=2)),
    ]
    steps = progress(Evidence(measured_study(told, limit_mib=700)))
    assert [step.outcome for step in steps] == ["ok", "oom", "ok", "ok"]
    assert [step.best for step in steps] == pytest.approx([TOKENS / 2, TOKENS / 2, TOKENS, TOKENS])
    assert steps[1].tokens_per_s_per_gpu == UNKNOWN
    assert steps[3].tokens_per_s_per_gpu.value == pytest.approx(TOKENS / 1.5)


def test_what_trains_something_else_takes_its_class_with_it():
    wrong = Measurement(outcome=Outcome.WRONG_RESULT)
    told = [(SHARDED, make_ok(2.0, 500 * MIB)), (FOUR, make_ok(1.0, 500 * MIB)),
            (TWO, wrong)]  # fmt: skip
    steps = progress(Evidence(measured_study(told)))
    assert [step.best for step in steps] == pytest.approx([TOKENS / 2, TOKENS, TOKENS / 2])


def test_what_crashed_once_is_closed_alone():
    one = Settings(micro_batch_size=1, gradient_accumulation_steps=4)
    assert one.layout == replace(one, gradient_accumulation_steps=1)
    crashed = Measurement(outcome=Outcome.CRASHED)
    told = [(FOUR, make_ok(1.0, 500 * MIB)), (one, make_ok(0.5, 400 * MIB, count=4)),
            (one, crashed)]  # fmt: skip
    steps = progress(Evidence(measured_study(told)))
    assert [step.best for step in steps] == pytest.approx([TOKENS, TOKENS / 0.5, TOKENS])
