"""What hides collectives, on planted steps."""

from workers.probe.overlap import overlaps
from workers.probe.tracker import Call

AXES = {"0": "dp_shard", "1": "tp", "2": "dp"}


def call(op: str, phase: str, micro_batch: int, group: str = "0") -> Call:
    return Call(op, group, phase, micro_batch, 1)


def found(calls: list[Call]) -> list[str]:
    return [str(overlap) for overlap in overlaps(calls, AXES)]


def test_forward_waits_for_the_first_gather_of_each_micro_batch() -> None:
    """Also where backward, whose parameters stayed gathered, has no collectives between."""
    calls = [call("all_gather", "forward", micro_batch) for micro_batch in (1, 1, 2, 2, 2)]
    exposed, prefetched = "exposed", "prefetched"
    assert found(calls) == [exposed, prefetched, exposed, prefetched, prefetched]


def test_backward_hides_all_reductions_but_the_last_of_each_micro_batch() -> None:
    calls = [call("all_reduce", "backward", micro_batch, "2") for micro_batch in (1, 1, 2, 2)]
    assert found(calls) == ["behind_backward", "exposed"] * 2


def test_kinds_do_not_hide_one_another() -> None:
    calls = [
        call("all_gather", "backward", 1),
        call("reduce_scatter", "backward", 1),
        call("all_gather", "forward", 2),
    ]
    assert found(calls) == ["prefetched", "exposed", "exposed"]


def test_tensor_parallelism_waits_for_everything() -> None:
    calls = [call("all_gather", "forward", 1, "1") for _ in range(3)]
    assert found(calls) == ["exposed"] * 3


def test_the_optimizer_hides_nothing() -> None:
    assert found([call("all_reduce", "optimizer", 1)] * 2) == ["exposed"] * 2
