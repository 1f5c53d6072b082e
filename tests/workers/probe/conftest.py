"""Makes ``measured.py`` a fixture: tests are no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def measured() -> ModuleType:
    path = Path(__file__).with_name("measured.py")
    spec = importlib.util.spec_from_file_location("measured", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
