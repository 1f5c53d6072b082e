"""The planner tests' makers of studies, for facts too."""

from tests.unit.planner.conftest import lab

__all__ = ["lab"]
