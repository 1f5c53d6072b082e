"""Files with any values in the place of theirs: each is answered or refused, and nothing else."""

import copy
import json
from contextlib import suppress

import pytest
import tomlkit
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.launchfiles.test_programs import AXOLOTL, FULL, LLAMA_FACTORY, TRL
from tests.unit.launchfiles.test_read import DEEPSPEED, FSDP, NANOTRON, TRAINER
from tests.unit.launchfiles.test_syntax import TOML
from tuner.client.files import case_of
from tuner.errors import UsageError
from tuner.launchfiles.files import open_file

AUTO = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
HALF = {**DEEPSPEED, **AUTO}
ENGINE = {"deepspeed": HALF}
SIZED = {"stage": 3, "reduce_bucket_size": 5e8, "offload_param": {"device": "cpu"},
         "offload_optimizer": {"device": "cpu"}}  # fmt: skip
ZERO = {"distributed_type": "DEEPSPEED", "num_processes": 8}
SAMPLES = {
    "accelerate": {**FSDP, "parallelism_config": {"dp_shard_size": 8}},
    "accelerate, fields of DeepSpeed's": {
        **ZERO,
        "mixed_precision": "bf16",
        "deepspeed_config": {"zero_stage": 3, "offload_param_device": "none"},
    },
    "accelerate, DeepSpeed's JSON": {
        **ZERO,
        "deepspeed_config": {"deepspeed_config_file": DEEPSPEED},
    },
    "trainer": {
        **TRAINER,
        "fsdp": ["full_shard"],
        "fsdp_config": {"version": 2},
        "accelerator_config": {"split_batches": False},
        "gradient_checkpointing_kwargs": {"every_n_layers": 1},
        "use_liger_kernel": True,
        "liger_kernel_config": {"cross_entropy": False},
    },
    "trainer, DeepSpeed's JSON": {**TRAINER, **ENGINE},
    "deepspeed": {**DEEPSPEED, "zero_optimization": SIZED, "fp16": {"enabled": False}},
    "nanotron": NANOTRON,
    "axolotl": yaml.safe_load(AXOLOTL),
    "axolotl, FSDP": yaml.safe_load(FULL),
    "axolotl, DeepSpeed's JSON": {**yaml.safe_load(FULL.partition("fsdp_version")[0]), **ENGINE},
    "llama-factory": {**yaml.safe_load(LLAMA_FACTORY), **ENGINE},
    "trl": {**yaml.safe_load(TRL), **ENGINE},
    "torchtitan": tomlkit.parse(TOML).unwrap(),
}
HERE = {"model": "llama-3.1-8b", "sequence_length": 2048, "cluster": "8xh100-80gb"}
LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2**31, 10**400, 0.5, 1e308, float("inf"), float("nan")])
    | st.sampled_from(["", "auto", "none", "true", "3", "cpu", "full_shard", "a\n\x1b"])
)
VALUES = LEAVES | st.sampled_from([[], ["a"], [1], [[]], {}, {"a": 1}, {"enabled": "auto"}, {1: 2}])


def _places(values, path=()):
    for name, value in values.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from _places(value, (*path, name))


def _answered(name, values):
    found = open_file(yaml.safe_dump(values), name.partition(",")[0]).found
    beside = {one: HERE[one] for one in HERE.keys() - found.may.keys()}
    if "micro_batch_size" not in found.knobs:  # the script says it
        needed = dict.fromkeys(found.needs, True)
        beside |= {"global_batch_size": 32, "settings": {"micro_batch_size": 1, **needed}}
    case_of(found, beside)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_file_with_other_values_is_answered_or_refused(name, data):
    values = copy.deepcopy(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from([*_places(values)]))
        inside = values
        for one in path:
            inside = inside[one]
        inside[last] = copy.deepcopy(data.draw(VALUES))  # the next may be put into it
    with suppress(UsageError):
        _answered(name, values)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_as_it_is_is_answered(name):
    _answered(name, SAMPLES[name])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**TRAINER, "deepspeed": {**HALF, "bf16": True}}, "deepspeed.bf16: got true"),
        ({**TRAINER, "deepspeed": {**HALF, "bf16": "auto"}}, "deepspeed.bf16: got 'auto'"),
        ({**DEEPSPEED, "zero_optimization": {"reduce_bucket_size": float("inf")}},
         "zero_optimization.reduce_bucket_size: got inf; must be a number that is finite"),
        ({**DEEPSPEED, "zero_optimization": {"reduce_bucket_size": float("nan")}},
         "zero_optimization.reduce_bucket_size: got nan; must be a number that is finite"),
        ({**TRAINER, "fsdp": [[]]}, "fsdp: got [[]]; must be of auto_wrap, full_shard, offload"),
    ],
)  # fmt: skip
def test_a_value_that_is_none_of_the_field_is_refused(values, said):
    with pytest.raises(UsageError) as caught:
        open_file(json.dumps(values))
    assert said in str(caught.value)


@pytest.mark.parametrize("line", ["on: x", "1: x", "null: x"])
def test_a_name_that_is_no_text_is_refused(line):
    with pytest.raises(UsageError, match="must have names that are texts: put quotes around"):
        open_file(f"{AXOLOTL}{line}\n")
