"""How ranks of several nodes find each other: here, threads of one."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workers.probe import rendezvous as module
from workers.probe.rendezvous import address_of, interface_of, own_address_to, rendezvous


def test_ranks_of_one_node_meet_at_a_file(tmp_path: Path) -> None:
    assert rendezvous(tmp_path, "file") == f"file://{tmp_path}/rendezvous"


def test_ranks_of_several_nodes_meet_where_rank_0_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "is put back afterwards")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
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


def test_an_interface_that_is_named_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    module._take_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def test_the_interface_that_reaches_an_address() -> None:
    assert own_address_to("127.0.0.1") == "127.0.0.1"
    assert address_of("lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") == ""
    assert address_of("no-such-one") == ""
    assert interface_of("10.0.0.2", lambda name: "10.0.0.2") != ""
