"""Models that are trained in part: frozen parts, and modules trained whole beside an adapter."""

import ast
from dataclasses import replace

import pytest

from tests.unit.launchfiles.cases import ABOUT, STATED, TORCH, Case, trainer
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.cost.prediction import predict
from tuner.dryrun import dry_run_versions, plan_dry_runs
from tuner.errors import UsageError
from tuner.guard.replica import family_of, replica_of
from tuner.launchfiles import export, why_not
from tuner.model import published_model
from tuner.space import enumerate_space

SAVED = Adapter(modules_to_save=("lm_head", "embed_tokens"))
PARTS = [
    {}, {"adapter": Adapter()}, {"adapter": SAVED}, {"frozen": ("embeddings",)},
    {"frozen": ("layers.0-3", "head")},
]  # fmt: skip


def questions():
    model, stack = published_model("llama-3.1-8b"), framework("torch", {}, STATED)
    return [
        Question(
            workload=Workload(model=model, sequence_length=64, global_batch_size=8, **part),
            cluster=parse_cluster("2xa100-80gb"), framework=stack,
        )
        for part in PARTS
    ]  # fmt: skip


def test_it_is_known_by_dry_runs_alone():
    """Each choice is another question; the others' identities stay as they were."""
    asked = questions()
    assert [one.workload.is_traced for one in asked] == [False, False, True, True, True]
    assert len({one.identity for one in asked}) == len({family_of(one) for one in asked}) == 5
    assert "modules_to_save" not in asked[1].workload.as_dict()["adapter"]
    assert "frozen" not in asked[2].workload.as_dict()
    settings, keys, depths = parse_settings("sharding=full_shard"), set(), []
    versions = {**STATED, **dry_run_versions()}
    for one in asked:
        assert Question.from_dict(one.as_dict()) == one
        found = plan_dry_runs(one.workload, one.cluster, one.framework, settings, versions)
        keys.add(found.key)
        depths.append(found.depths)
        assert all(r.get("work", False) is one.workload.is_traced for r in found.requests)
        assert found.requests[0]["spec"].get("frozen", []) == [*one.workload.frozen]
        seen = predict(one.workload, one.cluster, one.framework, settings)
        assert (seen.why == "") is not one.workload.is_traced
        assert ("known by dry runs alone" in seen.why) is one.workload.is_traced
    assert len(keys) == len(asked)
    assert depths == [(4, 6)] * 4 + [(32,)]  # layers are named by their numbers in the whole


def test_it_is_split_by_nothing():
    legal = [enumerate_space(one).legal for one in questions()]
    sizes = [{settings.tp_size for settings in one} for one in legal]
    assert sizes == [{1, 2}, {1}, {1}, {1}, {1}]
    assert not any(settings.fused_loss for one in legal[1:] for settings in one)


def test_a_replica_freezes_what_it_has():
    settings = parse_settings("sharding=full_shard,gradient_accumulation_steps=4")
    twins = [replica_of(one, settings) for one in questions()]
    assert [twin.workload.frozen for twin in twins[-2:]] == [("embeddings",), ("head", "layers.0")]
    assert "of the frozen layers the replica has the first alone" in twins[-1].notes
    assert twins[2].workload.adapter.modules_to_save == SAVED.modules_to_save


def test_an_adapter_beside_experts_is_known_by_dry_runs_alone():
    """peft packs and names what it adapts of them: no name is refused before a dry run."""
    whole = replace(questions()[0].workload, model=published_model("mixtral-8x7b"))
    beside = replace(whole, adapter=Adapter(target_modules=("q_proj", "w1", "w2", "w3")))
    assert (whole.is_traced, beside.is_traced) == (False, True)


def test_what_cannot_be_is_refused():
    whole = questions()[0].workload
    for part, allowed in (
        ("layers..0", "must be embeddings, head, or names"),
        ("layers.0-99999", "must be embeddings, head, or names"),
        ("(a+)+$", "must be embeddings, head, or names"),
        ("a" * 300, "must be embeddings, head, or names"),
    ):
        with pytest.raises(UsageError, match=allowed):
            replace(whole, frozen=(part,))
    with pytest.raises(UsageError, match="64 parts at most"):
        replace(whole, frozen=tuple(f"layers.{i}" for i in range(65)))
    with pytest.raises(UsageError, match="modules_to_save says what is trained beside it"):
        replace(whole, frozen=("head",), adapter=Adapter())
    with pytest.raises(UsageError, match="must be of embed_tokens, lm_head"):
        replace(whole, adapter=Adapter(modules_to_save=("norm",)))
    with pytest.raises(UsageError, match="whose output head is its embedding"):
        replace(whole, model=published_model("llama-3.2-1b"), adapter=SAVED)


def test_files_have_the_code_that_does_it():
    quantized = replace(SAVED, method=AdapterMethod.QLORA)
    for framework_, name in ((TORCH, "accelerate"), (trainer(), "trainer-flags")):
        for part in (*PARTS[2:], {"adapter": quantized}):
            case = Case(settings="sharding=ddp", framework=framework_, workload=part)
            text = export(name, *case.parts(), ABOUT)
            has = 'modules_to_save=["embed_tokens", "lm_head"]' in text
            assert has is ("adapter" in part)
            for frozen in part.get("frozen", ()):
                assert f'"{frozen}"' in text.partition("freeze(model, [")[2]
            assert ("import re" in text) is ("frozen" in part)
    case = Case(settings="sharding=ddp", workload=PARTS[-1])
    code = "\n".join(
        line.removeprefix("#").removeprefix(" ")
        for line in export("accelerate", *case.parts(), ABOUT).splitlines()
        if line.startswith("#")
    )
    start = code.index("def freeze(")
    ast.parse(code[start : code.index("\naccelerator", start)])
    told = export("env", *case.parts(), ABOUT)
    assert "TUNED_FROZEN=head,layers.0-3" in told
    for name in ("torch", "deepspeed", "torchtitan"):
        assert "no frozen parts are written" in (why_not(name, *case.parts()) or "")
