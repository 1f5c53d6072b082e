"""Benchmarks are programs, not a package: their modules are found beside each other."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Import a module of the benchmarks; none of them stays behind."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    own = {path.stem for path in BENCHMARKS.glob("*.py")} | {
        path.parent.name for path in BENCHMARKS.glob("*/__init__.py")
    }
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if _top(name) in own}
    yield importlib.import_module
    for name in [name for name in sys.modules if _top(name) in own]:
        del sys.modules[name]
    sys.modules.update(before)


def _top(name):
    return name.partition(".")[0]
