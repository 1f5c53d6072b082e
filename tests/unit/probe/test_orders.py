"""Orders come by name, each once, until no more can come."""

import pytest

from workers.probe import orders as module
from workers.probe.orders import END, SPEC, SPENT, orders


def give(folder, *names, text="{}"):
    for name in names:
        (folder / name).mkdir()
        (folder / name / SPEC).write_text(text)


@pytest.mark.parametrize("last", [END, SPENT])
def test_orders_by_name_and_all_that_were_given_before_the_end(tmp_path, last):
    give(tmp_path, "0010", "0002", "0001")
    (tmp_path / "0003").mkdir()  # no spec yet
    (tmp_path / last).touch()
    assert [order.name for order in orders(tmp_path)] == ["0001", "0002", "0010"]


def test_orders_as_they_come_also_after_one_was_removed(tmp_path, monkeypatch):
    give(tmp_path, "0001")
    found = orders(tmp_path)
    assert next(found).name == "0001"
    (tmp_path / "0001" / SPEC).unlink()
    acts = iter((lambda: None, lambda: give(tmp_path, "0002"), (tmp_path / END).touch))
    monkeypatch.setattr(module.time, "sleep", lambda _: next(acts)())
    assert [order.name for order in found] == ["0002"]
