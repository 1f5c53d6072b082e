"""How alike two points are, and a Gaussian process on it.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from tuner.search.features import Array

T = TypeVar("T")


def alike(one: Array, other: Array) -> Array:
    """Squared-exponential similarity, shape ``(len(one), len(other))``; 1 for equal rows."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * one @ other.T
    return np.asarray(np.exp(-0.5 * np.maximum(squares, 0.0)))


class ByContents(Generic[T]):
    """A value as the key of a cache: equal where the arrays that stand for it are."""

    def __init__(self, value: T, *arrays: Array) -> None:
        self.value = value
        self._contents = tuple(array.tobytes() for array in arrays)

    def __hash__(self) -> int:
        return hash(self._contents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByContents) and self._contents == other._contents


@contextmanager
def one_thread() -> Iterator[None]:
    """For matrices as small as ours: a BLAS's threads wait for each other where others compute."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """A Gaussian process at the points that were asked for."""

    mean: Array
    """Shape ``(n,)``."""
    variance: Array
    """Shape ``(n,)``; never negative."""


def regress(seen: Array, between: Array, noise: Array, cross: Array, own: Array) -> Posterior:
    """The posterior of a zero-mean Gaussian process.

    Args:
        seen: values that were seen, shape ``(m,)``.
        between: their covariance, shape ``(m, m)``, without noise.
        noise: standard deviation of each value seen, shape ``(m,)``, positive.
        cross: covariance of the points asked for with them, shape ``(n, m)``.
        own: prior variance of the points asked for, shape ``(n,)``.
    """
    if not len(seen):
        return Posterior(mean=np.zeros(len(own)), variance=own)
    factor = np.linalg.cholesky(between + np.diag(noise**2))
    # The inverse of a triangle is as exact here as solving, and one product for all points.
    inverse = np.linalg.inv(factor)
    spread = inverse @ cross.T
    return Posterior(
        mean=spread.T @ (inverse @ seen),
        variance=np.maximum(own - (spread**2).sum(0), 0.0),
    )


def log_likelihood(seen: Array, between: Array, noise: Array) -> float:
    """Of values seen, under a zero-mean Gaussian process; arguments as of :func:`regress`."""
    factor = np.linalg.cholesky(between + np.diag(noise**2))
    white = np.linalg.solve(factor, seen)
    constant = 0.5 * len(seen) * np.log(2 * np.pi)
    return float(-0.5 * white @ white - np.log(np.diag(factor)).sum() - constant)
