"""The similarity of points, and a Gaussian process on it.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
T = TypeVar("T")

# Rows of a triangle that are solved at once.
BLOCK = 64


def alike(one: Array, other: Array) -> Array:
    """Squared-exponential similarity, shape ``(len(one), len(other))``; 1 for equal rows."""
    found = np.asarray(one @ other.T)  # then in place: these are the largest arrays of a search
    found -= 0.5 * (one**2).sum(1)[:, None]
    found -= 0.5 * (other**2).sum(1)
    np.minimum(found, 0.0, out=found)
    return np.asarray(np.exp(found, out=found))


class ByContents(Generic[T]):
    """A value as the key of a cache: equal where the arrays that stand for it are."""

    def __init__(self, value: T, *arrays: Array) -> None:
        self.value = value
        self._contents = tuple((array.shape, array.tobytes()) for array in arrays)

    def __hash__(self) -> int:
        return hash(self._contents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByContents) and self._contents == other._contents


# At every ask of a study its candidates and its past are the same.
@lru_cache(maxsize=2)
def alike_again(key: ByContents[tuple[Array, Array]]) -> Array:
    """The same, kept for the next call; nobody may change it."""
    return alike(*key.value)


def alike_rows(points: Array, rows: Rows) -> Array:
    """The similarity of some points with all of them, a row for each."""
    known = _rows_of(ByContents(None, points))
    for row in rows.tolist():
        if row not in known:
            # by itself: among others it would be rounded otherwise, and so by what was asked before
            known[row] = alike(points[[row]], points)[0]
    return np.array([known[row] for row in rows.tolist()]).reshape(len(rows), len(points))


# At every ask of a study its candidates are the same, and so are all that were tried before.
@lru_cache(maxsize=4)
def _rows_of(key: ByContents[None]) -> dict[int, Array]:
    return {}


@contextmanager
def one_thread() -> Iterator[None]:
    # For matrices as small as ours its threads wait for each other where other programs compute.
    with _controller().limit(limits=1, user_api="blas"):
        yield


# To look for the libraries of a process takes as long as to ask a small search.
_controller = cache(ThreadpoolController)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """A Gaussian process at the points that were asked for; or ``k`` of them, which differ in the
    values seen alone."""

    mean: Array  # shape ``(n,)``, or ``(n, k)``
    variance: Array  # shape ``(n,)``; never negative
    surprise: Array
    """Shape ``(m,)``, or ``(m, k)``: minus the log-likelihood of each value seen, given those
    before it."""


def regress(seen: Array, between: Array, noise: Array, cross: Array, own: Array) -> Posterior:
    """The posterior of a zero-mean Gaussian process.

    Args:
        seen: values that were seen, shape ``(m,)``, or ``(m, k)``.
        between: their covariance, shape ``(m, m)``, without noise.
        noise: standard deviation of each value seen, shape ``(m,)``, positive.
        cross: covariance of the points asked for with them, shape ``(n, m)``.
        own: prior variance of the points asked for, shape ``(n,)``.
    """
    if not len(seen):
        return Posterior(mean=np.zeros(own.shape + seen.shape[1:]), variance=own, surprise=seen)
    noisy = between.copy()
    np.fill_diagonal(noisy, np.diag(between) + noise**2)
    factor = np.asarray(np.linalg.cholesky(noisy), dtype=np.float64)
    spread, white = solved(factor, cross.T), solved(factor, seen)
    widths = np.diag(factor).reshape(-1, *[1] * (seen.ndim - 1))
    return Posterior(
        mean=spread.T @ white,
        variance=np.maximum(own - np.einsum("mn,mn->n", spread, spread), 0.0),
        surprise=0.5 * white**2 + np.log(widths) + 0.5 * np.log(2 * np.pi),
    )


def log_likelihood(seen: Array, between: Array, noise: Array) -> Array:
    """The likelihood of values under a zero-mean process; arguments as in :func:`regress`.

    Of shape ``(k,)`` where the values are ``(m, k)``, else a number.
    """
    count, columns = len(seen), seen if seen.ndim > 1 else seen[:, None]
    # With the values as more rows the factor's last rows are these, made white: no solving.
    bordered = np.zeros((count + columns.shape[1],) * 2)
    bordered[:count, :count] = between
    np.einsum("mm->m", bordered)[:count] += noise**2
    bordered[count:, :count] = columns.T  # of the other triangle nothing is read
    corner = 1 + 2 * (columns**2).sum() / (noise**2).min(initial=1.0)
    np.einsum("mm->m", bordered)[count:] = corner
    factor = np.linalg.cholesky(bordered)
    white, diagonal = factor[count:, :count], np.diag(factor)[:count]
    constant = 0.5 * count * np.log(2 * np.pi)
    found = -0.5 * (white**2).sum(1) - np.log(diagonal).sum() - constant
    return np.asarray(found.reshape(seen.shape[1:]))


def solved(factor: Array, right: Array) -> Array:
    """``x`` of ``factor @ x = right``, for a lower triangle."""
    # NumPy has no solver for triangles, and the inverse of a whole one takes twice as long. The
    # inverse of a block is as exact here as solving.
    x = np.array(right)
    for begin in range(0, len(factor), BLOCK):
        rows = slice(begin, begin + BLOCK)
        if begin:
            x[rows] -= factor[rows, :begin] @ x[:begin]
        x[rows] = np.linalg.inv(factor[rows, rows]) @ x[rows]
    return x
