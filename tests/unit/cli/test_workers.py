"""The workers that serve studies now."""

import os
from datetime import timedelta

import pytest
from sqlalchemy import update

from tuner.machine import Machine, ReportedGpu
from tuner.store import WorkerIdentity, open_store
from tuner.store.tables import WorkerRow, clock
from tuner.store.workers import Workers

GPU = ReportedGpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559, uuid="GPU-1")
HERE = Machine(name="here", gpus=(), cores=2, memory_bytes=2**33)
THERE = Machine(name="there", gpus=(GPU, GPU), cores=64, memory_bytes=2**40)


@pytest.fixture
def workers(environment):
    """One of this process, one of another machine, and one that stopped; their ids."""
    mine = WorkerIdentity.of_this_process("mine")
    other = WorkerIdentity(host="there", boot_id="b", pid=7, started=1.0, name="there:7")
    with open_store() as store:
        registry = Workers(store.transactions)
        ids = {
            "mine": registry.register(mine, ["cpu"], HERE.as_dict(), {"torch": "2.13.0"}),
            "there": registry.register(other, [], THERE.as_dict(), {"torch": "2.12.0"}),
            "gone": registry.register(other, [], THERE.as_dict(), {}),
        }
        registry.stopped(ids["gone"])
    return ids


def test_those_that_live_are_listed(cli, workers):
    result = cli("workers")
    assert result.code == 0
    _, _, mine, there = result.out.splitlines()
    assert mine.split()[:5] == ["mine", "cpu", "2", "CPU", "cores"]
    assert there.split()[:6] == ["there:7", "-", "2", "NVIDIA", "H100", "80GB"]
    assert "2.12.0" in there
    mine, there = cli("workers", "--json").json["workers"]
    assert (mine["id"], there["id"]) == (workers["mine"], workers["there"])
    assert mine["pools"] == ["cpu"]
    assert Machine.from_dict(there["machine"]) == THERE
    (mine,) = cli("workers", "--here", "--json").json["workers"]
    assert mine["id"] == workers["mine"]


def test_one_that_is_frozen_is_named(cli, workers):
    with open_store() as store, store.transactions.write() as session:
        old = clock(session) - timedelta(minutes=5)
        session.execute(update(WorkerRow).values(seen_at=old))
    result = cli("workers")
    assert result.code == 1
    assert f"mine (process {os.getpid()}) has given no sign since" in result.err
    assert f"kill -9 {os.getpid()}" in result.err
    assert [one["pid"] for one in cli("workers", "--json").json["silent"]] == [os.getpid()]
