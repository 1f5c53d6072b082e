from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, parse_settings
from tuner.core.framework import Framework, FrameworkName, framework
from tuner.core.measurement import Basis, Category
from tuner.core.workload import Workload
from tuner.cost.constants import default_costs
from tuner.cost.memory.device import HOPPER_WORKSPACE_BYTES, WORKSPACE_BYTES
from tuner.cost.pipeline import refused, stage_memory
from tuner.cost.prediction import Peak, predict
from tuner.cost.script import Script
from tuner.model import published_model as read

GIB = 2**30
EIGHT = parse_cluster("8xh100-80gb")
NANOTRON = Framework(name=FrameworkName.NANOTRON)
TORCH = Framework(name=FrameworkName.TORCH)


def workload(model="llama-3.1-8b", sequence_length=4096):
    return Workload(model=read(model), sequence_length=sequence_length, global_batch_size=256)


def predicted(
    text, cluster="8xh100-80gb", framework=NANOTRON, model="llama-3.1-8b", sequence_length=4096
):
    return predict(
        workload(model, sequence_length), parse_cluster(cluster), framework, parse_settings(text)
    )


def value(prediction, name):
    found = getattr(prediction, name).value
    assert found is not None
    return float(found)


def test_what_nanotron_cannot_run_is_refused():
    short = parse_settings("pp_size=8,gradient_accumulation_steps=4")
    assert "micro-batches" in refused(workload(), short)
    empty = parse_settings("pp_size=32,gradient_accumulation_steps=64")
    assert "stage" in refused(workload("llama-3.2-1b"), empty)
    found = predicted(str(short))
    assert not found.fits
    assert found.why


def test_known_peaks_of_34b_parameters():
    for sync, peak_gib in [("true", 39.3), ("false", 92.0)]:
        text = "sharding=full_shard,activation_checkpointing=full,gradient_accumulation_steps=2"
        found = predicted(
            f"{text},sync_each_batch={sync}", "8xa100-80gb", TORCH, "codellama-34b", 1024
        )
        assert value(found, "allocated_bytes") / GIB == pytest.approx(peak_gib, rel=0.05)
        assert found.fits is (peak_gib < 76)
        assert ("GiB" in found.why) is not found.fits


PEAK = Peak(
    total_bytes=30 * GIB,
    phase="backward",
    by_phase={"forward": 20 * GIB, "loss": 29 * GIB, "backward": 30 * GIB, "optimizer": 10 * GIB},
    breakdown={"parameters": 10 * GIB, "activations": 20 * GIB},
)


RUN = {"torch": "2.13.0+cpu", "transformers": "5.23.0", "accelerate": "1.15.0"}
STATED = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}


class FakeProfile:
    def __init__(self):
        self.versions = RUN
        self.asked = []

    def peak(self, micro_batch_size, accumulation):
        self.asked.append((micro_batch_size, accumulation))
        return PEAK


def with_profile(of=TORCH, sharding="full_shard", **more):
    text = f"sharding={sharding},micro_batch_size=3,gradient_accumulation_steps=5"
    profile = FakeProfile()
    found = predict(
        workload(), parse_cluster("8xh100-80gb"), of, parse_settings(text), profile=profile, **more
    )
    assert profile.asked == [(3, 5)]
    return found


def test_what_a_script_keeps_counts_in_its_phase():
    """Keys and values of all layers, and logits, of the step before."""
    plain, kept = with_profile(), with_profile(script=Script(use_cache=True, keeps_outputs=True))
    tokens = 3 * 4096
    cache = 2 * 2 * tokens * 32 * 8 * 128
    logits = 2 * tokens * 128256
    assert kept.by_phase["loss"] - plain.by_phase["loss"] == cache + logits
    assert kept.by_phase["backward"] - plain.by_phase["backward"] == logits
    assert kept.allocated_bytes.value == max(kept.by_phase.values())
    assert sum(kept.breakdown.values()) == pytest.approx(max(kept.by_phase.values()))


def width(prediction):
    """How far below the value the interval of the tensors' memory begins, as a share."""
    assert prediction.allocated_bytes.low is not None
    low = prediction.allocated_bytes.low - 2 * WORKSPACE_BYTES
    return 1 - low / (value(prediction, "allocated_bytes") - 2 * HOPPER_WORKSPACE_BYTES)


def test_a_dry_run_of_another_release_is_no_surer_than_arithmetic():
    for sharding in ["full_shard", "ddp"]:
        for package in sorted(STATED):
            figures = default_costs().memory
            ran = with_profile(framework("torch", STATED), sharding)
            assert width(ran) == pytest.approx(1 - figures.dry_run.low)
            older = {"torch": "2.12.0", "transformers": "5.22.0", "accelerate": "1.14.0"}
            other = with_profile(framework("torch", {**STATED, package: older[package]}), sharding)
            assert width(other) == pytest.approx(1 - figures.arithmetic.low)
            assert other.basis is Basis.DRY_RUN
            assert other.allocated_bytes.value == ran.allocated_bytes.value


def test_a_limit_within_the_interval_of_the_need_is_told():
    needed = with_profile().needed_bytes
    assert needed.low is not None
    assert needed.high is not None
    for limit, told in (
        (needed.low - 1, False), (needed.low + 1, True), (needed.high - 1, True),
        (needed.high + 1, False),
    ):  # fmt: skip
        found = with_profile(limit_bytes=int(limit))
        assert any("lies within the interval" in note for note in found.notes) is told


@given(
    framework=st.sampled_from([NANOTRON, TORCH]),
    sharding=st.sampled_from(["ddp", "full_shard", "shard_grad_op", "hybrid_shard"]),
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2]),
    micro=st.integers(1, 32),
    steps=st.integers(1, 64),
    model=st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "gpt2"]),
)
@settings(max_examples=examples(100))
def test_larger_micro_batches_need_more_memory_and_time(
    framework, sharding, tp, pp, micro, steps, model
):
    nanotron = framework is NANOTRON
    one = Settings.from_dict(
        {
            "sharding": "zero1" if nanotron else sharding,
            "tp_size": tp,
            "pp_size": pp if nanotron else 1,
            "micro_batch_size": micro,
            "gradient_accumulation_steps": steps,
        }
    )
    cluster, question = parse_cluster("2x8xh100-80gb"), workload(model, 1024)
    small = predict(question, cluster, framework, one)
    large = predict(question, cluster, framework, replace(one, micro_batch_size=micro + 1))
    assert min(small.breakdown.values()) >= 0
    assert value(small, "reserved_bytes") <= value(large, "reserved_bytes")
    assert 0 < value(small, "step_time_s") <= value(large, "step_time_s")
    assert small.fits or not large.fits


def test_the_last_stage_has_one_micro_batch_in_flight():
    text = "pp_size=4,gradient_accumulation_steps=32"
    first, last = (
        stage_memory(workload(), parse_settings(text), EIGHT, default_costs(), index)
        for index in (0, 3)
    )
    assert first.held[Category.ACTIVATIONS] > 3 * last.held[Category.ACTIVATIONS]
    assert first.held[Category.LOGITS_AND_LOSS] == 0 < last.held[Category.LOGITS_AND_LOSS]
