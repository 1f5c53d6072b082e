"""Facts of an answer on probes, of studies that are made up."""

from dataclasses import replace

import pytest

from tests.unit.results.studies import gpu_question, predicted_study
from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import Measurement, Outcome
from tuner.explain.knobs import only_knob
from tuner.explain.known import answer
from tuner.explain.probed import rule_of_thumb
from tuner.planner.expectation import Expectation
from tuner.planner.knowledge import learned
from tuner.planner.ranking import complexity

GIB = 2**30
BASE = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2"
DDP = "sharding=ddp,micro_batch_size=4"
RULE = f"{DDP},gradient_accumulation_steps=1"
BEST = "sharding=ddp,tp_size=2,micro_batch_size=8,gradient_accumulation_steps=1"
CRASHED = Measurement(outcome=Outcome.CRASHED, wall_s=1.0, device_s=2.0)


def study_of(lab, *rows, knobs=None, **limits):
    """Probes #1, #2, ... of (settings, measurement)."""
    probes = [lab.probe(n, parse_settings(t), m) for n, (t, m) in enumerate(rows, start=1)]
    return lab.study(lab.question(**(knobs or {})), probes=probes, **limits)


def facts_of(study, kind=""):
    return [fact for fact in answer(study).facts if kind in ("", fact["kind"])]


def one(study, kind):
    (found,) = facts_of(study, kind)
    return found


def early(lab, seconds, count=1):
    ended = lab.ok({count: [seconds, seconds]}, GIB)
    return replace(ended, outcome=Outcome.STOPPED_EARLY)


def test_the_best_its_rival_and_the_coverage(lab):
    study = study_of(lab, (BASE, lab.ok(2.0, GIB, count=2)), (DDP, lab.ok(2.5, 2 * GIB)))
    first, second, *_ = facts_of(study)
    assert (first["kind"], second["kind"]) == ("chosen", "next_best")
    assert first["best"]["settings"] == parse_settings(BASE).as_dict()
    assert first["best"]["needed_gib"]["value"] == 1.0
    assert (first["best"]["probes"], second["second"]["probes"]) == ([1], [2])
    assert second["change"]["ratio"] == pytest.approx(1.25)
    assert second["change"]["low"] < 1.25 < second["change"]["high"]
    coverage = {"kind": "coverage", "probed": 2, "legal": 84, "probes_done": 2}
    assert one(study, "coverage") == coverage
    chosen, following, *_, paid, more, seen, ran = answer(study).explanation
    assert chosen == (
        f"{BASE} takes 2 s for an optimizer step (80% interval 1.94 s to 2.06 s) and needs 1.00 GiB"
        " of 4.00 GiB on one device (probe #1; both are measured)."
    )
    assert following == (
        f"Next comes {RULE} with 2.5 s (25% longer, 80% interval 20% to 31% longer) and 2.00 GiB"
        " (probe #2)."
    )
    assert paid == (
        "Tuning took 4.0 s and 8 device-seconds, earned back after 16 s of training (13 s to 20 s):"
        " the rule of thumb (the least model parallelism, then the fewest knobs off their default,"
        f" then the largest micro-batch, of what is expected to fit), {RULE}, takes 2.5 s for a"
        " step (25% longer, 80% interval 20% to 31% longer; probe #2)."
    )
    assert more.startswith("3 more probes, about 6.0 s on 2 CPU ranks, may gain 35% in speed on")
    assert " average, 88% or less nine times in ten, over the fastest known" in more
    assert seen == "2 of the 84 legal settings were probed, in 2 probes."
    assert ran == "This was measured on 2026-01-01 with torch 2.13.0."
    assert len(answer(study).explanation) == len(answer(study).facts)


@pytest.mark.parametrize(
    ("seconds", "size", "kind", "reason"),
    [
        ({1: [1.9, 2.0, 2.1] * 4}, 2 * GIB, "tied_with_fastest", "lighter"),
        (2.01, GIB, "tied_with_fastest", "simpler"),
        (2.01, 2 * GIB, "tied_with_others", None),
    ],
)
def test_what_the_answer_is_tied_with(lab, seconds, size, kind, reason):
    mine = {2: [1.9, 2.01, 2.1] * 4} if isinstance(seconds, dict) else 2.0
    study = study_of(lab, (BASE, lab.ok(mine, GIB, count=2)), (DDP, lab.ok(seconds, size)))
    found = one(study, kind)
    assert found.get("reason") == reason
    if isinstance(seconds, dict):
        assert (found["fastest"]["probes"], found["spared_bytes"]) == ([2], GIB)
        assert found["tolerance"] is None
        assert not facts_of(study, "next_best")  # it was named already


def test_what_each_knob_did_the_largest_effect_first(lab):
    study = study_of(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        (f"{BASE},sync_each_batch=false", lab.ok(2.2, 5 * GIB, count=2)),
        (f"{BASE},activation_checkpointing=full", lab.ok(2.6, GIB // 2, count=2)),
        (f"{BASE},sync_each_batch=false,activation_checkpointing=full", lab.ok(3.0, GIB, count=2)),
        ("sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=4",
         early(lab, 2.4, 4)),
    )  # fmt: skip
    changes = [fact["changes"][0] for fact in facts_of(study, "knob_probed")]
    assert [(c["knob"], c["value"], c["probes"], c["against"]) for c in changes] == [
        ("activation_checkpointing", "full", [3], [1]),
        ("micro_batch_size", 1, [5], [1]),
        ("sync_each_batch", False, [2], [1]),
    ]
    assert [c["step"]["ratio"] for c in changes] == pytest.approx([1.3, 1.2, 1.1])
    assert [c["memory_bytes"] for c in changes] == [-GIB // 2, 0, 4 * GIB]
    assert [c["fits"] for c in changes] == [True, True, False]
    assert [c["ended_early"] for c in changes] == [False, True, False]


def test_a_knob_whose_other_side_ran_out_of_memory(lab):
    short = lab.oom(5 * GIB, 4 * GIB)
    study = study_of(
        lab, (BASE, lab.ok(2.0, GIB, count=2)), (f"{BASE},sync_each_batch=false", short)
    )
    (change,) = one(study, "knob_probed")["changes"]
    assert (change["needed_bytes"], change["at_least"], change["fits"]) == (5 * GIB, True, False)
    assert change["step"] is change["memory_bytes"] is None
    assert one(study, "ran_out_of_memory")["probes"] == [2]


EIGHT = (
    "sharding=full_shard,micro_batch_size=8",
    "sharding=ddp,micro_batch_size=8",
    "sharding=full_shard,micro_batch_size=4,gradient_accumulation_steps=2",
    "sharding=full_shard,tp_size=2,micro_batch_size=8,gradient_accumulation_steps=2",
    "sharding=full_shard,tp_size=2,micro_batch_size=4,gradient_accumulation_steps=4",
    "sharding=shard_grad_op,tp_size=2,tp_recompute_allgather=true,micro_batch_size=8,"
    "gradient_accumulation_steps=2",
)  # of 64 sequences on 8 GPUs; shardings, micro-batches and tp_size differ


def planted(lab, seconds, *rows):
    """A study on 8 GPUs on which ``seconds`` says how long a step takes."""
    probes = [
        lab.probe(n, s, lab.ok(seconds(s), GIB, count=s.gradient_accumulation_steps))
        for n, s in enumerate(map(parse_settings, rows), start=1)
    ]
    return lab.study(lab.question("8xa100-80gb", 64, heads=8), probes=probes)


def of_tp(settings):
    return 3 / settings.tp_size


@pytest.mark.parametrize(
    ("seconds", "rows", "knob"),
    [
        (lambda s: 1 + 2 / s.micro_batch_size, EIGHT, "micro_batch_size"),
        (of_tp, EIGHT, "tp_size"),
        (lambda s: of_tp(s) * (1 + 0.002 * s.micro_batch_size), EIGHT, "tp_size"),
        (lambda s: (1 + 2 / s.micro_batch_size) / s.tp_size, EIGHT, None),  # two matter
        (lambda _: 2.0, EIGHT, None),  # none does
        (lambda s: 3 - 0.24 * (s.tp_size - 1), EIGHT, None),  # by 8%, which is small
        (of_tp, (EIGHT[0], EIGHT[3]), None),  # nothing else differed
    ],
)
def test_one_knob_that_is_all_that_matters(lab, seconds, rows, knob):
    study = planted(lab, seconds, *rows)
    found = only_knob(learned(study))
    assert (found.knob if found else None) == knob
    assert len(facts_of(study, "only_knob")) == (knob is not None)
    if knob == "micro_batch_size" and found:
        assert [group.value for group in found.groups] == [8, 4]
        assert [group.probes for group in found.groups] == [(1, 2, 4, 6), (3, 5)]
        assert found.without_effect == ("sharding", "tp_size", "tp_recompute_allgather")


def test_what_speaks_for_and_against_one_knob(lab):
    # All that is tensor parallel gathers again: no probe tells the two apart.
    together = (*EIGHT[:3], EIGHT[5].replace("shard_grad_op", "full_shard"))
    found = only_knob(learned(planted(lab, of_tp, *together)))
    assert (found.knob, found.confounded) == ("tp_size", ("tp_recompute_allgather",))
    study = planted(lab, of_tp, *EIGHT)
    for text, ended, is_only in (
        (EIGHT[3], early(lab, 9.0, 2), False),
        (EIGHT[0], early(lab, 3.0), True),
    ):
        other = parse_settings(f"{text},activation_checkpointing=full")
        more = replace(study, probes=(*study.probes, lab.probe(7, other, ended)))
        found = only_knob(learned(more))
        assert bool(found) is is_only
    assert [group.early for group in found.groups] == [(), (7,)]


def test_what_no_pair_tells_is_expected(lab):
    study = planted(lab, lambda s: (1 + 2 / s.micro_batch_size) / s.tp_size, *EIGHT)
    found = one(study, "knobs_expected")
    knobs = {change["knob"] for change in found["changes"]}
    assert {"activation_checkpointing", "sync_each_batch"} <= knobs
    assert not {"tp_size", "micro_batch_size"} & knobs  # which probes tell
    assert not found["grounds"]["at_assumed_rates"]
    assert found["others_are_known"]
    again = {
        one["value"]: one for one in found["changes"] if one["knob"] == "activation_checkpointing"
    }
    assert again["full"]["memory_bytes"] < 0 < again["full"]["needed_bytes"]
    assert again["full"]["fits"]
    assert not again["full"]["probes"]
    alone = study_of(lab, (DDP, lab.ok(2.0, GIB)))  # a CPU, with nothing to accumulate or gather
    found = one(alone, "knobs_expected")
    knobs = {change["knob"] for change in found["changes"]}
    assert "activation_checkpointing" in knobs
    assert not {"sync_each_batch", "tp_recompute_allgather"} & knobs
    assert found["grounds"]["at_assumed_rates"]
    assert not found["others_are_known"]


def test_what_tuning_cost_and_against_what(lab):
    cost = {"wall_s": 100.0, "device_s": 200.0}
    study = study_of(lab, (BEST, lab.ok(2.0, GIB, **cost)), (RULE, lab.ok(2.5, GIB)))
    found = one(study, "tuning_paid")
    assert (found["wall_s"], found["device_s"], found["step_s"]) == (102.0, 204.0, 2.0)
    assert found["rule"] == parse_settings(RULE).as_dict()
    assert (found["rule_s"], found["probes"], found["grounds"]) == (2.5, [2], None)
    assert found["change"]["low"] < 1.25 < found["change"]["high"]
    slow = one(study_of(lab, (BEST, lab.ok(2.0, GIB)), (RULE, early(lab, 3.0))), "tuning_paid")
    assert (slow["ended_early"], slow["rule_s"]) == (True, 3.0)
    alone = one(study_of(lab, (BEST, lab.ok(0.02, GIB))), "tuning_paid")
    assert alone["rule"] == parse_settings(RULE).as_dict()
    assert alone["grounds"]["at_assumed_rates"]
    is_best = one(study_of(lab, (RULE, lab.ok(2.0, GIB)), (BEST, lab.ok(2.5, GIB))), "tuning_paid")
    assert is_best["change"] is None


def test_the_rule_keeps_to_defaults_and_to_what_fits(lab):
    study = study_of(lab, (BEST, lab.ok(2.0, GIB)), (RULE, lab.oom(5 * GIB, 4 * GIB)))
    known = learned(study)
    expectation = Expectation(known)
    found = rule_of_thumb(study.question, expectation)
    fitting = [s for s in known.space.legal if expectation.is_expected_to_fit(s) and s.tp_size == 1]
    assert found.tp_size == 1
    assert found.micro_batch_size < 4
    assert found.micro_batch_size < max(s.micro_batch_size for s in fitting)
    fewest = min(complexity(study.question, one) for one in fitting)
    assert complexity(study.question, found) == fewest


def test_what_failed_is_named_by_its_kind(lab):
    refused = Measurement(outcome=Outcome.INVALID, detail="torchao is not installed")
    study = study_of(lab, (BASE, refused))
    assert [fact["kind"] for fact in facts_of(study)][:2] == ["nothing_probed", "failed"]
    assert one(study, "failed")["probes"] == [1]
    ended = (f"{BASE},sync_each_batch=false", early(lab, 3.0, 2))
    study = study_of(lab, (BASE, lab.ok(2.0, GIB, count=2)), ended)
    found = one(study, "ended_early")
    assert (found["probes"], found["seconds"]) == ([2], [3.0])
    assert not facts_of(study, "failed")


def test_other_programs_load_is_said_once_where_it_took_more_than_a_quarter_of_the_cores(lab):
    def beside(others):
        return replace(lab.ok(2.0, GIB, count=2), hardware={"cores": 8, "cores_of_others": others})

    assert not facts_of(study_of(lab, (BASE, beside(2.0)), (DDP, lab.ok(2.5, GIB))), "other_load")
    found = answer(study_of(lab, (BASE, beside(5.93)), (DDP, beside(0.4))))
    (said,) = [text for text in found.explanation if "Other programs" in text]
    assert said == (
        "Other programs used about 5.9 of 8 cores while probe #1 ran: measure again on a quiet"
        " machine."
    )


def test_the_next_best_is_the_next_be_it_of_the_same_layout():
    question = gpu_question("1xa100-80gb", activation_checkpointing=("none",))
    found = answer(predicted_study(question))
    (second,) = (one["second"] for one in found.facts if one["kind"] == "next_best")
    assert second["settings"]["micro_batch_size"] == 4
    assert found.best.settings.layout == Settings.from_dict(second["settings"]).layout
