import stat
import subprocess

import pytest

from tuner.errors import ProbeError
from workers.measuring.files import (
    default_probes_folder,
    keep_folder,
    make_folder,
    remove_folder,
    remove_leftovers,
)


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_each_machine_has_its_own_folder(monkeypatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "one")
    one = default_probes_folder()
    monkeypatch.setattr("socket.gethostname", lambda: "two")
    assert default_probes_folder() != one


def test_a_folder_is_ones_own(tmp_path) -> None:
    one, other = (make_folder(tmp_path / "probes", "7") for _ in range(2))
    assert one != other
    assert one.is_dir()
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
    remove_folder(one)
    assert not one.exists()
    remove_folder(one)


def test_folders_of_processes_that_are_no_more_are_removed(tmp_path) -> None:
    mine = make_folder(tmp_path, "1")
    left = tmp_path / f"{ended_process()}-1-abc"
    left.mkdir()
    (left / "spec.json").touch()
    kept = keep_folder(make_folder(tmp_path, "2"))
    (tmp_path / "not-ours-at-all").mkdir()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, kept, tmp_path / "not-ours-at-all"])
    remove_leftovers(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProbeError, match="cannot make a folder"):
        make_folder(tmp_path / "file" / "probes", "1")
