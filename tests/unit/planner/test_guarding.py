"""Verdicts close settings, are shown with answers, and finalists without one are looked for."""

from dataclasses import replace

from tests.records import VERSIONS
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.measurement import CheckState, Outcome
from tuner.explain.known import answer
from tuner.guard.check import GuardCheck
from tuner.guard.faults import replicas_of, wrong_of
from tuner.planner import to_guard
from tuner.planner.knowledge import learned

GIB = 2**30
DDP = parse_settings("sharding=ddp,micro_batch_size=4")
MANY = parse_settings("sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2")
FULL = parse_settings("sharding=full_shard,micro_batch_size=4")


def question(lab):
    return replace(lab.question(), framework=framework("torch", VERSIONS, {}))


def verdicts(asked, settings, result):
    outcome = {CheckState.PASSED: Outcome.OK, CheckState.FAILED: Outcome.WRONG_RESULT}
    found = {}
    for replica in replicas_of(asked, settings):
        key = replica.key(VERSIONS)
        found[key] = GuardCheck(
            key=key, family="f", result=result, outcome=outcome.get(result, Outcome.TIMEOUT),
            detail="" if result is CheckState.PASSED else "as planted", versions=VERSIONS,
            date="2026-02-02T00:00:00.000Z", settings=replica.settings.as_dict(),
            ranks=replica.cluster.world_size, precision=str(replica.workload.precision),
        )  # fmt: skip
    return found


def study(lab, guards=None):
    probes = [
        lab.probe(1, DDP, lab.ok(1.0, 2 * GIB)),
        lab.probe(2, FULL, lab.ok(1.5, GIB)),
        lab.probe(3, MANY, lab.ok({2: [2.0] * 10}, GIB)),
    ]
    return replace(lab.study(question(lab), probes=probes), guards=guards or {})


def test_a_verdict_is_shown_with_its_versions_and_date(lab):
    guard = answer(study(lab, verdicts(question(lab), DDP, CheckState.PASSED))).best.guard
    assert guard.as_dict() == {
        "verdict": "passed",
        "versions": VERSIONS,
        "date": "2026-02-02T00:00:00.000Z",
        "why": "",
    }


def test_what_failed_is_not_suggested_anywhere(lab):
    found = answer(study(lab, verdicts(question(lab), DDP, CheckState.FAILED)))
    shown = [found.best, *found.alternatives, *found.pareto]
    assert found.best.settings == FULL
    assert DDP not in [one.settings for one in shown]
    assert MANY in [one.settings for one in shown]  # its replica accumulates, and is another
    assert any("as planted" in line for line in found.explanation)


def test_one_failure_closes_all_sizes(lab):
    known = learned(study(lab, verdicts(question(lab), MANY, CheckState.FAILED)))
    closed = wrong_of(known.study, known.space.legal)
    kinds = {(s.layout, s.gradient_accumulation_steps > 1) for s in closed}
    assert kinds == {(MANY.layout, True)}
    assert len(closed) > 1
    assert not set(closed) & set(known.candidates())


def test_finalists_are_guarded_until_they_have_verdicts(lab):
    assert to_guard(learned(study(lab))) == [DDP]
    undecided = verdicts(question(lab), DDP, CheckState.NOT_CHECKED)
    assert to_guard(learned(study(lab, undecided))) == [DDP]
    assert to_guard(learned(study(lab, verdicts(question(lab), DDP, CheckState.PASSED)))) == []
