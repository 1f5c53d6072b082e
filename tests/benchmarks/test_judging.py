import pytest

from tuner.core.quantity import Provenance, Quantity


@pytest.fixture
def judging(benchmark):
    return benchmark("judging")


def test_rank_correlation_is_of_ranks_and_not_of_values(judging) -> None:
    assert judging.spearman([(1, 10), (2, 11), (3, 1000)]) == pytest.approx(1)
    assert judging.spearman([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)


def test_one_wrong_place_of_four(judging) -> None:
    # By the formula without ties: 1 - 6 * (1 + 1) / (4 * 15).
    found = judging.spearman([(1, 1), (2, 3), (3, 2), (4, 4)])
    assert found == pytest.approx(0.8)


def test_ties_share_their_mean_rank(judging) -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    found = judging.spearman([(1, 1), (2, 2), (2, 3), (3, 4)])
    assert found == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_a_constant_prediction_is_worth_nothing(judging) -> None:
    assert judging.spearman([(1, 1), (1, 2), (1, 3)]) == 0


def test_always_yes_is_balanced_at_one_half(judging) -> None:
    told = [(True, True)] * 9 + [(True, False)]
    assert judging.balanced(told) == 0.5


def test_balanced_accuracy_is_the_mean_of_both_shares(judging) -> None:
    told = [(True, True)] * 3 + [(False, True)] + [(False, False)] + [(True, False)]
    assert judging.balanced(told) == pytest.approx((3 / 4 + 1 / 2) / 2)


@pytest.mark.parametrize(
    ("measured", "inside"), [(0.9, False), (1, True), (2, True), (3, True), (3.1, False)]
)
def test_an_interval_holds_its_ends(judging, measured, inside) -> None:
    interval = Quantity(value=2, low=1, high=3, provenance=Provenance.PREDICTED)
    assert judging.holds(interval, measured) is inside


def test_a_share_of_nothing_is_no_success(judging) -> None:
    assert judging.share([]) == 0
    assert judging.share([True, False, False, False]) == 0.25
