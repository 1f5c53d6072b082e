"""torchtitan's TOML: degrees, number formats, models, and what is refused."""

import tomllib
from typing import Any

import pytest

from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles import About, export, why_not

FP32 = {"reduce_dtype": ReduceDtype.FP32}


def _parts(case: Any, settings: str, model: str = "llama-3.1-8b", **more: Any) -> Any:
    given: dict[str, Any] = {"cluster": "2x4xh100-80gb", "workload": FP32, **more}
    return case(model=model, settings=settings, **given).parts()


@pytest.mark.parametrize(
    ("settings", "workload", "degrees"),
    [
        ("sharding=full_shard", FP32, (1, 8, 1, "always")),
        ("sharding=shard_grad_op,tp_size=2", FP32, (1, 4, 2, "never")),
        ("sharding=hybrid_shard,tp_size=2", FP32, (2, 2, 2, "always")),
        ("sharding=ddp", {}, (8, 1, 1, "always")),
    ],
)
def test_degrees_make_the_cluster(
    case: Any, about: About, settings: str, workload: dict[str, Any], degrees: tuple[Any, ...]
) -> None:
    text = export("torchtitan", *_parts(case, settings, workload=workload), about)
    found = tomllib.loads(text)["parallelism"]
    names = ("data_parallel_replicate_degree", "data_parallel_shard_degree")
    others = ("tensor_parallel_degree", "fsdp_reshard_after_forward")
    assert tuple(found[name] for name in (*names, *others)) == degrees
    assert found[names[0]] * found[names[1]] * found[others[0]] == 8


@pytest.mark.parametrize(
    ("precision", "formats"),
    [
        (Precision.BF16, ("bfloat16", "bfloat16")),
        (Precision.BF16_MIXED, ("float32", "bfloat16")),
        (Precision.FP32, ("float32", "float32")),
    ],
)
def test_number_formats(
    case: Any, about: About, precision: Precision, formats: tuple[str, str]
) -> None:
    parts = _parts(case, "sharding=full_shard", workload={**FP32, "precision": precision})
    training = tomllib.loads(export("torchtitan", *parts, about))["training"]
    assert (training["dtype"], training["mixed_precision_param"]) == formats


@pytest.mark.parametrize(
    ("model", "name", "flavor"),
    [
        ("llama-3.1-8b", "llama3", "8B"),
        ("llama-3.1-70b", "llama3", "70B"),
        ("qwen3-8b", "qwen3", "8B"),
        ("qwen3-0.6b", "qwen3", "0.6B"),
        ("mistral-7b-v0.3", "MODEL", "FLAVOR"),
    ],
)
def test_models_are_named_by_their_shape(
    case: Any, about: About, model: str, name: str, flavor: str
) -> None:
    text = export("torchtitan", *_parts(case, "sharding=full_shard", model=model), about)
    assert tomllib.loads(text)["model"] == {"name": name, "flavor": flavor}
    assert ("put one of yours in the place of MODEL and FLAVOR" in text.replace("\n# ", " ")) is (
        name == "MODEL"
    )


@pytest.mark.parametrize(
    ("settings", "more", "reason"),
    [
        (
            "sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false",
            {},
            "--knob sync_each_batch=true",
        ),
        (
            "sharding=full_shard,tp_size=2,tp_recompute_allgather=true",
            {},
            "--knob tp_recompute_allgather=false",
        ),
        ("sharding=full_shard", {"workload": {}}, "--reduce-dtype fp32"),
        (
            "sharding=ddp",
            {"workload": {"precision": Precision.BF16_MIXED}},
            "gradients of fp32 in fp32 only; ask again with --reduce-dtype fp32",
        ),
        ("sharding=full_shard", {"workload": {"optimizer": Optimizer.SGD}}, "--optimizer adamw"),
        ("sharding=full_shard,cpu_offload=true", {"cluster": "l4"}, "offloads to the CPU only"),
        ("sharding=full_shard", {"cluster": "cpu:2", "model": "gpt2"}, "trains on GPUs"),
        (
            "sharding=ddp,tp_size=2",
            {"cluster": "2xl4", "workload": {"precision": Precision.BF16_MIXED}},
            "--precision bf16",
        ),
    ],
)
def test_what_has_no_equivalent_is_refused(
    case: Any, settings: str, more: dict[str, Any], reason: str
) -> None:
    parts = _parts(case, settings, **{"sequence_length": 64, **more})
    assert reason in str(why_not("torchtitan", *parts))
