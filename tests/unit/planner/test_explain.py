import re
from dataclasses import replace
from types import SimpleNamespace

from tuner.core.configuration import parse_settings
from tuner.core.measurement import Measurement, Outcome
from tuner.explain import answer

GIB = 2**30
BASE = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2"
TP = "sharding=ddp,tp_size=2,micro_batch_size=4,gradient_accumulation_steps=2"


def told(lab: SimpleNamespace, *rows: tuple[str, object], **terms: object) -> list[str]:
    """The explanation for probes #1, #2, ... of (settings, measurement), intervals cut out."""
    probes = [lab.probe(n, parse_settings(t), m) for n, (t, m) in enumerate(rows, start=1)]
    found = answer(lab.study(probes=probes, **terms)).explanation
    return [re.sub(r" \(80% interval [^,;)]*\)|, 80% interval [^,;)]*", "", text) for text in found]


def test_the_best_its_rival_and_the_coverage(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        ("sharding=ddp,micro_batch_size=4", lab.ok(2.5, 2 * GIB)),
    )
    assert found[:2] == [
        "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2 takes 2 s for an"
        " optimizer step and needs 1.00 GiB of 4.00 GiB on one device (probe #1; both are"
        " measured).",
        "Next comes sharding=ddp,micro_batch_size=4,gradient_accumulation_steps=1 with 2.5 s"
        " (25% longer) and 2.00 GiB (probe #2).",
    ]
    assert "2 of the 46 legal settings were probed, in 2 probes." in found


def test_speed_and_the_difference_have_intervals(lab: SimpleNamespace) -> None:
    probes = [
        lab.probe(1, parse_settings(BASE), lab.ok({2: [1.9, 2.0, 2.1] * 4}, GIB)),
        lab.probe(2, parse_settings(TP), lab.ok({2: [2.4, 2.5, 2.6] * 4}, GIB)),
    ]
    best, second, *_ = answer(lab.study(probes=probes)).explanation
    assert re.search(r"\(80% interval [12][.\d]* s to 2[.\d]* s\) and needs", best)
    assert re.search(r"2.5 s \(25% longer, 80% interval [.\d]+% to [.\d]+% longer\)", second)


def test_time_that_was_extrapolated_is_predicted(lab: SimpleNamespace) -> None:
    settings = parse_settings("sharding=full_shard,gradient_accumulation_steps=32")
    measured = lab.ok({2: [2.5] * 10, 4: [4.5] * 10}, GIB)
    study = lab.study(lab.question(batch=64), probes=[lab.probe(1, settings, measured)])
    assert "the time is predicted, the memory measured" in answer(study).explanation[0]


def test_the_allocators_configuration_is_told_once(lab: SimpleNamespace) -> None:
    def said(*confs: str) -> list[str]:
        """Of the answer's probes, and slower settings under another configuration."""
        ran = [
            replace(lab.ok(2.0, GIB, count=2), hardware={"allocator_conf": conf} if conf else {})
            for conf in confs
        ]
        other = replace(lab.ok(9.0, GIB), hardware={"allocator_conf": "other:True"})
        rows = [(BASE, one) for one in ran] + [("sharding=ddp,micro_batch_size=4", other)]
        return [text for text in told(lab, *rows) if "ALLOC" in text]

    text = "Its probes ran with PYTORCH_ALLOC_CONF=expandable_segments:True: launch with the same."
    assert said("expandable_segments:True") == [text]
    assert said("expandable_segments:True", "expandable_segments:True") == [text]
    assert said("") == []


def test_a_tie_that_memory_broke(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok({2: [1.9, 2.01, 2.1] * 4}, GIB)),
        ("sharding=ddp,micro_batch_size=4", lab.ok({1: [1.9, 2.0, 2.1] * 4}, 2 * GIB)),
    )
    assert found[1] == (
        "Its speed cannot be told apart from that of the fastest,"
        " sharding=ddp,micro_batch_size=4,gradient_accumulation_steps=1 with 2 s"
        " (0.5% shorter) and 2.00 GiB (probe #2); it needs 1.00 GiB less memory."
    )
    assert not any(line.startswith("Next comes") for line in found)  # it was named already


def test_a_tie_that_simplicity_broke(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        ("sharding=ddp,micro_batch_size=4", lab.ok(2.01, GIB)),
    )
    assert found[0].startswith("sharding=ddp")
    assert found[1].endswith("it has fewer knobs off their default and needs no more memory.")


def test_a_tie_that_changed_nothing(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        ("sharding=ddp,micro_batch_size=4", lab.ok(2.01, 2 * GIB)),
    )
    assert found[1] == (
        "Its speed cannot be told apart from that of #2, none of which is lighter by 1% or more."
    )


def test_what_each_knob_did_the_largest_effect_first(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        (f"{BASE},sync_each_batch=false", lab.ok(2.2, 2 * GIB, count=2)),
        (f"{BASE},activation_checkpointing=full", lab.ok(2.6, GIB // 2, count=2)),
        (f"{BASE},sync_each_batch=false,activation_checkpointing=full", lab.ok(3.0, GIB, count=2)),
        ("sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=4",
         lab.ok(2.4, GIB, count=4)),
    )  # fmt: skip
    effects = [line for line in found if line.startswith("With ")]
    assert effects == [
        "With activation_checkpointing=full instead of none, a step takes 2.6 s (30% longer) and"
        " needs 512 MiB (probe #3 against #1).",
        "With micro_batch_size=1 instead of 2, a step takes 2.4 s (20% longer) and needs 1.00 GiB"
        " (probe #5 against #1).",
        "With sync_each_batch=false instead of true, a step takes 2.2 s (10% longer) and needs"
        " 2.00 GiB (probe #2 against #1).",
    ]


def test_a_knob_whose_other_side_ran_out_of_memory(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        (f"{BASE},sync_each_batch=false", lab.oom(5 * GIB, 4 * GIB)),
    )
    assert (
        "With sync_each_batch=false instead of true, a device would need at least 5.00 GiB"
        " (probe #2)." in found
    )
    assert (
        "Out of memory: sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2,"
        "sync_each_batch=false in backward, needing at least 5.00 GiB (probe #2)." in found
    )


def test_a_faster_one_that_does_not_fit(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        (f"{BASE},sync_each_batch=false", lab.ok(1.6, 5 * GIB, count=2)),
    )
    assert (
        "With sync_each_batch=false instead of true, a step takes 1.6 s (20% shorter) and needs"
        " 5.00 GiB, which does not fit (probe #2 against #1)." in found
    )


def test_a_headline_knob_that_was_compared_elsewhere(lab: SimpleNamespace) -> None:
    found = told(
        lab,
        (BASE, lab.ok(2.0, GIB, count=2)),
        (TP, lab.ok(3.0, GIB, count=2)),
        (f"{TP},tp_recompute_allgather=true", lab.ok(3.3, GIB // 2, count=2)),
    )
    assert (
        "Elsewhere, with tp_recompute_allgather=true instead of false, a step takes 3.3 s (10%"
        " longer) and needs 512 MiB (probe #3 against #2)." in found
    )


def test_an_extrapolated_time_says_so(lab: SimpleNamespace) -> None:
    text = "sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=32"
    question = lab.question(batch=64)
    measured = lab.ok({2: [2.5] * 10, 4: [4.5] * 10}, GIB)
    probe = lab.probe(1, parse_settings(text), measured)
    found = answer(lab.study(question, probes=[probe])).explanation
    assert (
        "Its step time is extrapolated from steps of 2 and 4 micro-batches to 32 (probe #1)."
        in found
    )


def test_other_failures_are_named_with_their_reason(lab: SimpleNamespace) -> None:
    refused = Measurement(outcome=Outcome.INVALID, detail="torchao is not installed")
    found = told(lab, (BASE, refused))
    assert found[0] == "No probe has given a result."
    assert found[1] == (
        "Without a result: sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2"
        " ended as invalid, torchao is not installed (probe #1)."
    )


def test_nothing_fits(lab: SimpleNamespace) -> None:
    found = told(lab, (BASE, lab.ok(2.0, GIB, count=2)), memory_limit_bytes=GIB // 2)
    assert found[:2] == [
        "None of the settings probed was seen to fit in 512 MiB.",
        "The smallest need known is 1.00 GiB on one device, of sharding=full_shard,"
        "micro_batch_size=2,gradient_accumulation_steps=2 (probe #1); the limit is 512 MiB.",
    ]


def test_what_was_ended_early_is_no_failure(lab: SimpleNamespace) -> None:
    slow = replace(lab.ok({2: [3.0, 3.0]}, GIB), outcome=Outcome.STOPPED_EARLY)
    found = told(lab, (BASE, lab.ok(2.0, GIB, count=2)), (f"{BASE},sync_each_batch=false", slow))
    assert (
        "Ended early, slower than the fastest could be: sharding=full_shard,micro_batch_size=2,"
        "gradient_accumulation_steps=2,sync_each_batch=false, about 3 s for a step (probe #2)."
        in found
    )
    assert (
        "With sync_each_batch=false instead of true, a step takes 3 s (50% longer) and needs"
        " 1.00 GiB (probe #2, ended early against #1)." in found
    )
    assert not any(line.startswith("Without a result") for line in found)
