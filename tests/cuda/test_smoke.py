"""``make gpu-smoke`` on the stand-in, with nothing installed but the training stack."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.test_gpu_program import HIDE

ROOT = Path(__file__).resolve().parents[2]
NEXT = """
from importlib.machinery import PathFinder
import sys
_rest = [place for place in sys.path if place != {here!r}]
_next = PathFinder.find_spec("sitecustomize", _rest)
exec(compile(open(_next.origin).read(), _next.origin, "exec"))
"""
"""The stand-in has a sitecustomize of its own, which is not to be hidden by a test's."""
LEAK = """
import importlib.abc
import importlib.util

class Leak(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "workers.probe.series":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def run(module):
            execute(module)
            clean_up, kept = module.Between.clean_up, []
            def leaking(self, device):
                left = clean_up(self, device)
                kept.append(module.torch.empty(2**21, dtype=module.torch.uint8, device="cuda"))
                return left
            module.Between.clean_up = leaking
        spec.loader.exec_module = run
        return spec

sys.meta_path.insert(0, Leak())
"""
"""After each probe its process keeps 2 MiB: less than what would be taken for a leak."""


@pytest.fixture
def smoke(tmp_path, monkeypatch):
    """Runs the program, not installed and from elsewhere; and what it wrote, by check."""

    def run(planted=""):
        import os

        own = tmp_path / "own"
        own.mkdir()
        text = HIDE + NEXT.format(here=str(own)) + planted
        (own / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", f"{own}:{os.environ['PYTHONPATH']}")
        monkeypatch.setenv("BENCH_COMMIT", "abc1234")
        out = tmp_path / "smoke.json"
        program = [sys.executable, str(ROOT / "benchmarks" / "gpu_smoke.py"), "--out", str(out)]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
        return done, json.loads(out.read_text())

    return run


def verdicts(result):
    return {row["check"]: row[""] for row in result["rows"]}


def test_a_sound_gpu_gets_a_table_and_a_result(gpus, smoke):
    gpus(2)
    done, result = smoke()
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"name": "gpu-smoke-h200", "commit": "abc1234"}.items() <= result.items()
    found = verdicts(result)
    assert "FAIL" not in found.values()
    for check in ("torch, driver and NCCL", "ddp: warm as cold", "full_shard: warm as cold",
                  "checkpointing", "cap on memory", "after running out"):  # fmt: skip
        assert found[check] == "ok", check
        assert check in done.stdout
    assert "driver 580.95.05" in done.stdout
    assert "SM at 1980 MHz, 120 W, 35 °C after the last step" in done.stdout
    assert found["probe: adamw_8bit"] == "off"  # torchao is hidden, and optional
    assert result["probes"]["2 ranks"]["outcome"] == "ok"
    near = {row["check"]: row[""] for row in result["rows"] if "dry run" in row["figure"]}
    assert near["probe: ddp, cold"] == near["probe: full_shard, cold"] == "ok"
    assert result["goals"][0] == {
        "name": "checks that fail", "goal": "<= 0", "value": 0, "met": True
    }  # fmt: skip


def test_memory_that_a_process_keeps_between_probes_fails_it(gpus, smoke):
    gpus(1)
    done, result = smoke(LEAK)
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(result)["ddp: warm as cold"] == "FAIL"
    assert "FAIL: ddp: warm as cold; full_shard: warm as cold" in done.stdout
    (row,) = [one for one in result["rows"] if one["check"] == "ddp: warm as cold"]
    assert "build +2,097,152 B" in row["figure"]
    assert verdicts(result)["after running out"] == "ok"  # its process is new


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"devices": 2, "nccl_mib": 150_000}, "the ranks cannot all-reduce over NCCL"),
        ({"devices": 1, "tenant_mib": 3_000}, "GiB are held by process 4242"),
    ],
)
def test_on_gpus_that_cannot_be_used_no_probe_is_tried(gpus, smoke, options, why):
    gpus(**options)
    done, result = smoke()
    assert done.returncode == 1
    (first, _) = result["rows"]
    assert (first["check"], first[""]) == ("torch, driver and NCCL", "FAIL")
    assert why in first["figure"]
    assert result["probes"] == {}
