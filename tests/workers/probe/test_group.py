"""What stands in for a group whose other ranks are not there."""

import pytest
import torch
import torch.distributed as dist

from workers.probe import group
from workers.probe.group import gather_own, heed_peer_access, one_copy_gathers, own_part_of


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
@pytest.mark.parametrize("size", [1, 7, 16, 24, 4096])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_gather_keeps_every_bit(dtype: torch.dtype, size: int, offset: int) -> None:
    bits = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8)
    shard = torch.empty(size + offset, dtype=dtype)[offset:]  # which 16 bytes do not always begin
    shard.view(torch.uint8).copy_(bits)
    output = torch.empty(3 * size, dtype=dtype)
    gather_own(output, shard)
    assert torch.equal(output.view(torch.uint8), bits.repeat(3))


def test_a_gather_is_copied_in_wide_elements_where_they_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    copy = torch.Tensor.copy_

    def copied(to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        seen.append(to.dtype)
        return copy(to, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    for size in (8, 9):  # of bfloat16: 16 bytes, and 18
        gather_own(torch.empty(4 * size, dtype=torch.bfloat16), torch.ones(size).bfloat16())
    assert seen == [torch.complex128, torch.bfloat16]


def test_gathers_are_torchs_own_again_afterwards() -> None:
    before = dist.all_gather_into_tensor
    with one_copy_gathers():
        assert dist.all_gather_into_tensor is gather_own
    assert dist.all_gather_into_tensor is before


def test_gpus_that_cannot_reach_each_other_are_told_to_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")
    for name in names:
        monkeypatch.setenv(name, "")  # so that what is set here is undone
        monkeypatch.delenv(name)
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(group, "check_cuda_p2p_ib_support", lambda: True)
    assert heed_peer_access(cuda) == {}
    monkeypatch.setattr(group, "check_cuda_p2p_ib_support", lambda: False)
    assert heed_peer_access(torch.device("cpu")) == {}
    monkeypatch.setenv("NCCL_IB_DISABLE", "0")
    assert heed_peer_access(cuda) == {"NCCL_P2P_DISABLE": "1"}
    assert [group.os.environ[name] for name in names] == ["1", "0"]
