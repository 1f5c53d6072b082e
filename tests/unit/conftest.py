"""Marks what ``make test`` runs whole."""

from pathlib import Path

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Marks what is in this folder, which is what ``make test`` runs whole."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("unit")
