from dataclasses import replace
from pathlib import Path

import pytest

from workers.launchers.base import Job
from workers.launchers.ray.driver import alike
from workers.launchers.ray.job import Node, NotPlacedError, bundle


def machine(gpus=0, kind="H100", cores=64):
    each = {"name": kind, "memory_mib": 81559, "uuid": "GPU-of-its-own"}
    return {"machine": {"gpus": [each] * gpus, "processor": "EPYC", "cores": cores}}


def node(cpus=64, gpus=8):
    return Node(id="ab", address="10.0.0.1", cpus=cpus, gpus=gpus)


def job(device, ranks, nodes):
    argv = ("program",)
    place = Path("/d")
    return Job(argv=argv, directory=place, ranks=ranks, nodes=nodes, device=device, deadline_s=1.0)


def test_the_nodes_that_are_used_are_of_one_kind():
    for there, used in [
        ({"a": machine(8), "b": machine(8)}, ["a", "b"]),
        ({"a": machine(8), "b": machine(8, "A100"), "c": machine(8)}, ["a", "c"]),
        ({"a": machine(), "b": machine(), "c": machine(4)}, ["c"]),
        ({"a": machine(8), "b": machine(4), "c": machine(4)}, ["b", "c"]),
        ({"a": machine(cores=2), "b": machine(cores=4), "c": machine(cores=4)}, ["b", "c"]),
    ]:
        assert alike(there) == used


def test_a_gpu_rank_takes_a_gpu_and_its_share_of_the_cpus():
    assert bundle(job("cuda", 16, 2), [node(), node()]) == {"CPU": 64.0, "GPU": 8.0}
    assert bundle(job("cuda", 1, 1), [node()]) == {"CPU": 8.0, "GPU": 1.0}
    assert bundle(job("cuda", 4, 2), [node(), node(cpus=4)]) == {"CPU": 1.0, "GPU": 2.0}


def test_what_starts_the_ranks_of_a_node_takes_all_their_gpus():
    host = replace(job("cuda", 2, 2), gpus_per_rank=8)
    assert bundle(host, [node(), node()]) == {"CPU": 64.0, "GPU": 8.0}
    with pytest.raises(NotPlacedError, match="2 Ray nodes with 8 GPUs are needed, and 1 are there"):
        bundle(host, [node(), node(gpus=4)])


def test_cpu_ranks_take_their_node():
    assert bundle(job("cpu", 2, 2), [node(cpus=2), node(cpus=2, gpus=0)]) == {"CPU": 2.0}
    assert bundle(job("cpu", 6, 2), [node(cpus=64), node(cpus=32)]) == pytest.approx(
        {"CPU": 32}, 1e-3
    )


def test_nodes_that_are_too_few():
    with pytest.raises(NotPlacedError, match="3 Ray nodes of one kind are needed, and 1 are there"):
        bundle(job("cpu", 3, 3), [node()])
    with pytest.raises(NotPlacedError, match="2 Ray nodes with 8 GPUs are needed, and 1 are there"):
        bundle(job("cuda", 16, 2), [node(), node(gpus=4)])
