"""Small forms of what ``make bench-scale`` measures."""

import pytest

from tuner.core.study import StudyState
from tuner.store import open_store

pytestmark = pytest.mark.long


def test_copies_of_a_study_are_studies(benchmark, monkeypatch, tmp_path) -> None:
    rows = benchmark("scale_rows")
    monkeypatch.setattr(rows, "WITH_PROBES", 3)
    monkeypatch.setattr(rows, "STACKS", 3)
    with open_store(f"sqlite:///{tmp_path}/rows.db") as store:
        first = rows._finished(store)
        rows._copy(store, first, 1, 5)
        rows._copy(store, first, 5, 8)
        listed = store.studies(limit=50)
        assert [study.id for study in listed][:2] == [first, "st-000000000001"]
        assert len(listed) == 8
        like = store.study(first)
        assert like.state is StudyState.DONE
        copy = store.study("st-000000000003")
        assert [probe.measurement for probe in copy.probes] == [p.measurement for p in like.probes]
        assert len(copy.probes) == rows.PROBES
        assert not store.study("st-000000000004").probes
        assert {study.id for study in like.past} == {"st-000000000003", "st-000000000006"}
        times = rows._timed(store, first)
    assert set(times) >= {"worker_looks_ms", "newest_page_ms", "similar_studies_ms"}
    assert all(took > 0 for took in times.values())


def test_a_small_fleet_loses_and_doubles_nothing(benchmark, monkeypatch, tmp_path) -> None:
    fleet = benchmark("scale_fleet")
    seen, over = fleet.Seen(), fleet.threading.Event()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(fleet, "PROBE_S", (0.1, 0.3))
    with fleet.database("postgresql", connections=30) as url, open_store(url) as store:
        study_id = fleet.new_study(store, 0, 40)
        server = fleet._server_of(store)
        assert server.name() == "postgres"
        threads = [
            fleet.threading.Thread(
                target=fleet._work, args=(store, study_id, f"sim{number}/gpu", over, seen)
            )
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert fleet._used_s(server) > 0
        done = [probe for probe in store.study(study_id).probes if probe.measurement]
    assert seen.errors == ["nothing was queued"] * 3, "each went on until none was left"
    assert sorted(seen.probes) == [probe.id for probe in done]
    assert (len(done), seen.lost) == (40, 0)


def test_goals_are_of_each_fleet(benchmark) -> None:
    fleet = benchmark("scale_fleet")
    row = {"workers": 50, "recorded_twice": 0, "lost": 1, "errors": 0}
    assert [(goal.name, goal.met) for goal in fleet.goals([row])] == [
        ("50 workers at one PostgreSQL: recorded twice", True),
        ("50 workers at one PostgreSQL: lost", False),
        ("50 workers at one PostgreSQL: errors", True),
    ]
