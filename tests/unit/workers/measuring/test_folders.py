import subprocess

from workers.measuring.records import make_folder, remove_leftovers


def ended_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_folders_of_processes_that_are_no_more_are_removed(tmp_path):
    mine = make_folder(tmp_path, "1")
    left = tmp_path / f"{ended_process()}-1-abc"
    left.mkdir()
    (left / "spec.json").touch()
    kept = tmp_path / f"kept-{left.name}"  # a result that the store did not take
    kept.mkdir()
    (tmp_path / "not-ours-at-all").mkdir()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, kept, tmp_path / "not-ours-at-all"])
    remove_leftovers(tmp_path / "nowhere")
