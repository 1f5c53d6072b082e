import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.configuration import parse_settings
from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Study, StudyState
from tuner.explain import answer
from tuner.explain.probed import rule_of_thumb
from tuner.planner.knowledge import learn
from tuner.planner.outlook import Outlook
from tuner.planner.ranking import complexity

GIB = 2**30
RULE = "sharding=ddp,micro_batch_size=4,gradient_accumulation_steps=1"
BEST = "sharding=ddp,tp_size=2,micro_batch_size=8,gradient_accumulation_steps=1"


def study_of(
    lab: SimpleNamespace, *rows: tuple[str, Measurement], **knobs: tuple[object, ...]
) -> Study:
    probes = [lab.probe(n, parse_settings(t), m) for n, (t, m) in enumerate(rows, start=1)]
    return lab.study(lab.question(**knobs), probes=probes)


def line(study: Study, part: str) -> str:
    (found,) = (text for text in answer(study).explanation if part in text)
    return found


# -- when the tuning has paid for itself ------------------------------------------------------


def test_break_even_is_what_tuning_took_over_what_a_step_saves(lab: SimpleNamespace) -> None:
    cost = {"wall_s": 100.0, "device_s": 200.0}
    study = study_of(lab, (BEST, lab.ok(2.0, GIB, **cost)), (RULE, lab.ok(2.5, GIB, **cost)))
    text = line(study, "rule of thumb")
    assert f"leads to {RULE}, which takes 2.5 s for a step (25% longer, 80% interval" in text
    assert "; probe #2). Against that the tuning, 3.3 min and 400 device-seconds so far," in text
    # 200 s over 0.5 s a step; each of the steps takes 2 s
    assert "has paid for itself after 400 steps, 13 min of training (80% interval" in text
    # a quarter of 24 h, less 200 s
    assert "; a job that takes 24 h with the answer is 5.9 h shorter for it (80% interval" in text


def test_the_interval_of_the_break_even_holds_it(lab: SimpleNamespace) -> None:
    steps = {1: [1.9, 2.0, 2.1] * 4}
    study = study_of(lab, (BEST, lab.ok(steps, GIB)), (RULE, lab.ok(2.5, GIB)))
    found = re.search(
        r"after (\d+) steps.*interval (\d+) steps to (\d+) steps\)", line(study, "rule of thumb")
    )
    assert found is not None
    middle, low, high = map(int, found.groups())
    assert low < middle < high


def test_a_gain_that_is_not_sure_may_never_pay(lab: SimpleNamespace) -> None:
    steps = {1: [1.8, 2.0, 2.2] * 4}
    study = study_of(lab, (BEST, lab.ok(steps, GIB)), (RULE, lab.ok(2.05, 2 * GIB)))
    assert " steps to never); a job that takes 24 h with the answer is" in line(
        study, "rule of thumb"
    )
    assert re.search(r"\(80% interval \d+ min longer to [.\d]+ h\)", line(study, "rule of thumb"))


def test_a_tuning_that_cost_more_than_a_job_saves_is_called_a_loss(lab: SimpleNamespace) -> None:
    cost = {"wall_s": 90_000.0, "device_s": 180_000.0}
    study = study_of(lab, (BEST, lab.ok(2.0, GIB, **cost)), (RULE, lab.ok(2.1, GIB)))
    text = line(study, "rule of thumb")  # 5% of 24 h are saved, and 25 h were spent
    assert " with the answer is 24 h longer for it (80% interval " in text
    assert "shorter" not in text.split("24 h longer", 1)[1]


def test_the_rule_is_told_as_it_is(lab: SimpleNamespace) -> None:
    """A larger micro-batch fits with a knob off its default; the rule keeps to the default."""
    study = study_of(lab, (BEST, lab.ok(2.0, GIB)), (RULE, lab.oom(5 * GIB, 4 * GIB)))
    known = learn(study)
    outlook = Outlook(known)
    found = rule_of_thumb(outlook)
    fitting = [s for s in known.space.legal if outlook.is_expected_to_fit(s) and s.tp_size == 1]
    assert found is not None
    assert found.micro_batch_size < max(s.micro_batch_size for s in fitting)
    assert complexity(found) == min(map(complexity, fitting))
    assert (
        "The rule of thumb, the least model parallelism, then the fewest knobs off their default,"
        " then the largest micro-batch, of what is expected to fit, leads to "
    ) in line(study, "rule of thumb")


def test_a_rule_that_was_not_probed_is_predicted_and_corrected(lab: SimpleNamespace) -> None:
    text = line(study_of(lab, (BEST, lab.ok(0.02, GIB))), "rule of thumb")
    assert f"leads to {RULE}, which takes " in text
    assert "; predicted with assumed rates and corrected by the probes)." in text


def test_the_rule_itself_may_be_best(lab: SimpleNamespace) -> None:
    study = study_of(lab, (RULE, lab.ok(2.0, GIB)), (BEST, lab.ok(2.5, GIB)))
    assert line(study, "rule of thumb").endswith(
        "leads to the same settings: tuning, 4.0 s and 8 device-seconds so far, confirms it."
    )


def test_a_rule_that_is_as_fast_saves_nothing(lab: SimpleNamespace) -> None:
    study = study_of(lab, (RULE, lab.ok(1.99, 2 * GIB)), (BEST, lab.ok(2.0, GIB)))
    assert line(study, "rule of thumb").endswith(
        "That is no slower, so the tuning, 4.0 s and 8 device-seconds so far, has saved no time."
    )


def test_the_rule_keeps_to_what_fits(lab: SimpleNamespace) -> None:
    study = study_of(lab, (BEST, lab.ok(2.0, GIB)), (RULE, lab.oom(5 * GIB, 4 * GIB)))
    known = learn(study)
    found = rule_of_thumb(Outlook(known))
    assert found is not None
    assert found.tp_size == 1
    assert found.micro_batch_size < 4


def test_a_rule_that_was_too_slow_to_be_timed_to_the_end(lab: SimpleNamespace) -> None:
    slow = replace(lab.ok({1: [3.0, 3.0]}, GIB), outcome=Outcome.STOPPED_EARLY)
    text = line(study_of(lab, (BEST, lab.ok(2.0, GIB)), (RULE, slow)), "rule of thumb")
    assert f"leads to {RULE}, which takes 3 s for a step (50% longer" in text
    assert "; probe #2, ended early)" in text


# -- more probes ------------------------------------------------------------------------------


def test_more_probes_cost_what_these_did(lab: SimpleNamespace) -> None:
    walls = (10.0, 12.0, 90.0)
    rows = [
        (BEST, lab.ok(2.0, GIB, wall_s=walls[0])),
        (RULE, lab.ok(2.5, GIB, wall_s=walls[1])),
        ("sharding=full_shard,micro_batch_size=4", lab.ok(2.6, GIB, wall_s=walls[2])),
    ]
    text = line(study_of(lab, *rows), "more probes")
    assert text.startswith("3 more probes, about 36 s on 2 CPU ranks, ")
    assert "predicted with assumed rates and corrected by the probes; the first would be" in text


def test_what_more_probes_may_gain_is_named(lab: SimpleNamespace) -> None:
    """After one probe much is uncertain, so there is something to gain."""
    text = line(study_of(lab, (RULE, lab.ok(2.0, GIB))), "more probes")
    found = re.search(r"could gain up to ([.\d]+)% in speed \(([.\d]+)% on average\)", text)
    assert found is not None
    most, mean = map(float, found.groups())
    assert 0 < mean < most
    assert re.search(r"the first would be sharding=\w+,.*\.$", text)


def test_fewer_than_three_may_be_left(lab: SimpleNamespace) -> None:
    knobs = {"tp_size": (1,), "micro_batch_size": (4,), "activation_checkpointing": ("none",)}
    rows = [(RULE, lab.ok(2.0, GIB)), (RULE.replace("ddp", "full_shard"), lab.ok(2.1, GIB))]
    assert line(study_of(lab, *rows, **knobs), "more probe").startswith("1 more probe, about 2.0 s")


def test_nothing_is_left(lab: SimpleNamespace) -> None:
    knobs = {
        "tp_size": (1,),
        "micro_batch_size": (4,),
        "activation_checkpointing": ("none",),
        "sharding": ("ddp",),
    }
    found = answer(study_of(lab, (RULE, lab.ok(2.0, GIB)), **knobs)).explanation
    assert "Nothing is left that may fit and was not probed: more probes cannot gain." in found


def test_what_is_left_where_nothing_fits_yet(lab: SimpleNamespace) -> None:
    crashed = Measurement(outcome=Outcome.CRASHED, wall_s=1.0, device_s=2.0)
    text = line(study_of(lab, (RULE, crashed)), "that may fit")
    assert re.match(r"\d+ settings that may fit, predicted with assumed rates", text)
    assert "were not probed; the next would be sharding=" in text


# -- why it has ended -------------------------------------------------------------------------


@pytest.mark.parametrize("state", [StudyState.DONE, StudyState.CANCELLED])
def test_why_a_study_ended_is_told_beside_what_it_could_gain(
    lab: SimpleNamespace, state: StudyState
) -> None:
    study = study_of(lab, (RULE, lab.ok(2.0, GIB)))
    ended = replace(study, state=state, reason="no probe is expected to gain 30% or more")
    sentences = answer(ended).explanation
    (gain,) = (n for n, text in enumerate(sentences) if "could gain up to" in text)
    assert sentences[gain + 1] == ("The study has ended: no probe is expected to gain 30% or more.")


def test_a_study_that_goes_on_has_not_ended(lab: SimpleNamespace) -> None:
    study = replace(study_of(lab, (RULE, lab.ok(2.0, GIB))), reason="interrupted")
    assert not [text for text in answer(study).explanation if "has ended" in text]
