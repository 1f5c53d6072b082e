"""Rates are found again in what a machine of known rates would take."""

from dataclasses import replace

import pytest

from tests.unit.cost import calibrations as known
from tuner.core.cluster import parse_cluster
from tuner.cost.calibration_fit import fitted
from workers.calibrate import OPERATIONS, plan

NODE = parse_cluster("8xh100-80gb")


def cases(cluster="8xh100-80gb"):
    return list(plan(parse_cluster(cluster))["cases"])


def test_rates_of_a_node_are_found_again():
    found = known.calibration_of(cases(), NODE)
    rates = found.compute["bf16"]
    assert rates.flops_per_s.value == pytest.approx(known.FLOPS_PER_S)
    assert rates.small_dim == pytest.approx(known.SMALL_DIM)
    assert found.memory_bytes_per_s.value == pytest.approx(known.COPY_BYTES_PER_S)
    assert rates.layer_host_s == pytest.approx(known.HOST_S, rel=0.02)
    assert rates.traffic_factor == pytest.approx(known.TRAFFIC, rel=0.02)
    assert rates.logit_traffic == pytest.approx(known.LOGIT, rel=0.02)
    assert rates.update_factor == pytest.approx(known.UPDATE)
    assert rates.layers_error < 0.01
    assert found.overlap_cost == pytest.approx(known.LOST)


def test_a_link_is_found_again_in_its_collectives():
    link = known.calibration_of(cases(), NODE).links["intra"]
    assert link.bytes_per_s.value == pytest.approx(known.LINK_BYTES_PER_S, rel=0.05)
    assert link.latency_s == pytest.approx(known.LATENCY_S, rel=0.05)
    assert link.error < 0.02
    assert link.factors == {op: pytest.approx(1.0, rel=0.02) for op in OPERATIONS}


def test_an_operation_that_is_no_ring_has_a_factor_of_its_own():
    rows = known.readings_of(cases(), NODE)
    slow = [replace(r, seconds=3 * r.seconds) if r.case.get("op") == "reduce_scatter" else r
            for r in rows]  # fmt: skip
    factors = fit(slow).links["intra"].factors
    assert factors["reduce_scatter"] / factors["all_gather"] == pytest.approx(
        3.0, rel=0.05
    )  # a start is no part of it
    assert factors["all_reduce"] == pytest.approx(factors["all_gather"], rel=0.05)


def test_without_copies_or_products_there_is_no_calibration():
    rows = known.readings_of(cases(), NODE)
    with pytest.raises(ValueError, match="copies"):
        fit([r for r in rows if r.kind != "copy"])
    with pytest.raises(ValueError, match="matrix"):
        fit([r for r in rows if r.kind != "matrix"])


def fit(rows):
    return fitted(rows, NODE, versions=known.VERSIONS, at="2026-11-21", wall_s=1.0)
