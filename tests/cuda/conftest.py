"""Tests on a real CUDA build of torch, over a stand-in for the driver: no GPU is needed.

    make cuda-env       once: installs torch's CUDA build, 5 GB
    make test-cuda

The tests' own process sees no GPU. Processes that it starts see those of :func:`gpus`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.machine import why_no_standin
from workers.standin import run


def pytest_collection_modifyitems(items):
    """Every test below this folder is marked ``cuda``."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cuda)


@pytest.fixture(scope="session")
def standin():
    """The stand-in, built for this Python's torch: the folder of its libraries."""
    if why := why_no_standin():
        pytest.skip(f"{why}: make cuda-env, make test-cuda")
    return run.build()


def give(patch, devices, **options):
    """Give processes that are started from now on so many GPUs, until ``patch`` is undone."""
    for name in [name for name in os.environ if name.startswith("STANDIN_")]:
        patch.delenv(name)
    values = {"DEVICES": devices} | {name.upper(): value for name, value in options.items()}
    for name, value in run.environment(values, _without_standin()).items():
        patch.setenv(name, value)


def _without_standin():
    """The environment as it was: what another call put before its paths is taken off."""
    ours = str(run.HERE), str(run.build())
    paths = {
        name: os.pathsep.join(
            part for part in os.environ.get(name, "").split(os.pathsep) if not part.startswith(ours)
        )
        for name in ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
    }
    return {**os.environ, **paths}


@pytest.fixture
def gpus(standin, monkeypatch, tmp_path_factory):
    """``gpus(2)`` gives processes that are started from now on that many GPUs.

    Faults and sizes are given by name: ``gpus(2, mib=40_000, nccl_mib=300, fail=719)`` sets
    STANDIN_MIB, STANDIN_NCCL_MIB and STANDIN_FAIL, which ``workers/standin/README.md`` lists. Each
    call says all of it anew.
    """

    # locks on devices are there: those of tests that run beside this one are not the same devices
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))

    def given(devices=1, **options):
        give(monkeypatch, devices, **options)

    return given


@pytest.fixture
def rehearse(standin, tmp_path):
    """Runs ``tuner rehearse --json`` on a text; its exit code, and its answer."""

    def run(text, options, launch, *arguments):
        script = [] if text is None else ["train.py"]  # or it is a module that launch names
        for name in script:
            (tmp_path / name).write_text(text)
        program = "import sys; from tuner.cli import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", program, "rehearse", "--json", *options, "--"]
        done = subprocess.run(
            [*command, *launch, *script, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run
