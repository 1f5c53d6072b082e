from dataclasses import replace

import numpy as np
import pytest

from tuner.core.adapter import Adapter
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import KNOBS, Checkpointing, Settings, Sharding
from tuner.core.workload import Loss, Optimizer, Precision, ReduceDtype, Workload
from tuner.model import load_model
from tuner.search.kernel import alike
from tuner.search.trials import CHOICES, DOUBLINGS, settings_features, workload_features

CLUSTER = parse_cluster("2x8xa100-80gb")
BASE = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=4)
OTHER = {
    "sharding": Sharding.SHARD_GRAD_OP,
    "tp_size": 2,
    "tp_recompute_allgather": True,
    "pp_size": 2,
    "cp_size": 2,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "sync_each_batch": False,
    "defer_all_reduce": True,
    "activation_checkpointing": Checkpointing.FULL,
    "cpu_offload": True,
    "fused_loss": True,
}
WORKLOAD = Workload(model=load_model("llama-3.1-8b"), sequence_length=4096, global_batch_size=64)


def test_every_knob_counts():
    for knob in KNOBS:
        one, other = settings_features(
            [BASE, replace(BASE, **{knob: OTHER[knob]})], WORKLOAD, CLUSTER
        )
        assert np.linalg.norm(one - other) >= 1 / max(DOUBLINGS, CHOICES) - 1e-9, knob


def test_doubling_a_size_is_as_far_wherever_it_is():
    rows = settings_features(
        [replace(BASE, micro_batch_size=2**n) for n in range(4)], WORKLOAD, CLUSTER
    )
    steps = np.linalg.norm(np.diff(rows, axis=0), axis=1)
    assert steps == pytest.approx(np.full(3, 1 / DOUBLINGS))
    near = alike(rows, rows)
    assert np.diag(near) == pytest.approx(np.ones(4))
    assert near[0, 1] > near[0, 2] > near[0, 3] > 0
    assert settings_features([], WORKLOAD, CLUSTER).shape[0] == 0


def test_any_two_values_of_a_choice_are_as_far():
    shardings = settings_features(
        [replace(BASE, sharding=kind) for kind in Sharding], WORKLOAD, CLUSTER
    )
    workloads = [
        workload_features(replace(WORKLOAD, **changed), CLUSTER)
        for changed in (
            {},
            {"optimizer": Optimizer.SGD},
            {"optimizer": Optimizer.ADAMW_8BIT},
            {"loss": Loss.FP32},
        )
    ]
    pairs = [(one, other) for n, one in enumerate(shardings) for other in shardings[n + 1 :]]
    for one, other in [*pairs, *((workloads[0], other) for other in workloads[1:])]:
        assert np.linalg.norm(one - other) == pytest.approx(1 / CHOICES)


def test_gradients_reduced_unasked_are_the_run_that_asks_for_it():
    """In bf16 under FSDP, in fp32 under DDP."""
    mixed = replace(WORKLOAD, precision=Precision.BF16_MIXED)
    by_format = {kind: replace(mixed, reduce_dtype=kind) for kind in ReduceDtype}
    unasked = by_format[ReduceDtype.FRAMEWORK]
    for settings, same in ((BASE, ReduceDtype.BF16), (Settings(), ReduceDtype.FP32)):
        for kind in (ReduceDtype.BF16, ReduceDtype.FP32):
            one, other = (
                settings_features([settings], work, CLUSTER) for work in (unasked, by_format[kind])
            )
            apart = 0 if kind is same else 1 / CHOICES
            assert np.linalg.norm(one - other) == pytest.approx(apart)
    assert len({workload_features(one, CLUSTER).tobytes() for one in by_format.values()}) == 1


def test_adapters_are_farther_from_all_of_a_model_than_from_one_another():
    def apart(one, other):
        both = (workload_features(replace(WORKLOAD, adapter=a), CLUSTER) for a in (one, other))
        return float(np.linalg.norm(next(both) - next(both)))

    usual = Adapter()
    others = [Adapter(rank=8), Adapter(target_modules=("q_proj",)), Adapter(dropout=0.0)]
    assert apart(usual, Adapter(alpha=8.0)) == 0
    for other in others:
        assert 0 < apart(usual, other) < min(apart(None, usual), apart(None, other))
    assert apart(None, Adapter(rank=1)) > 1 / CHOICES
