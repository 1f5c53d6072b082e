"""The posterior of a Gaussian process, against the textbook's formulas."""

import numpy as np
import pytest

from tuner.search import kernel
from tuner.search.kernel import BLOCK, alike, alike_rows, log_likelihood, regress


@pytest.mark.parametrize("count", [1, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 30])
def test_by_blocks_it_is_what_solving_gives(count):
    draw = np.random.default_rng(count)
    tried, asked = draw.normal(size=(count, 5)), draw.normal(size=(40, 5))
    seen, noise = draw.normal(size=count), draw.uniform(0.05, 0.5, count)
    between, cross = alike(tried, tried), alike(asked, tried)
    found = regress(seen, between, noise, cross, np.ones(40))
    solved = np.linalg.solve(between + np.diag(noise**2), np.column_stack([seen, cross.T]))
    assert found.mean == pytest.approx(cross @ solved[:, 0], abs=1e-9)
    assert found.variance == pytest.approx(1 - (cross * solved[:, 1:].T).sum(1), abs=1e-9)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_the_likelihood_is_that_of_the_normal_distribution(count):
    draw = np.random.default_rng(count)
    points, noise = draw.normal(size=(count, 3)), draw.uniform(0.05, 0.5, count)
    seen, between = 3 * draw.normal(size=count), alike(points, points)
    covariance = between + np.diag(noise**2)
    _, log_determinant = np.linalg.slogdet(covariance)
    misfit = seen @ np.linalg.solve(covariance, seen)
    expected = -0.5 * (misfit + log_determinant + count * np.log(2 * np.pi))
    assert log_likelihood(seen, between, noise) == pytest.approx(expected, rel=1e-9)


def test_rows_that_were_found_before_are_those_of_the_same_points():
    points = np.random.default_rng(1).normal(size=(4, 6))
    for same_bytes in (points, points.reshape(6, 4)):
        for rows in ([2], [0, 2, 2], []):
            found = alike_rows(same_bytes, np.array(rows, dtype=np.intp))
            assert found == pytest.approx(alike(same_bytes[rows], same_bytes), rel=1e-12)


def test_a_row_is_the_same_whatever_was_asked_before():
    """To the bit: a plan is a function of its study alone."""
    points = np.random.default_rng(1).normal(size=(500, 25))
    found = []
    for asks in ([[*range(40)]], [[7], [7, 30, 2], [*range(40)]]):
        kernel._rows_of.cache_clear()
        found.append([alike_rows(points, np.array(rows, dtype=np.intp)) for rows in asks][-1])
    assert np.array_equal(*found)
