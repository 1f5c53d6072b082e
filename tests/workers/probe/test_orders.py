"""Orders come by name, each once, until no more can come."""

import threading
import time
from pathlib import Path

from workers.probe.orders import END, SPEC, SPENT, orders


def give(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / SPEC).write_text("{}")


def names(folder: Path) -> list[str]:
    return [order.name for order in orders(folder)]


def test_orders_by_name(tmp_path: Path) -> None:
    for name in ("0010", "0002", "0001"):
        give(tmp_path, name)
    (tmp_path / "0003").mkdir()  # no spec yet
    (tmp_path / END).touch()
    assert names(tmp_path) == ["0001", "0002", "0010"]


def test_orders_as_they_come(tmp_path: Path) -> None:
    seen: list[str] = []
    rank = threading.Thread(target=lambda: seen.extend(names(tmp_path)))
    rank.start()
    for name in ("0001", "0002"):
        time.sleep(0.05)
        give(tmp_path, name)
    assert rank.is_alive()
    (tmp_path / END).touch()
    rank.join(60)
    assert seen == ["0001", "0002"]


def test_an_order_that_is_removed_is_not_missed(tmp_path: Path) -> None:
    give(tmp_path, "0001")
    found = orders(tmp_path)
    assert next(found).name == "0001"
    (tmp_path / "0001" / SPEC).unlink()
    give(tmp_path, "0002")
    assert next(found).name == "0002"


def test_all_ranks_run_what_was_ordered_before_one_was_spent(tmp_path: Path) -> None:
    give(tmp_path, "0001")
    (tmp_path / SPENT).touch()
    assert names(tmp_path) == ["0001"]
