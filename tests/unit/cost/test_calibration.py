"""Measured rates in the place of published ones: whose they are, and what they change."""

import json
from dataclasses import replace

import pytest

from tests.unit.cost import calibrations as known
from tuner import machine
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Precision, Workload
from tuner.cost.calibration import Calibration, calibrated, calibrated_text, hardware_key, merged
from tuner.cost.constants import default_costs
from tuner.cost.prediction import predict
from tuner.model import load_model
from workers.calibrate import plan

NODE = parse_cluster("8xh100-80gb")
TORCH = Framework(name=FrameworkName.TORCH)
WORKLOAD = Workload(model=load_model("llama-3.2-1b"), sequence_length=2048, global_batch_size=64)
SHARDED = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=4)


def measured(text="8xh100-80gb"):
    cluster = parse_cluster(text)
    return known.calibration_of(plan(cluster)["cases"], cluster)


def step_s(cluster, found):
    return predict(WORKLOAD, cluster, TORCH, SHARDED, calibration=found).step_time_s.value


def test_a_calibration_survives_json():
    found = measured()
    assert Calibration.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    with pytest.raises(ValueError, match="format 0"):
        Calibration.from_dict({**found.as_dict(), "format": 0})


def test_measured_rates_replace_published_ones():
    where, costs = calibrated(measured(), Precision.BF16, NODE, default_costs())
    assert where.gpu.dense_bf16_flops_per_s == pytest.approx(known.FLOPS_PER_S)
    assert where.gpu.memory_bytes_per_s == pytest.approx(known.COPY_BYTES_PER_S)
    assert where.intra_node.bytes_per_s == pytest.approx(known.LINK_BYTES_PER_S, rel=0.05)
    assert costs.torch.small_dim == pytest.approx(known.SMALL_DIM)
    assert costs.time.intra_efficiency == 1.0
    assert costs.time.inter_efficiency == default_costs().time.inter_efficiency
    assert where.inter_node == NODE.inter_node
    assert costs.ring_factors["intra", "reduce_scatter"] == pytest.approx(1.0, rel=0.02)
    assert ("intra", "reduce_scatter") in costs.ring_factors
    assert where.gpu.fp32_flops_per_s == NODE.gpu.fp32_flops_per_s


def test_links_hold_for_nodes_of_the_same_size():
    for asked, links in [
        ("8xh100-80gb", {"intra"}),
        ("h100-80gb", set()),
        ("4xh100-80gb", set()),
        ("4x8xh100-80gb", {"intra"}),
    ]:
        cluster = parse_cluster(asked)
        where, costs = calibrated(measured(), Precision.BF16, cluster, default_costs())
        changed = {
            name for name in ("intra", "inter")
            if getattr(where, f"{name}_node") != getattr(cluster, f"{name}_node")
        }  # fmt: skip
        assert changed == links
        assert costs.calibrated


def test_cpu_ranks_have_a_speed_only_where_it_was_measured():
    cluster = parse_cluster("cpu:2")
    without = predict(WORKLOAD, cluster, TORCH, SHARDED)
    assert without.step_time_s.value is None
    assert "tuner calibrate --cluster cpu:2" in without.why
    assert (step_s(cluster, measured("cpu:2")) or 0) > 0


def test_devices_are_told_apart_by_kind_and_cpu_ranks_by_their_share(monkeypatch):
    assert hardware_key(NODE) == hardware_key(parse_cluster("4x8xh100-80gb"))
    assert hardware_key(NODE) != hardware_key(parse_cluster("8xa100-80gb"))
    two = hardware_key(parse_cluster("cpu:2"))
    assert two not in {hardware_key(parse_cluster(text)) for text in ("cpu:1", "2x1xcpu")}
    monkeypatch.setattr(machine, "processor", lambda: "another")
    assert hardware_key(parse_cluster("cpu:2")) != two


def test_a_stated_rate_of_a_link_stays():
    slow = replace(NODE.intra_node, bytes_per_s=20e9)
    where, costs = calibrated(
        measured(), Precision.BF16, replace(NODE, intra_node=slow), default_costs()
    )
    assert where.intra_node == slow
    assert costs.time.intra_efficiency == default_costs().time.intra_efficiency
    assert "links" not in calibrated_text(measured(), replace(NODE, intra_node=slow))


COPY = {"kind": "copy", "dtype": "bf16", "elements": 1024}
MATRIX = {"kind": "matrix", "dtype": "fp32", "rows": 8, "width": 8}


def timed(case, *seconds):
    return {**case, "seconds": list(seconds)}


def test_the_slowest_rank_counts():
    first, second = timed(COPY, 1.0, 2.0, 9.0), timed(COPY, 3.0, 4.0, 5.0)
    (reading,) = merged([COPY], [[first], [second]])
    assert (reading.seconds, reading.median_s) == (3.0, 4.0)  # of the second rank
    assert (reading.low_s, reading.high_s) == (1.0, 9.0)  # of any
    assert reading.case == COPY


def test_what_is_no_answer_is_refused():
    for rank in [
        [],
        [timed(MATRIX, 1.0)],
        [timed({**COPY, "elements": 1}, 1.0)],
        [timed(COPY)],
        [timed(COPY, 0.0)],
        [timed(COPY, float("inf"))],
        [timed(COPY, 1.0), timed(MATRIX, 1.0)],
    ]:
        with pytest.raises(ValueError, match=r"ranks timed|a rank timed|seconds"):
            merged([COPY], [[timed(COPY, 1.0)], rank])
