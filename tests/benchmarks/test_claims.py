import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def claims(benchmark, monkeypatch):
    found = benchmark("claims")
    monkeypatch.setattr(found, "PROBES", 40)
    return found


def test_what_two_had_and_nobody_has_is_counted(claims, tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/claims.db"
    [study_id] = claims._filled(url, 1)
    worker, taken = claims.WorkerIdentity.of_this_process(), claims.Taken()
    with claims.open_store(url) as store:
        claim = store.claim(study_id, worker)
        probes = [claim.probe.id, claim.probe.id]
        assert claims._wrong(url, [claims.Taken(probes=probes, errors=["no"])]) == {
            "claimed_twice": 1,
            "lost": claims.PROBES - 1,
            "errors": 1,
        }
        claims._claim_of(store, study_id, worker, taken)
    taken.probes.append(claim.probe.id)
    assert claims._wrong(url, [taken]) == {"claimed_twice": 0, "lost": 0, "errors": 0}


def test_goals_are_of_one_study_and_of_all_mistakes(claims) -> None:
    rows = [
        {
            "database": database,
            "studies": studies,
            "claims_per_s": 600.0 * studies,
            "claimed_twice": 0,
            "lost": studies,
            "errors": 0,
        }
        for database in claims.DATABASES
        for studies in claims.STUDIES
    ]
    found = {goal.name: (goal.value, goal.met) for goal in claims.goals(rows)}
    where = "8 processes, 40 probes"
    assert found[f"claims/s, sqlite, {where} of one study"] == (600.0, False)
    assert found[f"claims/s, postgresql, {where} of one study"] == (600.0, True)
    assert found[f"claims lost, sqlite, {where}"] == (21, False)
    assert found[f"claims errors, postgresql, {where}"] == (0, True)
    assert len(found) == 8
