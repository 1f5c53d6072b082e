"""Benchmarks are programs, not a package: their modules are found beside each other."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
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


def _top(name: str) -> str:
    return name.partition(".")[0]
