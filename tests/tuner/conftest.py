"""Fixtures of the unit tests, for tests that start processes."""

from tests.unit.conftest import (
    answered,
    cli,
    database,
    environment,
    failed,
    lab,
    made,
    question,
    tiny,
    unanswered,
)

__all__ = [
    "answered",
    "cli",
    "database",
    "environment",
    "failed",
    "lab",
    "made",
    "question",
    "tiny",
    "unanswered",
]
