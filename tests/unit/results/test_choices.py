"""What may be chosen, and what each value leads to: as the space itself has it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.results.studies import gpu_question, predicted_study
from tuner.core.configuration import KNOBS, Checkpointing, Settings, Sharding
from tuner.errors import UsageError
from tuner.explain.knobs import CHOSEN
from tuner.results.what_if import Choices
from tuner.space import check_settings, enumerate_space

QUESTIONS = st.builds(
    gpu_question,
    st.sampled_from(["a100-80gb", "2xa100-80gb", "4xa100-80gb", "2x2xa100-80gb"]),
    st.sampled_from([4, 8, 12]),
    st.sampled_from(["torch", "accelerate", "trainer", "nanotron"]),
)
RAW = st.builds(
    Settings,
    sharding=st.sampled_from(Sharding),
    tp_size=st.sampled_from([1, 2, 3, 4]),
    tp_recompute_allgather=st.booleans(),
    pp_size=st.sampled_from([1, 2]),
    micro_batch_size=st.sampled_from([1, 2, 3, 4, 8, 64]),
    sync_each_batch=st.booleans(),
    activation_checkpointing=st.sampled_from(Checkpointing),
    cpu_offload=st.booleans(),
)
"""Mostly not legal."""


@st.composite
def almost_legal(draw):
    """A question, and legal settings of it with some knobs changed, many of which are dead there;
    accumulation is left out."""
    question = draw(QUESTIONS)
    start = draw(st.sampled_from(enumerate_space(question).legal))
    changes = {
        "sharding": draw(st.sampled_from([start.sharding, *Sharding])),
        "tp_recompute_allgather": draw(st.booleans()),
        "sync_each_batch": draw(st.booleans()),
        "cpu_offload": draw(st.sampled_from([False, False, True])),
        "gradient_accumulation_steps": 1,
    }
    return question, Settings.from_dict({**start.as_dict(), **changes})


def of(question):
    return Choices(predicted_study(question))


def of_knob(found, knob):
    return next(choice.values for choice in found.knobs if choice.knob == knob)


@given(question=QUESTIONS)
@settings(max_examples=examples(10))
def test_values_are_those_of_the_space(question):
    found, legal = of(question), enumerate_space(question).legal
    assert [choice.knob for choice in found.knobs] == list(KNOBS)
    for choice in found.knobs:
        assert set(choice.values) == {getattr(one, choice.knob) for one in legal}
        assert len(set(choice.values)) == len(choice.values)
        assert bool(choice.why_one) == (len(choice.values) == 1)
        if KNOBS[choice.knob].kind in (int, bool):
            assert list(choice.values) == sorted(choice.values)


@given(question=QUESTIONS, place=st.integers(0, 10**6))
@settings(max_examples=examples(10))
def test_options_lead_to_all_legal_settings_that_differ_in_one_knob(question, place):
    found = of(question)
    start = found.legal[place % len(found.legal)]
    for knob, options in found.options(start).items():
        for option in options:
            assert option.is_current == (option.value == getattr(start, knob))
            if option.is_current:
                assert option.settings == start
                assert option.why_not == ""
            elif option.settings is None:
                assert option.why_not
            else:
                assert option.settings in found
                acts = getattr(option.settings, knob) == option.value
                assert bool(option.why_not) == (not acts)
        led_to = {option.settings for option in options}
        others = [name for name in CHOSEN if name != knob]
        assert {s for s in found.legal if all(getattr(s, n) == getattr(start, n) for n in others)
                } <= led_to  # fmt: skip


@given(
    asked=st.one_of(almost_legal(), st.tuples(QUESTIONS, RAW)), keep=st.sampled_from(["", *CHOSEN])
)
@settings(max_examples=examples(30))
def test_the_nearest_is_legal_and_keeps_what_was_moved(asked, keep):
    question, raw = asked
    found = of(question)
    nearest = found.nearest(raw.as_dict(), keep)
    assert nearest in found
    try:
        checked = check_settings(question, raw, given=(keep,) if keep else ())
    except UsageError:
        checked = None
    if checked in found:
        assert nearest == checked  # as the space itself collapses what is dead
    elif keep and getattr(raw, keep) in of_knob(found, keep):
        assert getattr(nearest, keep) == getattr(raw, keep)


def test_offloading_is_not_in_a_space_that_was_not_asked_for_it():
    question = gpu_question("2xa100-80gb")
    raw = Settings(sharding=Sharding.FULL_SHARD, cpu_offload=True, micro_batch_size=4)
    assert check_settings(question, raw).cpu_offload
    assert not of(question).nearest(raw.as_dict()).cpu_offload
    asked = of(gpu_question("2xa100-80gb", cpu_offload=(False, True)))
    assert asked.nearest(raw.as_dict()).cpu_offload
