"""DeepSpeed's JSON: what has an equivalent in ZeRO, and what is refused.

That DeepSpeed 0.19.6 loads the files was seen once: it is not installed where tests run.
"""

import json
from typing import Any

import pytest

from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles import About, export, why_not


def _parts(case: Any, settings: str, **workload: Any) -> Any:
    return case(
        model="llama-3.1-8b", cluster="8xa100-80gb", settings=settings, workload=workload
    ).parts()


@pytest.mark.parametrize(
    ("sharding", "stage"), [("shard_grad_op", 2), ("full_shard", 3), ("ddp", 0)]
)
def test_shardings_are_stages(case: Any, about: About, sharding: str, stage: int) -> None:
    mixed = {"precision": Precision.BF16_MIXED, "reduce_dtype": ReduceDtype.FP32}
    values = json.loads(export("deepspeed", *_parts(case, f"sharding={sharding}", **mixed), about))
    assert values["zero_optimization"] == {"stage": stage}
    assert values["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert values["communication_data_type"] == "fp32"


def test_batch_sizes_agree_as_deepspeed_asserts(case: Any, about: About) -> None:
    settings = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4"
    values = json.loads(export("deepspeed", *_parts(case, settings), about))
    micro, steps = values["train_micro_batch_size_per_gpu"], values["gradient_accumulation_steps"]
    assert values["train_batch_size"] == micro * steps * 8 == 64


def test_bf16_keeps_no_fp32_copies_but_in_nanotrons_way(case: Any, about: About) -> None:
    values = json.loads(export("deepspeed", *_parts(case, "sharding=full_shard"), about))
    assert values["bf16"]["bf16_optimizer_states"] is True
    nanotron = Framework(name=FrameworkName.NANOTRON, versions={"nanotron": "0.4"})
    parts = case(
        model="llama-3.1-8b",
        cluster="8xa100-80gb",
        framework=nanotron,
        settings="sharding=zero1,sync_each_batch=false",
    ).parts()
    values = json.loads(export("deepspeed", *parts, about))
    assert values["zero_optimization"] == {"stage": 1}
    assert values["bf16"] == {"enabled": True}
    assert values["data_types"] == {"grad_accum_dtype": "fp32"}


def test_offloading_keeps_torchs_own_optimizer(case: Any, about: About) -> None:
    settings = "sharding=full_shard,cpu_offload=true"
    parts = _parts(case, settings, optimizer=Optimizer.SGD)
    values = json.loads(export("deepspeed", *parts, about))
    assert values["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert values["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert values["zero_force_ds_cpu_optimizer"] is False
    assert values["zero_allow_untested_optimizer"] is True


@pytest.mark.parametrize(
    ("settings", "workload", "reason"),
    [
        ("sharding=full_shard,tp_size=2", {}, "--knob tp_size=1"),
        ("sharding=hybrid_shard", {}, "no equivalent of hybrid_shard"),
        ("sharding=ddp", {}, "--precision bf16_mixed"),
        ("sharding=full_shard", {"optimizer": Optimizer.ADAMW_8BIT}, "--optimizer adamw"),
        ("sharding=shard_grad_op,cpu_offload=true", {}, "--knob sharding=full_shard"),
        (
            "sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false",
            {},
            "after every micro-batch in ZeRO 3, whatever it is told; ask again with"
            " --knob sync_each_batch=true",
        ),
        (
            "sharding=ddp,gradient_accumulation_steps=2,sync_each_batch=true",
            {"precision": Precision.FP32},
            "at the end of an accumulation only in ZeRO 0, whatever it is told; ask again with"
            " --knob sync_each_batch=false",
        ),
    ],
)
def test_what_has_no_equivalent_is_refused(
    case: Any, settings: str, workload: dict[str, Any], reason: str
) -> None:
    assert reason in str(why_not("deepspeed", *_parts(case, settings, **workload)))
