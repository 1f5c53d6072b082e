from dataclasses import replace

import numpy as np
import pytest

from tuner.cluster import parse_cluster
from tuner.model import load_model, read_model_config
from tuner.search.features import CHOICES, DOUBLINGS, settings_features, workload_features
from tuner.search.kernel import alike
from tuner.settings import KNOBS, Checkpointing, Settings, Sharding
from tuner.workload import Optimizer, ReduceDtype, Workload

CLUSTER = parse_cluster("2x8xa100-80gb")
BASE = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=4)
OTHER = {
    "sharding": Sharding.SHARD_GRAD_OP,
    "tp_size": 2,
    "tp_recompute_allgather": True,
    "pp_size": 2,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "sync_each_batch": False,
    "activation_checkpointing": Checkpointing.FULL,
    "cpu_offload": True,
}


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_counts(knob: str) -> None:
    one, other = settings_features([BASE, replace(BASE, **{knob: OTHER[knob]})], CLUSTER)
    assert np.linalg.norm(one - other) >= 1 / max(DOUBLINGS, CHOICES) - 1e-9


def test_doubling_a_size_is_as_far_wherever_it_is() -> None:
    sizes = [replace(BASE, micro_batch_size=2**n) for n in range(4)]
    rows = settings_features(sizes, CLUSTER)
    steps = np.linalg.norm(np.diff(rows, axis=0), axis=1)
    assert steps == pytest.approx(np.full(3, 1 / DOUBLINGS))


def test_any_two_shardings_are_one_choice_apart() -> None:
    rows = settings_features([replace(BASE, sharding=kind) for kind in Sharding], CLUSTER)
    for n, one in enumerate(rows):
        for other in rows[n + 1 :]:
            assert np.linalg.norm(one - other) == pytest.approx(1 / CHOICES)


def test_likeness_is_one_for_equal_rows_and_fades() -> None:
    sizes = [replace(BASE, micro_batch_size=2**n) for n in range(4)]
    rows = settings_features(sizes, CLUSTER)
    near = alike(rows, rows)
    assert np.diag(near) == pytest.approx(np.ones(4))
    assert near[0, 1] > near[0, 2] > near[0, 3] > 0


def test_no_settings_are_no_rows() -> None:
    assert settings_features([], CLUSTER).shape[0] == 0


WORKLOAD = Workload(model=load_model("llama-3.1-8b"), sequence_length=4096, global_batch_size=64)


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": Optimizer.SGD},
        {"optimizer": Optimizer.ADAMW_8BIT},
        {"reduce_dtype": ReduceDtype.FP32},
    ],
)
def test_a_choice_of_the_workload_is_one_choice_apart(changed: dict[str, object]) -> None:
    one, other = (workload_features(w, CLUSTER) for w in (WORKLOAD, replace(WORKLOAD, **changed)))
    assert np.linalg.norm(one - other) == pytest.approx(1 / CHOICES)


def test_an_architecture_is_a_choice_and_a_name_is_not() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100}
    points = [
        workload_features(replace(WORKLOAD, model=model, sequence_length=16), CLUSTER)
        for model in (
            read_model_config({"model_type": "llama", **sizes}, name="a"),
            read_model_config({"model_type": "llama", **sizes}, name="b"),
            read_model_config({"model_type": "mistral", **sizes}, name="a"),
        )
    ]
    assert points[0].tolist() == points[1].tolist()
    assert np.linalg.norm(points[0] - points[2]) == pytest.approx(1 / CHOICES)
