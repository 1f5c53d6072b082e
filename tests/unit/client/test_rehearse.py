"""What a rehearsal is told, and what of it is refused before anything is started."""

import pytest

import tuner
from tuner.client.rehearse import Rehearsal, order_of
from tuner.core.cluster import parse_cluster
from tuner.errors import UsageError

H100 = parse_cluster("8x8xh100-80gb")


def order(cluster=H100, ranks=(0,), steps=3, seconds=60.0):
    return order_of(["python", "t.py"], cluster, ranks, steps=steps, seconds=seconds)


def test_the_gpus_of_a_cluster_are_told_as_cuda_offers_them():
    told = order(ranks=("0", "last"))
    assert told["ranks"] == [0, 63]
    assert (told["nodes"], told["gpus_per_node"], told["capability"]) == (8, 8, "9.0")
    assert told["memory_mib"] == 81_008
    assert order(cluster=None, ranks=("last",))["ranks"] == [-1]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"ranks": (64,)}, "ranks"),
        ({"ranks": ("first",)}, "ranks"),
        ({"steps": 0}, "steps"),
        ({"seconds": 0.0}, "seconds"),
        ({"cluster": parse_cluster("cpu:2")}, "cluster"),
        ({"cluster": parse_cluster("8xmi300x")}, "cluster"),
    ],
)
def test_what_is_wrong_is_refused_by_field(given, field):
    with pytest.raises(UsageError) as refused:
        order(**given)
    assert refused.value.field == field


def test_a_command_is_words():
    with pytest.raises(UsageError, match="command"):
        tuner.rehearse("torchrun train.py")


@pytest.mark.parametrize(
    ("outcome", "steps", "cluster", "fits"),
    [
        ("ok", [{}], H100, True),
        ("oom", [{}], H100, False),
        ("failed", [], H100, None),
        ("ok", [{}], None, None),
    ],
)
def test_it_fits_where_a_step_was_seen_and_memory_sufficed(outcome, steps, cluster, fits):
    rank = {"outcome": outcome, "steps": steps}
    found = Rehearsal(command=("python", "t.py"), cluster=cluster, ranks=(rank,))
    assert found.fits is fits
    assert found.as_dict()["provenance"] == "rehearsed"
