"""What is asked for, and what its key depends on."""

from dataclasses import replace

import pytest

import tuner.core.framework
from tests.records import VERSIONS
from tuner.client import advance
from tuner.client.cases import DryRuns, Policy, read_case
from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import Framework, FrameworkName, framework
from tuner.core.workload import Optimizer, Precision, ReduceDtype, TensorParallel, Workload
from tuner.dryrun import NotDryRunError, dry_run_versions, plan_dry_runs
from tuner.model import published_model as read
from tuner.model import read_model_config

WORKLOAD = Workload(model=read("llama-3.1-8b"), sequence_length=1024, global_batch_size=64)
CLUSTER = parse_cluster("2x8xh100-80gb")
TORCH = framework("torch", installed=VERSIONS)
FULL_SHARD = Settings(sharding=Sharding.FULL_SHARD)


def plan(workload=WORKLOAD, cluster=CLUSTER, stack=TORCH, settings=FULL_SHARD, versions=VERSIONS):
    return plan_dry_runs(workload, cluster, stack, settings, versions)


def test_attention_without_a_kernel_is_told_and_is_another_class():
    """Grouped queries in fp32 everywhere, and all in bf16 before Ampere."""
    fp32 = replace(WORKLOAD, precision=Precision.FP32)
    ampere, turing = (parse_cluster(f"2x8x{name}") for name in ("a100-80gb", "t4"))
    fused, in_fp32, on_turing = plan(), plan(fp32), plan(cluster=turing)
    assert plan(cluster=ampere) == fused
    told = [one.requests[0]["spec"]["attention_backends"] for one in (fused, in_fp32, on_turing)]
    assert told == [{}, {"unmasked": "math"}, {"unmasked": "math", "masked": "math"}]
    assert on_turing.key != fused.key
    assert plan(fp32, cluster=ampere).key == in_fp32.key


def test_one_sequence_is_asked_for_alone_with_tensor_parallelism():
    found = plan(settings=replace(FULL_SHARD, tp_size=2))
    sizes = [request["micro_batch_sizes"] for request in found.requests]
    assert sizes == [[1], [2, 3], [1], [2, 3]]


def test_a_spec_has_the_fields_that_the_program_reads():
    probe_spec = pytest.importorskip("workers.probe.spec")
    for request in plan(settings=replace(FULL_SHARD, tp_size=2)).requests:
        spec = probe_spec.parse_spec(request["spec"])
        assert (spec.world_size, spec.settings.tp_size, spec.device) == (16, 2, "cuda")


FP32 = ReduceDtype.FP32


def test_the_key_changes_with_whatever_changes_the_result():
    for other in [
        {"workload": replace(WORKLOAD, model=read("llama-3.2-3b"))},
        {"workload": replace(WORKLOAD, sequence_length=2048)},
        {"workload": replace(WORKLOAD, optimizer=Optimizer.SGD)},
        {"workload": replace(WORKLOAD, precision=Precision.BF16_MIXED)},
        {"workload": replace(WORKLOAD, reduce_dtype=FP32)},
        {"cluster": parse_cluster("4x8xh100-80gb")},
        {"cluster": parse_cluster("2x8xcpu")},
        {"settings": replace(FULL_SHARD, sharding=Sharding.SHARD_GRAD_OP)},
        {"settings": replace(FULL_SHARD, tp_size=2)},
        {"settings": replace(FULL_SHARD, sync_each_batch=False)},
        {"settings": replace(FULL_SHARD, activation_checkpointing=Checkpointing.FULL)},
        {"versions": {**VERSIONS, "torch": "2.12.0"}},
        {"versions": {**VERSIONS, "transformers": "5.22.0"}},
        {"versions": {**VERSIONS, "accelerate": "1.16.0"}},
    ]:
        assert plan(**other).key != plan().key


def renamed():
    config = read_model_config(WORKLOAD.model.as_config(), name="another name")
    return replace(WORKLOAD, model=config)


def test_the_key_stays_with_whatever_does_not():
    for other in [
        {"workload": renamed()},
        {"workload": replace(WORKLOAD, global_batch_size=128)},
        {"workload": replace(WORKLOAD, reduce_dtype=ReduceDtype.BF16)},
        {"cluster": parse_cluster("2x8xa100-80gb")},
        {"cluster": parse_cluster("4x4xh100-80gb")},
        {"cluster": replace(CLUSTER, inter_node=Link(bytes_per_s=1e9, latency_s=1e-3))},
        {"stack": framework("accelerate", installed=VERSIONS)},
        {"settings": replace(FULL_SHARD, micro_batch_size=4, gradient_accumulation_steps=2)},
        {"versions": {**VERSIONS, "torchao": "0.18.0", "optuna": "5.0.0"}},
    ]:
        assert plan(**other).key == plan().key
    whole = replace(WORKLOAD, tensor_parallel=TensorParallel.GATHERED_LOGITS)
    for tp_size in (1, 2):  # nothing is split by one
        split = replace(FULL_SHARD, tp_size=tp_size)
        assert (plan(whole, settings=split).key == plan(settings=split).key) is (tp_size == 1)


OLD = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.0.0"}


def test_what_no_dry_run_shows_is_refused():
    for other, reason in [
        ({"stack": Framework(name=FrameworkName.NANOTRON)}, "nanotron"),
        ({"stack": framework("accelerate", installed=OLD)}, "FSDP1"),
        ({"settings": Settings(sharding=Sharding.ZERO1)}, "zero1"),
        ({"settings": replace(FULL_SHARD, pp_size=2)}, "pipeline"),
        ({"settings": replace(FULL_SHARD, cpu_offload=True)}, "cpu_offload"),
        ({"versions": {"transformers": "5.23.0", "accelerate": "1.15.0"}}, "torch is not"),
        ({"workload": replace(WORKLOAD, optimizer=Optimizer.ADAMW_8BIT)}, "torchao is not"),
    ]:
        with pytest.raises(NotDryRunError, match=reason) as raised:
            plan(**other)
        assert reason in raised.value.reason


def test_all_that_make_keys_make_the_same(monkeypatch):
    """A local build and a short version are the release that frameworks name, torchao's too."""
    written = {
        "torch": "2.13+cpu",
        "transformers": "5.23.0",
        "accelerate": "1.15",
        "torchao": "0.15",
        "peft": "0.21.0",
        "bitsandbytes": "0.50.2",
    }
    monkeypatch.setattr("tuner.core.framework.metadata.version", written.__getitem__)
    monkeypatch.setattr(
        "tuner.core.framework._installed", tuner.core.framework._installed.__wrapped__
    )
    monkeypatch.setattr("tuner.client.cases.reading._installed", dict)
    releases = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
    beside = {"torchao": "0.15.0", "peft": "0.21.0", "bitsandbytes": "0.50.2"}
    assert dry_run_versions() == {**releases, **beside}
    asked = {
        "workload": {
            "model": "stories15m",
            "sequence_length": 64,
            "global_batch_size": 8,
            "optimizer": "adamw_8bit",
        },
        "cluster": "2xa100-80gb",
        "framework": {"name": "torch", "versions": {}},
        "settings": {"sharding": "full_shard"},
    }
    case = read_case(asked)
    of_study = advance.plan_here(case.question, case.settings).key
    cache = Keys()
    with DryRuns(cache, Policy.NONE, cache) as dry_runs:
        dry_runs.prepare([case])
    assert cache.asked == [of_study]


class Keys:
    """Keeps nothing, and notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def dry_runs(self, keys):
        """Nothing."""
        self.asked += keys
        return {}

    def keep_dry_run(self, dry_run):
        """Never called."""

    def calibration(self, cluster, versions):
        """Never called."""

    def waiting(self, text):
        """Never called."""

    def note(self, text):
        """Never called."""
