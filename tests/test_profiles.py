"""What hypothesis draws depends on nothing but the test."""

import importlib.util
import sys

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests import profiles

OURS = settings.get_profile(profiles.SAME)


def drawn():
    found = []

    @settings(OURS, max_examples=200)
    @given(number=st.integers(), text=st.text())
    def draw(number, text):
        found.append((number, text))

    draw()
    return found


@pytest.mark.skipif(
    settings.get_current_profile_name() != profiles.SAME, reason="the long profile draws at random"
)
def test_modules_that_were_imported_change_nothing(tmp_path, monkeypatch):
    before = drawn()
    assert len(set(before)) > 100
    path = tmp_path / "of_many_constants.py"
    path.write_text(f"NUMBERS = {[7_654_321 + i for i in range(300)]}\nWORD = 'a rare word'\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, path.stem, module)
    assert drawn() == before


def test_what_ci_runs_neither_shrinks_nor_remembers():
    assert OURS.derandomize
    assert OURS.database is None
    assert OURS.deadline is None
    assert set(OURS.phases) == {Phase.explicit, Phase.generate}
    long = settings.get_profile(profiles.LONG)
    assert not long.derandomize
    assert Phase.shrink in long.phases
    assert long.max_examples == profiles.TIMES * OURS.max_examples
