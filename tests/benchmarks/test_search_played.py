"""Regrets that are kept, and what is made of them again."""

import numpy as np
import pytest


@pytest.fixture
def kept(benchmark):
    return benchmark("search_played")


def one(kept, search: str, value: float):
    curves = np.full((3, 8), value)
    return kept.Played(table="sweep", search=search, history=False, ours=True, curves=curves)


def test_regrets_are_read_as_they_were_kept(kept, tmp_path) -> None:
    path = tmp_path / "curves.json"
    assert kept.kept_before(path) == []
    kept.keep([one(kept, "a", 0.12344), one(kept, "b", 0.5)], path)
    assert path.read_text().count("\n") == 4  # one search a line
    first, second = kept.kept_before(path)
    assert first.key == ("sweep", "a")
    assert second.key == ("sweep", "b")
    assert first.after(3).tolist() == [0.1234] * 3
    assert second.curves.shape == (3, 8)


def test_a_search_that_was_replayed_again_takes_the_place_of_the_old(
    benchmark, monkeypatch, kept, tmp_path
) -> None:
    search = benchmark("search")
    path = tmp_path / "curves.json"
    monkeypatch.setattr(search, "keep", lambda found: kept.keep(found, path))
    before = [one(kept, "random", 0.5), one(kept, "prior + GP", 0.2), one(kept, "gone", 0.1)]
    search.keep_with([one(kept, "prior + GP", 0.3)], before)
    found = {played.search: played.curves[0, 0] for played in kept.kept_before(path)}
    assert found == {"prior + GP": 0.3, "random": 0.5}
    assert [*found] == ["prior + GP", "random"]


def test_rows_are_in_the_order_of_the_searches_and_the_last_counts(benchmark) -> None:
    search = benchmark("search")
    rows = [
        {"table": "vTrain", "search": "random", "mean@1": 0.3},
        {"table": "sweep", "search": "random", "mean@1": 0.3},
        {"table": "sweep", "search": "prior + GP", "mean@1": 0.2},
        {"table": "sweep", "search": "random", "mean@1": 0.4},
        {"table": "sweep", "search": "no such search", "mean@1": 0.4},
    ]
    assert [(row["table"], row["search"], row["mean@1"]) for row in search.in_order(rows)] == [
        ("sweep", "prior + GP", 0.2),
        ("sweep", "random", 0.4),
        ("vTrain", "random", 0.3),
    ]
