"""Limits, and how they are told apart."""

from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, SamplerName


def test_terms_have_a_name_of_their_own():
    names = {
        limits.id
        for limits in (
            Limits(),
            Limits(fidelity=Fidelity.PREDICTED),
            Limits(headroom=0.1),
            Limits(memory_limit_bytes=2**30),
            Limits(max_probes=21),
            Limits(pool="a"),
            Limits(sampler=SamplerName.TPE),
        )
    }
    assert len(names) == 7
    assert Limits().id in names
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in names)
    assert Limits(headroom=0, wall_s=60).id == Limits(headroom=0.0, wall_s=60.0).id


def test_where_terms_differ():
    kept = Limits(max_probes=3, wall_s=60.0).as_dict()
    assert Limits(max_probes=3, wall_s=60).apart(kept) == {}
    assert Limits(max_probes=3, pool="a").apart(kept) == {"wall_s": (60.0, None), "pool": ("", "a")}
    del kept["pool"]
    assert Limits(max_probes=3, wall_s=60).apart(kept) == {"pool": (None, "")}, "of another version"
