"""Ranks that stay for the next probe, as processes: fed while idle, and gone with their worker."""

import json
import subprocess
import sys
import time

import pytest

from workers.measuring.ranks import Kind, WarmRanks

TWO = Kind(ranks=2, world_size=2, device="cpu")


@pytest.mark.long
def test_ranks_that_would_not_bear_silence_live_while_idle(tmp_path, stand_in_argv, alive) -> None:
    def argv(out):
        return stand_in_argv(out, {"*": ["ok"]}, 8.0)

    with WarmRanks(argv=argv, folder=tmp_path) as ranks:
        for _ in range(2):
            probed = ranks.measure(
                TWO, {}, deadline_s=120, pause=lambda seconds: time.sleep(seconds) or ""
            )
            assert probed.measurement.outcome == "ok"
            time.sleep(9.0)
            assert ranks.alive
    assert not alive(str(tmp_path))


SUPERVISOR = """
import json, sys, time
from pathlib import Path
from workers.measuring.ranks import Kind, WarmRanks
out, argv = Path(sys.argv[1]), json.loads(sys.argv[2])
with WarmRanks(argv=lambda place: (*argv[:3], str(place), *argv[4:]), folder=out) as ranks:
    kind = Kind(ranks=2, world_size=2, device="cpu")
    ranks.measure(kind, {}, deadline_s=120, pause=lambda s: time.sleep(s) or "")
    (out / "idle").touch()
    time.sleep(600)
"""


def test_kill_leaves_no_idle_rank(tmp_path, stand_in_argv, alive, eventually) -> None:
    argv = json.dumps(stand_in_argv(tmp_path, {"*": ["ok"]}))
    command = [sys.executable, "-P", "-c", SUPERVISOR, str(tmp_path), argv]
    with subprocess.Popen(command) as supervisor:
        eventually((tmp_path / "idle").exists)
        assert len(alive(str(tmp_path))) == 3
        supervisor.kill()
    eventually(lambda: not alive(str(tmp_path)))
