"""The same fixtures as without servers."""

from tests.unit.api.conftest import app, settings, store, url

__all__ = ["app", "settings", "store", "url"]
