"""Which dry runs stand behind cases, and when they are made."""

from collections import Counter

import pytest

from tuner.client.cases import Finding, Policy, notes_of, read_case
from tuner.client.cases.dry_runs import MOST_OF_A_MODEL
from tuner.core.measurement import Basis

CLASSES = [
    {"sharding": sharding, "activation_checkpointing": checkpointing, "sync_each_batch": sync}
    for sharding in ("ddp", "shard_grad_op", "full_shard")
    for checkpointing in ("none", "full")
    for sync in (True, False)
]
"""Twelve classes, each with one request: the tiny model is run at its own depth."""


def cases_of(lab, settings, **changes):
    return [read_case(lab.case(settings=one, **changes)) for one in settings]


def test_nothing_is_made_unless_wanted(lab, desk):
    cases = cases_of(lab, CLASSES)
    with desk.dry_runs(Policy.NONE) as dry_runs:
        dry_runs.prepare(cases)
        assert all(dry_runs.of(case).profile is None for case in cases)
    assert desk.runner.requests == []
    assert len(desk.cache.asked) == len(CLASSES)


def test_all_are_made_once_and_kept(lab, desk):
    cases = cases_of(lab, CLASSES) + cases_of(lab, CLASSES, workload__global_batch_size=64)
    for _ in range(2):
        with desk.dry_runs(Policy.ALL) as dry_runs:
            dry_runs.prepare(cases)
            assert all(dry_runs.of(case).profile is not None for case in cases)
    assert len(desk.runner.requests) == len(desk.cache.kept) == len(CLASSES)
    assert not desk.runner.open


def test_each_adapter_has_dry_runs_of_its_own(lab, desk):
    adapters = [None, {"method": "lora", "rank": 8}, {"method": "lora", "rank": 16}]
    cases = [cases_of(lab, CLASSES[:1], workload__adapter=one)[0] for one in adapters]
    with desk.dry_runs(Policy.NONE) as dry_runs:
        dry_runs.prepare(cases)
    assert len(set(desk.cache.asked)) == 3


def test_of_a_new_model_the_classes_most_asked_for_are_made(lab, desk):
    often = CLASSES[:MOST_OF_A_MODEL]
    cases = cases_of(lab, [*CLASSES[::-1], *often])
    with desk.dry_runs(Policy.AUTO) as dry_runs:
        dry_runs.prepare(cases)
        made = [case for case in cases if dry_runs.of(case).profile is not None]
    assert len(desk.runner.requests) == MOST_OF_A_MODEL
    assert Counter(map(str, made)) == Counter(map(str, 2 * cases_of(lab, often)))


def test_of_a_known_model_no_more_are_made(lab, desk):
    first, second = cases_of(lab, CLASSES[:2])
    for cases in ([first], [first, second]):
        with desk.dry_runs(Policy.AUTO) as dry_runs:
            dry_runs.prepare(cases)
            found = [dry_runs.of(case).profile for case in cases]
    assert found[0] is not None
    assert found[1] is None
    assert len(desk.runner.requests) == 1


def test_a_failed_dry_run_is_unknown_with_the_operator(lab):
    desk = lab.desk(runner=lab.runner(fails="aten::nonzero"))
    [case] = cases_of(lab, [{"sharding": "full_shard"}])
    for policy, asked in ((Policy.AUTO, 1), (Policy.AUTO, 1), (Policy.ALL, 2)):
        with desk.dry_runs(policy) as dry_runs:
            dry_runs.prepare([case])
            assert "aten::nonzero" in dry_runs.of(case).error
        assert len(desk.runner.requests) == asked  # all means: also what failed before


def test_after_an_accident_every_case_of_the_class_has_arithmetic_and_the_reason(lab):
    """Crashed says nothing of the settings: the operating system ended it."""
    desk = lab.desk(runner=lab.runner(fails="aten::add", kind="Crashed"))
    cases = [lab.case(headroom=share) for share in (0.0, 0.1, 0.2)]
    answers = desk.answer(*cases, policy=Policy.AUTO)
    assert len(desk.runner.requests) == 1
    assert desk.cache.kept == {}  # and so it is tried again
    for found in answers:
        assert found["fits"] is True
        assert found["memory"]["basis"] == Basis.ARITHMETIC
        assert found["provenance"] == "predicted"
        assert any(
            "not dry-run: the dry run did not end well: Crashed" in n for n in found["notes"]
        )


@pytest.mark.parametrize("policy", [Policy.AUTO, Policy.ALL])
def test_without_torch_memory_is_arithmetic_and_it_is_said_once(lab, desk, policy):
    cases = cases_of(lab, CLASSES)
    with desk.dry_runs(policy, versions={}) as dry_runs:
        dry_runs.prepare(cases)
        assert {dry_runs.of(case).profile for case in cases} == {None}
    assert len(desk.watch.notes) == 1
    assert "torch is not installed" in desk.watch.notes[0]
    assert desk.runner.requests == []


def test_tensor_parallel_classes_count_as_the_dry_runs_they_are(lab, desk):
    """Of a class two each, at the tiny model's one depth: three classes, and no fourth."""
    settings = [{**one, "sharding": "full_shard", "tp_size": 2} for one in CLASSES[-4:]]
    cases = cases_of(lab, settings)
    with desk.dry_runs(Policy.AUTO) as dry_runs:
        dry_runs.prepare(cases)
        made = [case for case in cases if dry_runs.of(case).profile is not None]
    assert len(desk.runner.requests) == 2 * len(made) == MOST_OF_A_MODEL


def test_without_torch_what_is_kept_in_the_stated_versions_is_taken(lab, desk):
    first, second = cases_of(lab, CLASSES[:2])
    with desk.dry_runs(Policy.ALL) as dry_runs:
        dry_runs.prepare([first])
        dry_runs.of(first)
    with desk.dry_runs(Policy.AUTO, versions={}) as dry_runs:
        dry_runs.prepare([first, second])
        assert dry_runs.of(first).profile is not None
        assert dry_runs.of(second).profile is None
    assert len(desk.runner.requests) == 1


def test_a_dry_run_with_other_versions_than_stated_is_told(lab):
    [case] = cases_of(lab, CLASSES[:1])
    stated = case.question.framework.versions["torch"]
    note = f"dry-run with torch 1.0.0, not {stated} as stated"
    assert note in notes_of(case, Finding(versions={"torch": "1.0.0"}), None)
    same = Finding(versions={"torch": f"{stated}+cpu"})
    assert not any("as stated" in told for told in notes_of(case, same, None))
