"""What is timed on which cluster."""

from collections import Counter

import pytest

from tuner.core.cluster import parse_cluster
from tuner.cost.calibration_fit import BYTES
from workers.calibrate import CPU, CUDA, QUICK, plan


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("h100-80gb", set()),
        ("cpu:1", set()),
        ("8xh100-80gb", {"intra"}),
        ("cpu:2", {"intra"}),
        ("2x1xcpu", {"inter"}),
        ("2x2xcpu", {"intra", "inter"}),
    ],
)
def test_collectives_are_of_the_groups_that_there_are(name, axes):
    cases = plan(parse_cluster(name))["cases"]
    assert {case["axis"] for case in cases if case["kind"] == "collective"} == axes
    parts = [case["part"] for case in cases if case["kind"] == "both"]
    assert parts == (["matrix", "collective", "both"] if axes else [])


@pytest.mark.parametrize("sizes", [CPU, CUDA, QUICK])
def test_models_are_timed_at_two_depths_and_products_at_several_widths(sizes):
    cases = plan(parse_cluster("cpu:2"), sizes)["cases"]
    shapes = Counter(
        (case["dtype"], case["model"]["hidden_size"]) for case in cases if case["kind"] == "layers"
    )
    assert set(shapes.values()) == {2}
    assert len({case["width"] for case in cases if case["kind"] == "matrix"}) > 1


def test_a_cpu_s_logits_and_updates_are_as_large_as_those_of_training():
    """From 32 MiB on, memory is the kernel's, and its pages are faulted in at each call."""
    large = 32 * 2**20
    for case in plan(parse_cluster("cpu:2"))["cases"]:
        if case["kind"] == "layers" and case["model"]["hidden_size"] > 64:
            tokens = case["micro_batch_size"] * case["sequence_length"]
            assert BYTES[case["dtype"]] * tokens * case["model"]["vocab_size"] >= large
        elif case["kind"] == "update":
            assert BYTES[case["dtype"]] * case["elements"] // case["tensors"] >= large
