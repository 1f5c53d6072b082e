"""Readings of all ranks, merged; those that do not agree are refused."""

import pytest

from tuner.cost.calibration import merged

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
