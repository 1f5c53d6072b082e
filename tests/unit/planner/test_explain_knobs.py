import re
from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import Outcome
from tuner.core.study import Study
from tuner.explain import answer
from tuner.explain.english import say
from tuner.explain.knobs import only_knob
from tuner.planner.knowledge import learn
from tuner.planner.step_times import change_between, fair

GIB = 2**30
SHARDED = "sharding=full_shard,micro_batch_size=8"
EIGHT = (
    SHARDED,
    "sharding=ddp,micro_batch_size=8",
    "sharding=full_shard,micro_batch_size=4,gradient_accumulation_steps=2",
    "sharding=full_shard,tp_size=2,micro_batch_size=8,gradient_accumulation_steps=2",
    "sharding=full_shard,tp_size=2,micro_batch_size=4,gradient_accumulation_steps=4",
    "sharding=shard_grad_op,tp_size=2,tp_recompute_allgather=true,micro_batch_size=8,"
    "gradient_accumulation_steps=2",
)
"""Settings of 64 sequences on 8 GPUs; shardings, micro-batches and tp_size differ."""


def planted(lab: SimpleNamespace, seconds: Callable[[Settings], float], *rows: str) -> Study:
    """A study on 8 GPUs on which ``seconds`` says how long a step takes."""
    probes = [
        lab.probe(n, s, lab.ok(seconds(s), GIB, count=s.gradient_accumulation_steps))
        for n, s in enumerate(map(parse_settings, rows), start=1)
    ]
    return lab.study(lab.question("8xa100-80gb", 64, heads=8), probes=probes)


def test_only_the_micro_batch_matters(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 1 + 2 / s.micro_batch_size, *EIGHT)
    found = answer(study).explanation
    assert (
        "Of what was probed, only micro_batch_size changed the speed: a step takes 1.25 s with"
        " micro_batch_size=8 (probe #1, #2, #4 and 1 more); a step takes 1.5 s with"
        " micro_batch_size=4 (probe #3, #5). Those of the same micro_batch_size cannot be told"
        " apart, though they differ in sharding, tp_size and tp_recompute_allgather." in found
    )


def test_only_tensor_parallelism_matters(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 3 / s.tp_size, *EIGHT)
    (text,) = (t for t in answer(study).explanation if t.startswith("Of what was probed"))
    assert "only tp_size changed the speed: a step takes 1.5 s with tp_size=2" in text
    assert "a step takes 3 s with tp_size=1 (probe #1, #2, #3)" in text
    assert text.endswith("differ in sharding, tp_recompute_allgather and micro_batch_size.")


def test_small_differences_do_not_hide_that_one_knob_matters(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 3 / s.tp_size * (1 + 0.002 * s.micro_batch_size), *EIGHT)
    only = only_knob(learn(study))
    assert only is not None
    assert only.knob == "tp_size"


def test_nothing_is_said_where_two_knobs_matter(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: (1 + 2 / s.micro_batch_size) / s.tp_size, *EIGHT)
    assert only_knob(learn(study)) is None
    assert not any("changed the speed" in text for text in answer(study).explanation)


def test_nothing_is_said_where_no_knob_matters(lab: SimpleNamespace) -> None:
    assert only_knob(learn(planted(lab, lambda _: 2.0, *EIGHT))) is None


def test_nothing_is_said_of_a_small_effect(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 3 - 0.24 * (s.tp_size - 1), *EIGHT)  # 8%
    assert only_knob(learn(study)) is None


def test_nothing_is_said_where_nothing_else_differed(lab: SimpleNamespace) -> None:
    assert only_knob(learn(planted(lab, lambda s: 3 / s.tp_size, EIGHT[0], EIGHT[3]))) is None


def test_knobs_that_changed_together_are_both_named(lab: SimpleNamespace) -> None:
    rows = (
        *EIGHT[:3],
        EIGHT[5].replace("shard_grad_op", "full_shard"),
    )  # all that is tensor parallel gathers again
    only = only_knob(learn(planted(lab, lambda s: 3 / s.tp_size, *rows)))
    assert only is not None
    assert "only tp_size or tp_recompute_allgather changed the speed" in say(only)


def test_a_slow_one_that_was_ended_early_speaks_against_it(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 3 / s.tp_size, *EIGHT)
    slow = replace(lab.ok({2: [9.0, 9.0]}, GIB), outcome=Outcome.STOPPED_EARLY)
    other = parse_settings(f"{EIGHT[3]},activation_checkpointing=full")
    probes = (*study.probes, lab.probe(7, other, slow))
    assert only_knob(learn(replace(study, probes=probes))) is None


def test_a_pair_of_tensor_parallel_sizes_keeps_the_global_batch(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 3 / s.tp_size, EIGHT[0], EIGHT[3])
    (text,) = (t for t in answer(study).explanation if t.startswith("With tp_size"))
    assert text.startswith("With tp_size=1 instead of 2, a step takes 3 s (100% longer, 80%")
    assert text.endswith("and needs 1.00 GiB (probe #1 against #2).")


@pytest.mark.parametrize("knob", ["activation_checkpointing", "sync_each_batch"])
def test_what_no_pair_tells_is_predicted_and_corrected(lab: SimpleNamespace, knob: str) -> None:
    study = planted(lab, lambda s: (1 + 2 / s.micro_batch_size) / s.tp_size, *EIGHT)
    (text,) = (t for t in answer(study).explanation if t.startswith("No two probes"))
    assert "predicted and corrected by the probes, a step takes" in text
    pattern = rf"% (longer|shorter) with {knob}=\w+ instead of \w+ \(80% interval [^)]*, \d+ pairs"
    assert re.search(pattern, text)
    assert " with tp_size=" not in text  # which probes tell
    assert " with micro_batch_size=4 " not in text


def test_rates_that_had_to_be_assumed_are_told(lab: SimpleNamespace) -> None:
    settings = parse_settings("sharding=ddp,micro_batch_size=4")
    study = lab.study(probes=[lab.probe(1, settings, lab.ok(2.0, GIB))])  # a CPU
    (text,) = (t for t in answer(study).explanation if t.startswith("No two probes"))
    assert "predicted with assumed rates and corrected by the probes" in text


def test_knobs_that_do_not_act_in_the_answer_are_left_out(lab: SimpleNamespace) -> None:
    settings = parse_settings("sharding=ddp,micro_batch_size=4")  # nothing to accumulate or gather
    study = lab.study(probes=[lab.probe(1, settings, lab.ok(2.0, GIB))])
    (text,) = (t for t in answer(study).explanation if t.startswith("No two probes"))
    assert text.startswith("No two probes tell what knobs do to the answer.")
    assert "activation_checkpointing=full instead of none" in text
    assert "sync_each_batch" not in text
    assert "tp_recompute_allgather" not in text


def test_other_knobs_are_those_that_no_pair_was_probed_of(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 3 / s.tp_size, EIGHT[0], EIGHT[3])
    assert any("No two probes tell what other knobs do" in t for t in answer(study).explanation)


def test_what_was_ended_early_is_named_so(lab: SimpleNamespace) -> None:
    study = planted(lab, lambda s: 3 / s.tp_size, *EIGHT)
    slow = replace(lab.ok({1: [3.0, 3.0]}, GIB), outcome=Outcome.STOPPED_EARLY)
    other = parse_settings(f"{EIGHT[0]},activation_checkpointing=full")
    only = only_knob(learn(replace(study, probes=(*study.probes, lab.probe(7, other, slow)))))
    assert "with tp_size=1 (probe #1, #2, #3 and 1 more; #7 ended early)" in say(only)


def test_a_pair_is_compared_as_the_answer_was_chosen(lab: SimpleNamespace) -> None:
    """One that is a little behind is believed to be less so, by the sentence on its knob too."""
    first, other, *more = EIGHT[1], EIGHT[0], *EIGHT[2:]
    rows = {parse_settings(text): 2.0 + 0.005 * n for n, text in enumerate((first, other, *more))}
    study = planted(lab, rows.__getitem__, *EIGHT)
    known = learn(study)
    (fact,) = (
        f
        for f in answer(study).facts
        if f["kind"] == "knob_probed" and f["changes"][0]["value"] == "full_shard"
    )
    step = fact["changes"][0]["step"]
    pair = [parse_settings(first), parse_settings(other)]
    assert step == asdict(change_between(*(fair(known)[one] for one in pair)))
    assert step != asdict(change_between(*(known.findings[one] for one in pair)))
