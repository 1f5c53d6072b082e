from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import UsageError
from workers.launchers.base import WATCH_FD, Job
from workers.launchers.ray import launcher
from workers.launchers.ray.driver import Node, NotPlacedError, alike, bundle
from workers.launchers.ray.launcher import RayDriver, environment
from workers.launchers.ray.node import changed_files, moved, write_files


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


def test_what_is_still_written_and_what_is_of_one_node_stays(tmp_path):
    for name in ("spec.partial", "rank-00000.log", "rendezvous", "rank-00001.json"):
        (tmp_path / name).write_text("x")
    assert changed_files(tmp_path, {}, lambda path: "rank" not in path.name) == {}
    assert changed_files(tmp_path, {}, lambda path: True) == {"rank-00001.json": b"x"}


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "0001/../../x"])
def test_nothing_is_written_outside_of_the_folder(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ValueError, match="is not a path in the folder"):
        write_files(folder, {name: b""}, {})
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_job_moves_to_another_machines_folder_and_python():
    argv = ("/here/python", "-P", "-m", "workers.probe", "--out", "/a/b", "--watch-fd", WATCH_FD)
    job = Job(argv=argv, directory=Path("/a/b"), ranks=2, device="cpu", deadline_s=1.0)
    there = moved(job, Path("/c"), "/here/python", "/there/python")
    assert there.argv == ("/there/python", *argv[1:5], "/c", *argv[6:])
    assert there.directory == Path("/c")


AT = "10.0.0.1:6379"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home without a token."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "inherited",
    [
        {},
        {"RAY_AUTH_MODE": "token"},
        {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "t"},
        {"RAY_AUTH_TOKEN_PATH": "/nowhere"},
    ],
)
def test_a_cluster_is_not_used_without_a_token(inherited):
    with pytest.raises(UsageError, match="must be a cluster with token authentication") as error:
        environment(AT, inherited)
    assert error.value.field == "ray"
    assert AT in str(error.value)
    assert "\n" not in str(error.value)


def test_a_token_is_found_where_ray_looks_for_it(home):
    assert environment(AT, {"RAY_AUTH_TOKEN": "t"})["RAY_AUTH_TOKEN"] == "t"
    (home / "token").write_text("t")
    path = str(home / "token")
    assert environment(AT, {"RAY_AUTH_TOKEN_PATH": path})["RAY_AUTH_TOKEN_PATH"] == path
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("t")
    assert environment(AT, {})["RAY_AUTH_MODE"] == "token"


def test_a_cluster_of_our_own_has_a_token_of_our_own_and_ray_does_not_phone_home():
    inherited = {
        "PATH": "/bin",
        "TUNER_DB": "postgresql://u:secret@host/db",
        "RAY_ADDRESS": AT,
        "RAY_AUTH_TOKEN": "theirs",
        "RAY_AUTH_TOKEN_PATH": "/theirs",
        "RAY_TMPDIR": "/scratch",
    }
    first, second = environment("", inherited), environment("", inherited)
    assert first["RAY_AUTH_TOKEN"] not in ("theirs", second["RAY_AUTH_TOKEN"])
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first["RAY_AUTH_MODE"] == "token"
    assert first["RAY_USAGE_STATS_ENABLED"] == "0"
    assert (first["PATH"], first["RAY_TMPDIR"]) == ("/bin", "/scratch")
    assert not {"TUNER_DB", "RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"} & first.keys()


def test_an_address_of_ray_client_is_refused(monkeypatch):
    monkeypatch.setattr(launcher, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match="must be HOST:PORT of the cluster"):
        RayDriver("ray://10.0.0.1:10001")
