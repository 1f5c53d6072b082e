"""How ranks meet, of what stands in for ranks that are not there, and DDP's buckets."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from workers.probe import group
from workers.probe.ddp import assigned, bytes_of
from workers.probe.group import (
    address_of,
    gather_own,
    heed_peer_access,
    name_interface,
    of_first_on_node,
    own_part_of,
    rendezvous,
)

MIB = 2**20


@pytest.fixture
def no_interface(monkeypatch):
    """None is named; one that is named in the test is taken off again."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "is put back afterwards")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


@pytest.mark.usefixtures("no_interface")
def test_ranks_of_several_nodes_meet_where_rank_0_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    meeting = rendezvous(tmp_path, "address")
    assert callable(meeting)
    with ThreadPoolExecutor() as threads:
        other = threads.submit(meeting, 1, 2)  # it waits
        first = meeting(0, 2)
        first.set("said", "by rank 0")
        assert other.result(60).get("said") == b"by rank 0"
    host, port = (tmp_path / "address").read_text().split()
    assert host == "127.0.0.1"
    assert 0 < int(port) < 2**16
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert [path.name for path in tmp_path.iterdir()] == ["address"]


@pytest.mark.usefixtures("no_interface")
def test_gloo_is_told_the_interface_that_reaches_rank_0_unless_one_is_named(monkeypatch):
    assert (address_of("lo"), address_of("no-such-one")) == ("127.0.0.1", "")
    with monkeypatch.context() as patch:
        patch.setattr(group, "address_of", lambda name: "203.0.113.7")
        name_interface("127.0.0.1")
        assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    name_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def test_the_first_rank_of_each_node_asks_for_all_of_it(monkeypatch):
    store, asked = dist.HashStore(), list[int]()
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(group, "FIRST_OF_NODE_TIMEOUT", timedelta(milliseconds=10))

    def answer(rank, local_rank):
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))

        def ask():
            asked.append(rank)
            return {"by": rank}

        return of_first_on_node("clocks", rank, ask)

    assert [answer(rank, rank % 2) for rank in range(4)] == [{"by": n} for n in (0, 0, 2, 2)]
    assert asked == [0, 2]
    assert answer(5, 1) == {}  # the first of its node is silent: nobody waits for ever
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    assert answer(0, 0) == {"by": 0}


def test_a_scatter_that_leaves_its_result_gets_this_ranks_part():
    told = []

    def leave(output, input, **more):  # noqa: A002
        told.append(more)
        return "work"

    whole = torch.arange(12.0, requires_grad=True).reshape(6, 2)
    part = torch.full((2, 2), torch.nan)
    assert own_part_of(leave)(output=part, input=whole, group="some", async_op=True) == "work"
    assert part.tolist() == [[0, 1], [2, 3]]
    assert told == [{"group": "some", "async_op": True}]


def test_a_gather_is_one_copy_also_into_itself():
    output = torch.zeros(8)
    shard = output[:2]
    shard.copy_(torch.tensor([1.0, 2.0]))
    gather_own(output, shard, async_op=True)
    assert output.tolist() == [1, 2] * 4
    by_rank = torch.empty(6, 2)
    gather_own(by_rank, torch.ones(2, 2))
    assert by_rank.tolist() == [[1, 1]] * 6


def test_a_gather_keeps_every_bit_and_copies_wide_elements_where_they_fit(monkeypatch):
    seen, copy = list[torch.dtype](), torch.Tensor.copy_

    def copied(to, source):
        seen.append(to.dtype)
        return copy(to, source)

    for dtype in (torch.bfloat16, torch.float32, torch.uint8):
        for size, offset in [(n, o) for n in (1, 7, 16, 24, 4096) for o in (0, 1)]:
            bits = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8)
            shard = torch.empty(size + offset, dtype=dtype)[offset:]  # 16 bytes may not begin here
            shard.view(torch.uint8).copy_(bits)
            output = torch.empty(3 * size, dtype=dtype)
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "copy_", copied)
                gather_own(output, shard)
            assert torch.equal(output.view(torch.uint8), bits.repeat(3)), (dtype, size, offset)
            wide = size * dtype.itemsize % 16 == 0 and not offset
            assert seen.pop() == (torch.complex128 if wide else dtype)


def test_gpus_that_cannot_reach_each_other_are_told_to_nccl(monkeypatch):
    names = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is undone
        monkeypatch.delenv(name)
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(group, "check_cuda_p2p_ib_support", lambda: True)
    assert heed_peer_access(cuda) == {}
    monkeypatch.setattr(group, "check_cuda_p2p_ib_support", lambda: False)
    assert heed_peer_access(torch.device("cpu")) == {}
    monkeypatch.setenv("NCCL_IB_DISABLE", "0")
    assert heed_peer_access(cuda) == {"NCCL_P2P_DISABLE": "1"}
    assert [os.environ[name] for name in names] == ["1", "0"]


@pytest.mark.parametrize(
    ("parameters", "buckets"),
    [
        ([(40, 4), (3, 4), (20, 4), (10, 4), (1, 4)], [1, 30, 43]),  # they close at 1, then at 25
        ([(2, 4), (4, 4), (1, 4)], [1, 6]),  # the rest is one too
        ([(1, 4), (1, 2)], [1, 1]),  # dtypes do not share one
    ],
)
def test_ddps_buckets_from_the_last_parameter_on(parameters, buckets):
    dtypes = {2: torch.bfloat16, 4: torch.float32}
    tensors = [
        torch.empty(mib * MIB // size, dtype=dtypes[size], device="meta")
        for mib, size in parameters
    ]
    assert [bytes_of(bucket) // MIB for bucket in assigned(tensors)] == buckets
