import pytest


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        ("<= 0.06", 0.06, True),
        ("<= 0.06", 0.0601, False),
        (">= 0.8", 0.8, True),
        (">= 0.8", 0.79, False),
        ("<= 1", float("inf"), False),
        ("<= 1", float("nan"), False),
        (">= 1", float("nan"), False),
    ],
)
def test_a_goal_is_met_up_to_its_limit(benchmark, goal, value, met) -> None:
    assert benchmark("common").Goal(name="x", goal=goal, value=value).met is met
