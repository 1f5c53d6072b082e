import pytest


@pytest.fixture
def speed(benchmark):
    return benchmark("speed")


def lines(speed, **seconds):
    found = [
        {"what": f"suggest, {of}, {how}", "seconds": seconds.get(key, 0.5), "dry_runs": 2}
        for of, key in ((speed.LLAMA_NAME, "llama"), (speed.MIXTRAL_NAME, "mixtral"))
        for how in speed.HOW
    ]
    return [*found, {"what": "predict", "seconds": 5.0, "cases_per_s": 2000.0}]


def missed(speed, found):
    return [goal.name for goal in speed.goals(found) if not goal.met]


def test_quick_answers_meet_all_goals(speed) -> None:
    assert missed(speed, lines(speed)) == []


def test_each_figure_is_held_to_its_own_limit(speed) -> None:
    assert missed(speed, lines(speed, llama=1.5, mixtral=24)) == [
        f"suggest, {speed.LLAMA_NAME}, {speed.CACHED}: seconds"
    ]
    assert missed(speed, lines(speed, mixtral=26)) == [
        f"suggest, {speed.MIXTRAL_NAME}, {how}: seconds" for how in (speed.FIRST, speed.COLD)
    ]


def test_the_first_command_is_held_to_the_same_as_any_cold_one(speed) -> None:
    found = lines(speed)
    found[0]["seconds"] = 16.0
    assert missed(speed, found) == [f"suggest, {speed.LLAMA_NAME}, {speed.FIRST}: seconds"]


def test_dry_runs_and_cases_are_counted(speed) -> None:
    found = lines(speed)
    found[0]["dry_runs"] = 7
    found[-1]["cases_per_s"] = 999.0
    assert missed(speed, found) == [
        f"suggest, {speed.LLAMA_NAME}, {speed.FIRST}: dry runs",
        "predict, a model already dry-run: cases per second",
    ]


def test_the_middle_run_is_shown_and_all_are_kept(speed) -> None:
    runs = [{"seconds": seconds, "dry_runs": n} for n, seconds in enumerate((3.0, 1.0, 2.0))]
    found = speed._middle("x", runs)
    assert found == {"what": "x", "seconds": 2.0, "dry_runs": 2, "runs_s": [3.0, 1.0, 2.0]}


def test_the_generated_cases_are_the_same_each_time(speed) -> None:
    speed.CASES = 20
    assert speed.generated_cases() == speed.generated_cases()
    assert len(set(speed.generated_cases())) > 15
