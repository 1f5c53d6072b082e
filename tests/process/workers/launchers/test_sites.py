"""Where a worker's probes run, by what it is told and where it is."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.core.launcher import LauncherName
from tuner.machine import this_machine
from workers.devices import devices_here
from workers.launchers.site import (
    Facts,
    LocalSite,
    default_launcher,
    devices_of,
    facts_here,
    open_site,
)
from workers.measuring.files import default_probes_folder, probes_folder
from workers.stop import StopRequest


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
def test_the_launcher_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], name: LauncherName
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for each in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(each, raising=False)
    for each, value in variables.items():
        monkeypatch.setenv(each, value)
    assert default_launcher() is name


def test_the_local_site_is_this_machine(tmp_path: Path) -> None:
    with open_site(LauncherName.LOCAL, StopRequest(), tmp_path) as site:
        assert isinstance(site, LocalSite)
        assert site.is_here
        assert site.left_s == math.inf
        assert site.machines() == (this_machine(),)
        assert site.devices() == devices_here()


def test_each_machine_has_its_own_folder_of_a_shared_one(tmp_path: Path) -> None:
    assert probes_folder(None) == default_probes_folder()
    assert probes_folder(tmp_path).parent == tmp_path
    assert probes_folder(tmp_path).name == default_probes_folder().name


def test_what_a_node_has_is_one_line_of_json(tmp_path: Path) -> None:
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


def test_cores_that_machines_share_are_one_device() -> None:
    here = facts_here()
    assert [device.name for device in devices_of((here, here))] == list(here.devices)
