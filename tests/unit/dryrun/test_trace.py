"""Traces are read strictly."""

import copy
import json

import pytest

from tests.unit.dryrun.traces import linear_moments, trace
from tuner.dryrun import Trace

GOOD = trace(4, linear_moments)


def changed(*path, to):
    """The good trace with one value changed; ``None`` removes it."""
    found = copy.deepcopy(GOOD)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return dict(found)


def test_a_trace_survives_json():
    found = Trace.from_dict(json.loads(json.dumps(GOOD)))
    assert found.as_dict() == GOOD
    assert Trace.from_dict(found.as_dict()) == found


def test_anything_else_is_refused():
    for wrong in [
        [],
        "trace",
        changed("format", to=1),
        changed("format", to=None),
        changed("layers", to=0),
        changed("layers", to=True),
        changed("layers", to=None),
        changed("more", to=1),
        changed("steps", to=[]),
        changed("steps", to={}),
        changed("micro_batch_sizes", to=[2, 1]),
        changed("micro_batch_sizes", to=[1, 2, 3]),
        changed("steps", 0, "accumulation", to=0),
        changed("steps", 0, "segments", 0, "phase", to=3),
        changed("steps", 0, "segments", 0, "lines", to=[]),
        changed("steps", 0, "segments", 0, "lines", 0, "bytes", to=[1]),
        changed("steps", 0, "segments", 0, "lines", 0, "bytes", to=[1, -1]),
        changed("steps", 0, "segments", 0, "lines", 0, "bytes", to=[1, float("nan")]),
        changed("steps", 0, "segments", 0, "lines", 0, "categories", to=[1]),
        changed("notes", to="none"),
        changed("seconds", to="1"),
    ]:
        with pytest.raises(ValueError):
            Trace.from_dict(wrong)
