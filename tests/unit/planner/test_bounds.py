from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.configuration import Checkpointing
from tuner.cost.memory.step import memory_bound
from tuner.cost.prediction import predict
from tuner.planner.knowledge import family, heavier
from tuner.space import enumerate_space


@pytest.mark.parametrize(("cluster", "batch"), [("cpu:2", 8), ("cpu:4", 96), ("8xh100-80gb", 64)])
def test_by_arithmetic_too_they_need_no_less(
    lab: SimpleNamespace, cluster: str, batch: int
) -> None:
    """Of all legal settings; what is dry-run or measured may differ by less than runs do."""
    question = lab.question(cluster, batch, heads=8)
    legal = enumerate_space(question).legal
    by_family = {(family(one), one.micro_batch_size): one for one in legal}
    pairs = [
        (light, heavy)
        for light in legal
        for key in heavier(light)
        if (heavy := by_family.get((key, light.micro_batch_size))) is not None
        and heavy.gradient_accumulation_steps == light.gradient_accumulation_steps
        and heavy != light
    ]
    assert any(
        light.activation_checkpointing is not heavy.activation_checkpointing
        for light, heavy in pairs
    )
    for light, heavy in pairs:
        bounds = [memory_bound(question.workload, s, question.cluster) for s in (light, heavy)]
        assert bounds[0].total_bytes <= bounds[1].total_bytes
        needs = [
            predict(
                question.workload, question.cluster, question.framework, s, limit_bytes=2**62
            ).needed_bytes.value
            for s in (light, heavy)
        ]
        assert needs[0] <= 1.0001 * needs[1]


def test_settings_are_of_their_own_family(lab: SimpleNamespace) -> None:
    for one in enumerate_space(lab.question("cpu:4", 96)).legal:
        assert family(one) in set(heavier(one))
        if one.activation_checkpointing is Checkpointing.FULL:
            kept = replace(one, activation_checkpointing=Checkpointing.NONE)
            assert family(kept) in set(heavier(one))
            assert family(one) not in set(heavier(kept))
