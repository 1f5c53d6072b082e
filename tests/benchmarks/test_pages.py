"""Pages are timed on a study like a real one, and many viewers cost the database what one does."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tuner.core.measurement import Outcome
from tuner.explain import answer
from tuner.store import open_store

PROBES = 40


@pytest.fixture
def made(benchmark):
    return benchmark("pages_study")


def missed(part, rows: list) -> list[str]:
    return [goal.name for goal in part.goals(rows) if not goal.met]


def test_every_part_is_run_and_judged(benchmark) -> None:
    pages = benchmark("pages")
    for part in map(benchmark, pages.PARTS.values()):
        assert callable(part.rows)
        assert callable(part.goals)


def test_the_command_of_the_makefile_is_the_benchmark() -> None:
    makefile = Path(__file__).resolve().parents[2] / "Makefile"
    recipe = makefile.read_text().split("bench-pages: ")[1].split("\n\n")[0]
    assert "benchmarks/pages.py" in recipe


def test_the_study_has_probes_of_all_kinds_and_an_answer(made) -> None:
    study = made.study()
    outcomes = {p.measurement.outcome for p in study.probes}
    assert outcomes == {
        Outcome.OK,
        Outcome.OOM,
        Outcome.STOPPED_EARLY,
        Outcome.CRASHED,
        Outcome.COMMUNICATION_ERROR,
    }
    assert len(study.probes) == made.PROBES
    assert any(probe.request.repetition for probe in study.probes)
    assert answer(study).best is not None
    assert made.study(count=PROBES) == made.study(count=PROBES)


# -- views ------------------------------------------------------------------------------------


def views(**first: float) -> list[dict]:
    row = {"probes": 500, "median_ms": 149.0, "cpu_median_ms": 149.0, "bytes": 299_999, **first}
    return [row, row]


def test_each_figure_of_views_is_held_to_its_own_limit(benchmark) -> None:
    part = benchmark("pages_views")
    assert missed(part, views()) == []
    assert len(missed(part, views(median_ms=151))) == 1
    assert len(missed(part, views(cpu_median_ms=151))) == 1
    assert len(missed(part, views(bytes=300_001))) == 1


def test_a_page_is_seen_after_each_event_and_again(benchmark) -> None:
    part = benchmark("pages_views")
    first, again = part.rows(probes=PROBES, first_views=2, batch=720)
    assert (first["views"], again["views"]) == (2, 2 * part.AGAIN)
    assert first["probes"] == PROBES
    assert 0 < first["gzip_bytes"] < first["bytes"]
    assert min(first["median_ms"], again["median_ms"]) > 0


# -- viewers ----------------------------------------------------------------------------------


@pytest.mark.slow  # tests/unit/pages/test_live.py has twenty viewers, without a server
def test_a_hundred_viewers_cost_the_database_what_one_does(benchmark) -> None:
    """Through the service, as browsers ask: the page, then its stream of changes."""
    part = benchmark("pages_viewers")
    one, many = part.rows(before=PROBES, viewers=(1, 100), probes=2)
    assert (one["told_the_end"], many["told_the_end"]) == (1, 100)
    assert (one["changes"], many["changes"]) == (3, 300)
    assert many["events"] == one["events"] == 3
    assert one["statements_per_event"] > 0
    assert missed(part, [one, many]) == []


def test_growing_statements_and_viewers_left_alone_are_seen(benchmark) -> None:
    part = benchmark("pages_viewers")
    one = {"viewers": 1, "told_the_end": 1, "statements_per_event": 8.0}
    many = {"viewers": 100, "told_the_end": 100, "statements_per_event": 8.0}
    assert missed(part, [one, many]) == []
    assert len(missed(part, [one, {**many, "statements_per_event": 8.1}])) == 1
    assert len(missed(part, [one, {**many, "told_the_end": 99}])) == 1


# -- size -------------------------------------------------------------------------------------


def test_a_whole_page_of_500_probes_is_less_than_300_kb(made, benchmark, tmp_path) -> None:
    most = benchmark("pages_views").MOST_BYTES
    db = f"sqlite:///{tmp_path}/studies.db"
    with open_store(db) as store:
        study_id = made.enter(store, made.study(), made.PROBES)
        app = create_app(store, Settings(_env_file=None, db=db))
        with TestClient(app, base_url="http://localhost") as client:
            page = client.get(f"/studies/{study_id}")
    assert page.status_code == 200
    assert page.text.count("<tr") > made.PROBES
    assert 200_000 < len(page.content) < most
