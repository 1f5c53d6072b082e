"""DeepSpeed's peaks on two CPU ranks, as measured, are within the interval that is predicted."""

import json

from tuner.cost.constants import default_costs


def test_each_peak_is_within_the_interval(benchmark):
    zero, width = benchmark("zero"), default_costs().memory.zero
    measured = json.loads(zero.RESULT.read_text())["rows"]
    assert [one["case"] for one in measured] == list(zero.cases())
    for one in measured:
        row = zero.row(one["case"], one["measured"])
        share = row["measured_mb"] / row["predicted_mb"]
        assert width.low <= share <= width.high, row
