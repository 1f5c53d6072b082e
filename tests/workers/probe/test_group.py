"""What stands in for a group whose other ranks are not there."""

import torch
import torch.distributed as dist

from workers.probe.group import gather_own, one_copy_gathers, own_part_of


def test_a_scatter_that_leaves_its_result_gets_this_ranks_part() -> None:
    told = []

    def leave(output: torch.Tensor, input: torch.Tensor, **more: object) -> str:  # noqa: A002
        told.append(more)
        return "work"

    whole = torch.arange(12.0, requires_grad=True).reshape(6, 2)
    part = torch.full((2, 2), torch.nan)
    assert own_part_of(leave)(output=part, input=whole, group="some", async_op=True) == "work"
    assert part.tolist() == [[0, 1], [2, 3]]
    assert told == [{"group": "some", "async_op": True}]


def test_a_gather_is_one_copy_also_into_itself() -> None:
    output = torch.zeros(8)
    shard = output[:2]
    shard.copy_(torch.tensor([1.0, 2.0]))
    gather_own(output, shard, async_op=True)
    assert output.tolist() == [1, 2] * 4
    by_rank = torch.empty(6, 2, requires_grad=False)
    gather_own(by_rank, torch.ones(2, 2))
    assert by_rank.tolist() == [[1, 1]] * 6


def test_gathers_are_torchs_own_again_afterwards() -> None:
    before = dist.all_gather_into_tensor
    with one_copy_gathers():
        assert dist.all_gather_into_tensor is gather_own
    assert dist.all_gather_into_tensor is before
