"""Fixtures of the launch files' unit tests."""

from tests.unit.launchfiles.conftest import about, case, cases, launched_environment, written

__all__ = ["about", "case", "cases", "launched_environment", "written"]
