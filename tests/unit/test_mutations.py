"""The planted mistakes fit the product as it is; ``tests.mutations.replay`` sees them caught."""

from pathlib import Path

import jinja2

from tests.mutations.replay import ROOT, mutations, whole_selection


def test_every_mutation_can_be_planted():
    found = mutations()
    assert len({mutation.name for mutation in found}) == len(found) >= 30
    for each in found:
        text = (ROOT / each.file).read_text(encoding="utf-8")
        assert text.count(each.old) == 1, f"{each.name}: {each.file} has changed"
        assert each.new != each.old
        planted = text.replace(each.old, each.new)
        if each.file.endswith(".j2"):
            jinja2.Environment().parse(planted)
        else:
            compile(planted, each.file, "exec")
        assert each.tests
        for test in each.tests:
            assert Path(ROOT / test).exists(), f"{each.name}: {test} is elsewhere"


def test_the_whole_selection_is_that_of_make_test():
    assert "-m" in whole_selection(ROOT)
