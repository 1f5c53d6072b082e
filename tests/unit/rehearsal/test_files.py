"""Files that a rehearsed script writes are written elsewhere, and read from there."""

import subprocess
import sys

PROGRAM = """
import os, shutil, sys
from pathlib import Path
from workers.rehearsal.files import Redirected
where, own = Path(sys.argv[1]), Path(sys.argv[2])
redirected = Redirected(own / "written", (own,))
redirected.install()
os.chdir(where)
Path("out/deep").mkdir(parents=True)
Path("out/deep/log.txt").write_text("new")
assert Path("out/deep/log.txt").read_text() == "new"
assert os.listdir("out") == ["deep"]
with open("kept.txt", "a") as file:
    file.write(" and more")
assert Path("kept.txt").read_text() == "old and more"
shutil.rmtree("checkpoint", ignore_errors=True)
os.replace("out/deep/log.txt", "moved.txt")
assert Path("moved.txt").read_text() == "new"
os.rename("weights.bin", "other.bin")
os.remove("kept.txt")
(own / "mine.txt").write_text("here")
try:
    Path("no/such/folder.txt").write_text("x")
except FileNotFoundError:
    print("missing")
try:
    os.mkdir("checkpoint")
except FileExistsError:
    print("exists")
print(len(redirected.told) > 0)
"""


def test_nothing_of_the_users_is_changed(tmp_path):
    where, own = tmp_path / "where", tmp_path / "own"
    (where / "checkpoint").mkdir(parents=True)
    own.mkdir()
    (where / "checkpoint" / "model.bin").write_text("weights")
    (where / "kept.txt").write_text("old")
    (where / "weights.bin").write_text("w")
    before = sorted((path, path.is_file() and path.read_text()) for path in where.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(where), str(own)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["missing", "exists", "True"]
    assert sorted((p, p.is_file() and p.read_text()) for p in where.rglob("*")) == before
    assert (own / "mine.txt").read_text() == "here"
