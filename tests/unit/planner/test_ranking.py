import pytest

from tuner.core.configuration import parse_settings
from tuner.planner.knowledge import learned
from tuner.planner.ranking import choose, pareto

A = "sharding=ddp,micro_batch_size=4"
B = "sharding=full_shard,micro_batch_size=4"
C = "sharding=full_shard,micro_batch_size=4,activation_checkpointing=full"
TOLERANCE = 0.01


def findings(lab, *rows):
    """Fastest first, from (settings, seconds or steps, MiB)."""
    probes = [
        lab.probe(
            number,
            parse_settings(text),
            lab.ok(seconds if isinstance(seconds, float) else {1: seconds}, mib * lab.MIB),
        )
        for number, (text, seconds, mib) in enumerate(rows, start=1)
    ]
    return learned(lab.study(probes=probes)).fitting


SPREAD = [0.8, 0.9, 0.9, 0.9, 1.0, 1.0, 1.1, 1.1, 1.1, 1.2]
WIDE = [0.9, 0.95, 1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([(A, 1.0, 900), (B, 1.1, 500)], A),
        # within the luck of one run the lighter wins, and no further
        ([(A, 1.0, 900), (B, 1.03, 500)], B),
        ([(A, 1.0, 900), (B, 1.032, 500)], A),
        # overlapping intervals are a tie too
        ([(A, SPREAD, 900), (B, [step + 0.1 for step in SPREAD], 500)], B),
        # of equally light ones the simpler wins
        ([(C, 1.0, 500), (A, 1.005, 500)], A),
        ([(A, 1.0, 900), (C, 1.001, 500), (B, 1.005, 500)], B),
        ([(A, 1.0, 900), (C, 1.001, 500), (B, 1.005, 502)], C),
        # a trifle of memory does not beat the fastest
        ([(A, 1.0, 500), (B, 1.005, 499)], A),
        # C cannot be told apart from A, but B, which can, is faster than C and lighter
        ([(A, 1.0, 900), (B, 1.1, 400), (C, WIDE, 500)], A),
    ],
)
def test_the_fastest_or_the_lightest_of_those_that_tie_with_it(lab, rows, chosen):
    choice = choose(lab.study().question, findings(lab, *rows), TOLERANCE)
    assert choice.best.settings == parse_settings(chosen)


def test_within_the_tolerance_the_lighter_wins(lab):
    found = findings(lab, (A, 1.0, 900), (B, 1.045, 500))
    question = lab.study().question
    assert choose(question, found, 0.044).best is found[0]
    assert choose(question, found, 0.046).best is found[1]


def test_repetitions_tell_apart_what_one_run_does_not(lab):
    once, twice = (
        [
            lab.probe(
                10 * n + k, parse_settings(text), lab.ok(seconds, mib * lab.MIB), repetition=k
            )
            for n, (text, seconds, mib) in enumerate(((A, 1.0, 900), (B, 1.02, 500)), start=1)
            for k in range(runs)
        ]
        for runs in (1, 2)
    )
    question = lab.study().question
    fitting = [learned(lab.study(probes=p)).fitting for p in (once, twice)]
    answers = [choose(question, found, TOLERANCE).best for found in fitting]
    assert [found.settings for found in answers] == [parse_settings(B), parse_settings(A)]


def test_the_front_has_what_nothing_beats_twice(lab):
    found = findings(lab, (A, 1.0, 900), (B, 1.5, 500), (C, 2.0, 600))
    assert [f.seconds for f in pareto(found)] == [1.0, 1.5]
