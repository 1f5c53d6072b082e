"""Sentences of facts, and what people are shown in their place."""

import pytest

from tests.unit.planner.conftest import make_ok, make_probe
from tuner.core.answer import Grounds, Reason
from tuner.core.configuration import Settings, Sharding
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.quantity import Change, Provenance, Quantity
from tuner.explain import facts
from tuner.explain.english import knob_rows, shown
from tuner.explain.facts import KnobChange

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
    fields = {
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
PAID = facts.fact(
    "tuning_paid", "It took a while.", wall_s=200.0, rule=FULL, rule_s=2.5, change=LONGER,
    probes=(2,),
)  # fmt: skip
EFFECTS = [
    facts.knob_changes("knob_probed", [PAIR]),
    facts.knob_changes("knob_probed", [TOO_LARGE]),
    facts.knob_changes("knobs_expected", [EXPECTED], grounds=GROUNDS, others_are_known=True),
]

SENTENCES = [
    (
        facts.tied_with_fastest(evaluation(2), GIB, Reason.LIGHTER, change=LONGER, tolerance=None),
        f"Its speed cannot be told apart from that of the fastest, {DDP} with 2 s (25% longer, 80%"
        " interval 20% to 30% longer) and 1.00 GiB (probe #2); the answer needs 1.00 GiB less"
        " memory.",
    ),
    (
        EFFECTS[0],
        "One knob changed, in step and memory: sync_each_batch=false: +25.0% (20 to 30) +1.00 GiB"
        " (#2).",
    ),
    (EFFECTS[1], "One knob changed, in step and memory: tp_size=1: - >5.00 GiB: no fit (#3)."),
    (
        EFFECTS[2],
        "One knob changed, in step and memory: activation_checkpointing=full: +25.0% (20 to 30) -"
        " (predicted).",
    ),
    (
        facts.failed((CRASHED,) * 4, Fidelity.PREDICTED),
        "Unknown, because their dry run failed: "
        + "; ".join(["sharding=ddp ended as crashed, signal 9 (probe #5)"] * 3)
        + "; and 1 more.",
    ),
]


@pytest.mark.parametrize(("fact", "sentence"), SENTENCES)
def test_a_fact_is_said(fact, sentence):
    assert str(fact) == sentence


def test_the_table_of_knobs_stands_for_their_sentences():
    done = facts.fact("coverage", "2 were probed.", probed=2)
    found = [*EFFECTS, PAID, done]
    plain = [fact.as_dict() for fact in found]
    assert knob_rows(plain) == [
        ("sync_each_batch=false", "+25.0% (20 to 30)", "+1.00 GiB", "#2"),
        ("tp_size=1", "-", ">5.00 GiB: no fit", "#3"),
        ("activation_checkpointing=full", "+25.0% (20 to 30)", "-", "predicted"),
    ]
    paid, coverage = shown(plain, list(map(str, found)))
    assert paid == (str(PAID), {2})
    assert coverage == ("2 were probed.", set())
    assert list(shown((), ("Of an earlier version.",))) == [("Of an earlier version.", ())]
