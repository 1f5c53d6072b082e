"""The candidates of a search, with what is predicted of each before anything is tried."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.search.features import Array
from tuner.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """``n`` candidates. All arrays have shape ``(n,)`` but ``features``."""

    settings: Sequence[Settings]
    """What they are; all legal, each once."""
    features: Array
    """Shape ``(n, d)``: see :func:`tuner.search.features.settings_features`."""
    log_seconds: Array
    """Natural logarithm of the predicted seconds of an optimizer step; ``nan`` where unknown."""
    log_need: Array
    """Natural logarithm of the bytes that one device is predicted to need."""
    need_error: Array
    """Standard deviation of that prediction."""
    runs: Array
    """Probability that they run at all, if memory suffices."""
    simplicity: Array
    """Larger is simpler; decides between candidates of which the same is expected."""
    log_limit: float
    """Natural logarithm of the bytes that one device may need."""
    workload: Array
    """Shape ``(w,)``: see :func:`tuner.search.features.workload_features`."""
