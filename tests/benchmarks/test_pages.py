"""Pages are timed on a study like a real one, and many viewers cost the database what one does."""

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tuner.core.measurement import Outcome
from tuner.explain.known import answer
from tuner.store import open_store

pytestmark = pytest.mark.long

PROBES = 40


@pytest.fixture
def made(benchmark):
    return benchmark("pages_study")


def missed(part, rows: list) -> list[str]:
    return [goal.name for goal in part.goals(rows) if not goal.met]


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
