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
    own = {path.stem for path in BENCHMARKS.glob("*.py")}
    for name in own & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module
    for name in own & sys.modules.keys():
        del sys.modules[name]
