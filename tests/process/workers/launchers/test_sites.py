"""Where a worker's probes run, by what it is told and where it is."""

import json
import os
import subprocess
import sys

import pytest

from tuner.core.launcher import LauncherName, default_launcher
from workers.launchers.site import Facts, devices_of, facts_here


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, LauncherName.LOCAL),
        ({"SLURM_JOB_ID": "7"}, LauncherName.LOCAL),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, LauncherName.LOCAL),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, LauncherName.SLURM),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "PATH": "/none"}, LauncherName.LOCAL),
        ({"SLURM_JOB_NUM_NODES": "2"}, LauncherName.LOCAL),
    ],
)
def test_the_launcher_by_default(monkeypatch, tmp_path, variables, name):
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for each in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(each, raising=False)
    for each, value in variables.items():
        monkeypatch.setenv(each, value)
    assert default_launcher() is name


def test_what_a_node_has_is_one_line_of_json(tmp_path):
    argv = [sys.executable, "-P", "-m", "workers.launchers.site", str(tmp_path / "none")]
    environment = {**os.environ, "SLURMD_NODENAME": "n7"}
    said = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout
    values = json.loads(said)
    assert said.count("\n") == 1
    assert values.pop("node") == "n7"
    found = Facts.from_dict(values)
    assert found == facts_here()
    assert facts_here(tmp_path).sees_folder
    assert not found.sees_folder


def test_cores_that_machines_share_are_one_device():
    here = facts_here()
    assert [device.name for device in devices_of((here, here))] == list(here.devices)
