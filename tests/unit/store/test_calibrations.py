"""Measured rates in the store: the newest of such devices, and with the studies that use them."""

from dataclasses import replace

from sqlalchemy import text

from tests.unit.cost import calibrations as known
from tuner.core.cluster import parse_cluster
from tuner.core.study import Limits

CASES = [
    {"kind": "copy", "dtype": "bf16", "elements": 1024},
    {"kind": "matrix", "dtype": "bf16", "rows": 8, "width": 8},
    {"kind": "matrix", "dtype": "bf16", "rows": 8, "width": 16},
]
TORCH = {"torch": "2.13.0"}


def measured(name, at="2026-11-21T10:00:00+00:00", torch="2.13.0"):
    cluster = parse_cluster(name)
    return known.calibration_of(CASES, cluster, at=at, versions={"torch": torch})


def test_the_newest_counts(store):
    cluster = parse_cluster("8xh100-80gb")
    assert store.calibration(cluster, TORCH) is None
    older, newer = measured("8xh100-80gb"), measured("8xh100-80gb", "2026-11-22T10:00:00+00:00")
    store.keep_calibration(older)
    assert store.calibration(cluster, TORCH) == older
    store.keep_calibration(newer)
    assert store.calibration(cluster, TORCH) == newer


def test_a_node_of_the_same_size_goes_before_newer_ones(store):
    node, one = measured("8xh100-80gb"), measured("h100-80gb")
    store.keep_calibration(node)
    store.keep_calibration(one)
    assert store.calibration(parse_cluster("8xh100-80gb"), TORCH) == node
    assert store.calibration(parse_cluster("4x8xh100-80gb"), TORCH) == node
    assert store.calibration(parse_cluster("2xh100-80gb"), TORCH) == one
    assert store.calibration(parse_cluster("h100-80gb"), TORCH) == one


def test_other_devices_and_other_releases_are_not_these(store):
    cluster = parse_cluster("8xh100-80gb")
    store.keep_calibration(measured("8xh100-80gb", torch="2.13.0+cu130"))
    assert store.calibration(cluster, TORCH) is not None
    assert store.calibration(cluster, {}) is not None
    assert store.calibration(cluster, {"torch": "2.12.0"}) is None
    assert store.calibration(parse_cluster("8xa100-80gb"), TORCH) is None


def test_one_of_another_format_is_as_if_it_were_not_there(store):
    cluster, older = parse_cluster("8xh100-80gb"), measured("8xh100-80gb")
    store.keep_calibration(older)
    store.keep_calibration(replace(older, at="2026-11-22T10:00:00+00:00"))
    with store.transactions.write() as session:
        newest = "(SELECT max(id) FROM calibrations)"
        session.execute(
            text(f"UPDATE calibrations SET record = '{{\"format\": 0}}' WHERE id = {newest}")
        )
    assert store.calibration(cluster, TORCH) == older


def test_a_study_is_read_with_the_rates_of_its_cluster(store, question):
    study = store.ask(question, Limits())
    assert study.calibration is None
    found = measured(question.cluster.name, torch=question.framework.versions["torch"])
    store.keep_calibration(found)
    assert store.study(study.id).calibration == found
