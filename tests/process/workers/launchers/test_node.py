"""The actor of a rank as a plain object; tests/system/ray has it on real nodes."""

import sys
import time
from pathlib import Path

import pytest

from workers.launchers.ray import node
from workers.launchers.ray.node import RankActor, facts

NAME = "rank-00000.json"


@pytest.fixture
def actor(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "default_probes_folder", lambda: tmp_path / "of-node")
    actor = RankActor()
    yield actor
    actor.stop()
    actor.close()


@pytest.fixture
def begin(actor, make_job):
    """Starts rank 0 with a script, and files that are there from the start: its folder."""

    def begin(script, files=None, ranks=1):
        folder = actor.make_folder(files or {})
        job = make_job({"0": script}, ranks=ranks).as_dict()
        actor.start(job, 0, "", folder, sys.executable)
        return folder

    return begin


def until_the_end(actor):
    news = {"files": {}, "log": b""}
    while not news.get("end"):
        new = actor.exchange(True, {})
        news["files"] |= new["files"]
        news["log"] = news["log"] if new["log"] is None else new["log"]
        news["end"] = new["end"]
        time.sleep(0.01)
    return news


def test_a_rank_runs_in_the_nodes_folder_and_its_files_come_back(actor, begin, tmp_path):
    folder = begin(["say:hello", "ok"])
    news = until_the_end(actor)
    assert news["end"]["code"] == 0
    assert not news["end"]["stopped"]
    assert set(news["files"]) == {NAME}
    assert news["log"] == b"hello\n"
    assert not list(tmp_path.glob("rank-*"))
    actor.close()
    assert not Path(folder).exists()


def test_what_may_be_lost_is_told_again(actor, begin):
    begin(["say:hello", "ok"])
    news = until_the_end(actor)
    again = actor.exchange(True, {}, True)
    assert (again["files"], again["log"]) == (news["files"], news["log"])


def test_orders_are_there_before_the_rank_and_come_to_it_later(actor, begin):
    begin(["say:done", "ok"], {"0001/spec.json": b"{}"})
    news = actor.exchange(True, {"end": b""})
    found = news["files"] | until_the_end(actor)["files"]
    assert f"0001/{NAME}" in found
    assert not {"0001/spec.json", "end"} & found.keys()


def test_other_ranks_files_are_theirs_to_tell(actor, begin):
    folder = Path(begin(["hang"], ranks=2))
    (folder / "rank-00001.json").write_text("{}")
    (folder / "spent").touch()
    assert set(actor.exchange(True, {})["files"]) == {"spent"}


def test_a_rank_that_has_its_node_to_itself_tells_of_those_that_it_started(actor, begin):
    folder = Path(begin(["hang"]))
    (folder / "rank-00001.json").write_text("{}")
    assert set(actor.exchange(True, {})["files"]) == {"rank-00001.json"}


def test_a_node_has_no_more_gpus_than_ray_gives_away(monkeypatch):
    reported = "GPU-1, NVIDIA A100-SXM4-80GB, 81920\nGPU-2, NVIDIA A100-SXM4-80GB, 81920\n"
    monkeypatch.setattr("tuner.machine._nvidia_smi", lambda root: reported)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = facts(1)
    assert [gpu["uuid"] for gpu in said["facts"]["machine"]["gpus"]] == ["GPU-1"]
    monkeypatch.setattr("tuner.machine._nvidia_smi", lambda root: "")
    assert not facts(4)["facts"]["machine"]["gpus"]
