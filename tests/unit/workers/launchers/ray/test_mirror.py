from pathlib import Path

import pytest

from workers.launchers.base import WATCH_FD, Job
from workers.launchers.ray.node import changed_files, moved, write_files


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
