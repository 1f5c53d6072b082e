"""The templates: one table of sentences, and what people are shown in their place."""

import pytest

from tests.unit.planner.conftest import make_ok, make_probe
from tuner.core.answer import Grounds, Reason
from tuner.core.configuration import Settings, Sharding
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Basis, Fidelity, Measurement, Outcome
from tuner.core.quantity import Change, Provenance, Quantity
from tuner.explain import facts, predicted
from tuner.explain.english import knob_rows, shown
from tuner.explain.facts import Fact, KnobChange

GIB = 2**30
DDP = "sharding=ddp,micro_batch_size=4,gradient_accumulation_steps=1"
SETTINGS = Settings(micro_batch_size=4)
FULL = Settings(sharding=Sharding.FULL_SHARD)
LONGER = Change(ratio=1.25, low=1.2, high=1.3)
GROUNDS = Grounds(
    by_rules_of_thumb=False,
    at_assumed_rates=True,
    by_other_fidelities=False,
    by_other_studies=False,
)
OOM = make_probe(4, SETTINGS, Measurement(outcome=Outcome.OOM))
CRASHED = make_probe(5, SETTINGS, Measurement(outcome=Outcome.CRASHED, detail="signal 9"))


def quantity(value, provenance=Provenance.MEASURED):
    return Quantity(value=value, low=0.95 * value, high=1.05 * value, provenance=provenance)


def evaluation(number=1, **changes):
    found = Quantity(value=GIB, low=GIB, high=GIB, provenance=Provenance.MEASURED)
    fields: dict[str, object] = {
        "settings": SETTINGS,
        "fidelity": Fidelity.MEASURED,
        "step_time_s": quantity(2.0),
        "allocated_bytes": found,
        "needed_bytes": found,
        "probes": (make_probe(number, SETTINGS, make_ok(2.0, GIB)),),
    }
    return Evaluation(**{**fields, **changes})


PAIR = KnobChange(
    knob="sync_each_batch",
    value=False,
    instead_of=True,
    step=LONGER,
    step_s=2.5,
    needed_bytes=2.0 * GIB,
    memory_bytes=1.0 * GIB,
    probes=(2,),
    against=(1,),
)
TOO_LARGE = KnobChange(
    knob="tp_size",
    value=1,
    instead_of=2,
    needed_bytes=5.0 * GIB,
    at_least=True,
    fits=False,
    probes=(3,),
    against=(1,),
)
EXPECTED = KnobChange(
    knob="activation_checkpointing", value="full", instead_of="none", step=LONGER, pairs=23
)
PAID = facts.TuningPaid(
    wall_s=200.0,
    device_s=400.0,
    step_s=2.0,
    rule=FULL,
    rule_s=2.5,
    change=LONGER,
    probes=(2,),
    grounds=None,
    ended_early=False,
)

SENTENCES: list[tuple[Fact, str]] = [
    (
        facts.Chosen(best=evaluation(), limit_bytes=4 * GIB),
        f"{DDP} takes 2 s for an optimizer step (80% interval 1.9 s to 2.1 s) and needs 1.00 GiB of"
        " 4.00 GiB on one device (probe #1; both are measured).",
    ),
    (
        facts.TiedWithFastest(
            fastest=evaluation(2),
            change=LONGER,
            tolerance=None,
            reason=Reason.LIGHTER,
            spared_bytes=GIB,
        ),
        f"Its speed cannot be told apart from that of the fastest, {DDP} with 2 s (25% longer, 80%"
        " interval 20% to 30% longer) and 1.00 GiB (probe #2); the answer needs 1.00 GiB less"
        " memory.",
    ),
    (
        facts.KnobProbed(changes=(PAIR,)),
        "One knob changed, in step and memory: sync_each_batch=false: +25.0% (20 to 30) +1.00 GiB"
        " (#2).",
    ),
    (
        facts.KnobProbed(changes=(TOO_LARGE,)),
        "One knob changed, in step and memory: tp_size=1: - >5.00 GiB: no fit (#3).",
    ),
    (
        facts.KnobsExpected(changes=(EXPECTED,), grounds=GROUNDS, others_are_known=True),
        "One knob changed, in step and memory: activation_checkpointing=full: +25.0% (20 to 30) -"
        " (predicted).",
    ),
    (
        PAID,
        "Tuning took 3.3 min and 400 device-seconds, earned back after 13 min of training (11 min"
        " to 17 min): the rule of thumb (the least model parallelism, then the fewest knobs off"
        " their default, then the largest micro-batch, of what is expected to fit),"
        " sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=1, takes 2.5 s for a"
        " step (25% longer, 80% interval 20% to 30% longer; probe #2).",
    ),
    (
        facts.Failed(probes=(CRASHED,) * 4, fidelity=Fidelity.PREDICTED),
        "Unknown, because their dry run failed: "
        + "; ".join(["sharding=ddp ended as crashed, signal 9 (probe #5)"] * 3)
        + "; and 1 more.",
    ),
    (
        facts.MoreProbes(
            count=3,
            wall_s=36.0,
            devices=2,
            is_cpu=True,
            mean=0.03,
            most=0.11,
            grounds=GROUNDS,
            next=SETTINGS,
        ),
        "3 more probes, about 36 s on 2 CPU ranks, could gain up to 11% in speed (3.0% on average)"
        " over the fastest known, predicted with assumed rates and corrected by the probes; the"
        f" first would be {DDP}.",
    ),
    (
        predicted.SmallestNeed(smallest=evaluation(), limit_bytes=GIB / 2),
        f"The smallest need known is 1.00 GiB on one device, of {DDP} (probe #1); the limit is 512"
        " MiB.",
    ),
    (
        predicted.MemoryPeak(
            basis=Basis.DRY_RUN,
            peak_bytes=3 * GIB,
            phase="optimizer",
            largest={"parameters": 2 * GIB, "activations": 0.5 * GIB},
            is_all=False,
        ),
        "By a dry run the peak of 3.00 GiB is in the optimizer's step: 2.00 GiB of parameters and"
        " 512 MiB of activations, and the rest is less.",
    ),
]


@pytest.mark.parametrize(("fact", "sentence"), SENTENCES)
def test_a_fact_is_said(fact, sentence):
    assert str(fact) == sentence


def test_every_kind_has_a_sentence():
    kinds = {
        one
        for module in (facts, predicted)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Fact) and one is not Fact
    }
    assert len(kinds) > 40
    assert not [one for one in kinds if not one.says and one.__str__ is Fact.__str__]


def test_the_table_of_knobs_stands_for_their_sentences():
    found = [
        facts.KnobProbed(changes=(PAIR,)),
        facts.KnobProbed(changes=(TOO_LARGE,)),
        facts.KnobsExpected(changes=(EXPECTED,), grounds=GROUNDS, others_are_known=True),
        PAID,
        facts.Coverage(probed=2, legal=46, probes_done=1),
    ]
    plain = [fact.as_dict() for fact in found]
    assert knob_rows(plain) == [
        ("sync_each_batch=false", "+25.0% (20 to 30)", "+1.00 GiB", "#2"),
        ("tp_size=1", "-", ">5.00 GiB: no fit", "#3"),
        ("activation_checkpointing=full", "+25.0% (20 to 30)", "-", "predicted"),
    ]
    paid, coverage = shown(plain, list(map(str, found)))
    assert paid == (str(PAID), {2})
    assert coverage == ("2 of the 46 legal settings were probed, in 1 probe.", set())
    assert list(shown((), ("Of an earlier version.",))) == [("Of an earlier version.", ())]
