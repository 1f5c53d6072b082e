"""Terms, and how they are told apart."""

from tuner.core.measurement import Fidelity
from tuner.core.study import SamplerName, Terms


def test_terms_have_a_name_of_their_own() -> None:
    names = {
        terms.id
        for terms in (
            Terms(),
            Terms(fidelity=Fidelity.PREDICTED),
            Terms(headroom=0.1),
            Terms(memory_limit_bytes=2**30),
            Terms(max_probes=21),
            Terms(pool="a"),
            Terms(sampler=SamplerName.TPE),
        )
    }
    assert len(names) == 7
    assert Terms().id in names
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in names)
    assert Terms(headroom=0, wall_s=60).id == Terms(headroom=0.0, wall_s=60.0).id


def test_where_terms_differ() -> None:
    kept = Terms(max_probes=3, wall_s=60.0).as_dict()
    assert Terms(max_probes=3, wall_s=60).apart(kept) == {}
    assert Terms(max_probes=3, pool="a").apart(kept) == {"wall_s": (60.0, None), "pool": ("", "a")}
    del kept["pool"]
    assert Terms(max_probes=3, wall_s=60).apart(kept) == {"pool": (None, "")}, "of another version"


def test_the_usual_sampler_is_left_out_of_what_is_kept() -> None:
    usual, other = Terms(), Terms(sampler=SamplerName.RANDOM)
    assert "sampler" not in usual.as_dict()
    assert other.as_dict()["sampler"] == "random"
    for terms in (usual, other):
        assert Terms.from_dict(terms.as_dict()) == terms
    assert other.apart(usual.as_dict()) == {"sampler": ("cost-model", "random")}
    assert usual.apart(other.as_dict()) == {"sampler": ("random", "cost-model")}
