"""The command line where no dry run can be made: what is predicted is arithmetic at once."""

import pytest


@pytest.fixture
def no_torch(monkeypatch):
    """Nothing that a dry run needs is installed."""
    monkeypatch.setattr("tuner.dryrun.plan.releases_of", lambda packages: {})
