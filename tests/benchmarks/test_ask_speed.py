import numpy as np
import pytest

from tuner.search.trials import Result


@pytest.fixture
def speed(benchmark):
    return benchmark("ask_speed")


def test_it_asks_as_much_as_is_asked_for(speed, monkeypatch) -> None:
    monkeypatch.setattr(speed, "ASKS", 1)
    asked = []
    real = speed.ask

    def ask(prior, trials, allowed, past):
        asked.append((len(prior.settings), len(trials), int((~allowed).sum()), past and past.size))
        return real(prior, trials, allowed, past)

    monkeypatch.setattr(speed, "ask", ask)
    found = speed.ask_lines()
    assert asked == [(5000, 200, 200, None)] * 2 + [(5000, 200, 200, 300)] * 2
    assert [row["known"] for row in found] == ["nothing", "300 earlier trials"]
    assert all(0 < row["median_s"] <= row["largest_s"] for row in found)


def test_its_measurements_are_of_all_kinds(speed) -> None:
    prior, _ = speed.candidates()
    trials = speed.trials(prior)
    assert {trial.result for trial in trials} == {Result.RAN, Result.TOO_LARGE, Result.FAILED}
    assert len({trial.index for trial in trials}) == 200
    limit = np.exp(prior.log_limit)
    assert all(trial.need_bytes <= limit for trial in trials if trial.result is Result.RAN)
