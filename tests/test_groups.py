"""Tests of one group share a process, and what they set up: servers, ranks, dry runs."""

import pytest


@pytest.mark.xdist_group("alone")
def test_groups_are_kept_together(request):
    """pytest-xdist 3.8 leaves groups out without a word under pytest 9.2 (its issue 1386)."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("tests are not run in groups")
    assert request.node.nodeid.endswith("@alone")
