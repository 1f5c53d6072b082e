"""A knob that did not act is found by the collectives, whatever the settings say."""

from dataclasses import replace
from itertools import product

from tests.questions import question_about
from tuner.core.configuration import parse_settings
from tuner.core.measurement import Collective, Measurement, Memory, Outcome
from tuner.guard.check import Counts, caused
from workers.measuring.measure import check_knobs

SYNC = "gradient_accumulation_steps=4,sync_each_batch={}"
BOTH = ("true", "false")
FULL = f"sharding=full_shard,{SYNC}"
DDP = f"sharding=ddp,{SYNC}"
TENSOR = "sharding=full_shard,tp_size=2,gradient_accumulation_steps=4,tp_recompute_allgather={}"


def question(model="llama-3.2-1b", cluster="8xh100-80gb"):
    return question_about(model, cluster, tokens=512, batch=64)


def counts(settings, asked=None):
    """What must be counted of settings."""
    asked = asked or question()
    return caused(asked.workload, settings, asked.cluster)


def measured(seen, tracked=4, **found):
    return Measurement(
        outcome=Outcome.OK,
        tracked_accumulation=tracked,
        **found,
        collectives=tuple(
            Collective(op=op, axis=axis, phase=phase, count=count, bytes=1)
            for (op, axis, phase), count in seen.items()
        ),
    )


def outcome(text, acted, asked=None):
    """Of settings whose collectives were those of others."""
    asked = asked or question()
    seen = counts(parse_settings(acted), asked)
    return check_knobs(asked, parse_settings(text), measured(seen)).outcome


def test_a_knob_acts_as_it_says():
    forms = (FULL, DDP, TENSOR, f"{TENSOR},activation_checkpointing=full")
    models = ("llama-3.2-1b", "mixtral-8x7b")
    for form, value, did, model in product(forms, BOTH, BOTH, models):
        expected = Outcome.OK if value == did else Outcome.KNOB_INACTIVE
        found = outcome(form.format(value), form.format(did), question(model))
        assert found is expected, (form, value, did, model)


def test_other_buckets_than_expected_are_no_inactive_knob():
    """DDP fills its buckets in the order in which gradients come."""
    for value in BOTH:
        settings = parse_settings(DDP.format(value))
        seen = counts(settings)
        passes = 4 if value == "true" else 1
        seen["all_reduce", "dp", "backward"] += passes * 3
        assert check_knobs(question(), settings, measured(seen)).outcome is Outcome.OK


def test_a_step_without_accumulation_shows_nothing_of_syncing():
    settings = parse_settings(FULL.format("false"))
    seen = counts(parse_settings("sharding=full_shard"))
    assert check_knobs(question(), settings, measured(seen, 1)).outcome is Outcome.OK


def test_nothing_tracked_and_other_outcomes_stay():
    settings = parse_settings(FULL.format("true"))
    for one in (replace(measured(Counts()), tracked_accumulation=0),
                Measurement(outcome=Outcome.OOM, tracked_accumulation=4)):  # fmt: skip
        assert check_knobs(question(), settings, one) is one


def test_reducing_micro_batches_show_syncing_whatever_the_buckets():
    """One bucket is seen here, where more are expected: the counts are near to neither."""
    for value in BOTH:
        for did in BOTH:
            settings = parse_settings(DDP.format(value))
            seen = Counts({("all_reduce", "dp", "backward"): 4 if did == "true" else 1})
            found = measured(seen, reducing_micro_batches=4 if did == "true" else 1)
            expected = Outcome.OK if value == did else Outcome.KNOB_INACTIVE
            checked = check_knobs(question(), settings, found)
            assert checked.outcome is expected
            if value != did:
                assert checked.detail.startswith(f"sync_each_batch={value} acted as {did}: ")


def test_checkpointing_is_seen_by_the_layers_that_backward_computes():
    """Also where no collective shows it."""
    for form in [DDP, FULL, TENSOR]:
        for value in ["none", "full"]:
            for did in ["none", "full"]:
                settings = parse_settings(f"{form.format('true')},activation_checkpointing={value}")
                layers = 16 * 4
                found = measured(
                    counts(settings),
                    reducing_micro_batches=4,
                    recomputed_layers=layers * (did == "full"),
                )
                checked = check_knobs(question(), settings, found)
                assert checked.outcome is (Outcome.OK if value == did else Outcome.KNOB_INACTIVE)
                if value != did:
                    assert checked.detail == (
                        f"activation_checkpointing={value} acted as {did}: backward computed"
                        f" {layers * (did == 'full')} of {layers} layers again"
                    )


def test_a_fused_loss_is_seen_by_what_the_head_returns():
    for value, whole in product((False, True), (False, True, None)):
        settings = replace(parse_settings(DDP.format("true")), fused_loss=value)
        found = measured(counts(settings), reducing_micro_batches=4, whole_logits=whole)
        acts = whole is None or whole != value
        checked = check_knobs(question(), settings, found)
        assert checked.outcome is (Outcome.OK if acts else Outcome.KNOB_INACTIVE)


def test_a_rung_of_checkpointing_is_told_from_the_others():
    for value, again, products, acted in [
        ("selective", 64, 0, None),
        ("selective", 64, 64 * 6, "full"),  # nothing was kept
        ("every_2", 32, 32 * 6, None),
        ("every_2", 64, 64 * 6, "full"),
        ("full", 64, 0, "selective"),
        ("full", 64, None, None),  # a record from before products were counted
        ("offload", 64, (64 * 6, 2**20), None),
        ("offload", 64, (64 * 6, 0), "full"),  # inputs stayed on the device
        ("full", 64, (64 * 6, 2**20), "offload"),
        ("offload", 64, (None, None), None),  # a script's, which are not counted
    ]:
        settings = parse_settings(f"{DDP.format('true')},activation_checkpointing={value}")
        products, on_host = products if isinstance(products, tuple) else (products, None)
        seen = {"recomputed_layers": again, "recomputed_products": products, "host_bytes": on_host}
        checked = check_knobs(
            question(), settings, measured(counts(settings), reducing_micro_batches=4, **seen)
        )
        assert checked.outcome is (Outcome.KNOB_INACTIVE if acted else Outcome.OK), value
        assert acted is None or f"={value} acted as {acted}: " in checked.detail


def test_offloading_is_seen_by_what_a_device_keeps():
    for cluster, held_gib, outcome in [
        ("8xh100-80gb", 0.0, Outcome.OK),  # buffers alone
        ("8xh100-80gb", 0.29, Outcome.KNOB_INACTIVE),  # an eighth of 1.24 billion in bf16
        ("cpu:8", 0.29, Outcome.OK),  # host memory is all that there is
    ]:
        asked = question(cluster=cluster)
        settings = parse_settings(f"{FULL.format('true')},cpu_offload=true")
        held = {"parameters": int(held_gib * 2**30)}
        memory = Memory(
            allocated_bytes=1, allocated_low_bytes=1, reserved_bytes=1, device_bytes=1,
            overhead_bytes=0, by_phase={}, by_category=held, per_rank_bytes=(1,) * 8,
        )  # fmt: skip
        found = check_knobs(asked, settings, measured(counts(settings, asked), memory=memory))
        assert found.outcome is outcome
        if outcome is Outcome.KNOB_INACTIVE:
            assert "cpu_offload=true acted as false: the device held " in found.detail


def test_a_knob_that_did_not_act_closes_its_class_though_the_probe_ended_early():
    seen = counts(parse_settings(FULL.format("false")))
    found = replace(measured(seen), outcome=Outcome.STOPPED_EARLY)
    acted, did_not = (parse_settings(FULL.format(value)) for value in ("false", "true"))
    assert check_knobs(question(), acted, found) == found
    assert check_knobs(question(), did_not, found).outcome is Outcome.KNOB_INACTIVE
