"""Figures of an answer in words, for people's lines and for files that say where they are from."""

from tuner.quantity import Quantity
from tuner.sizes import size_text
from tuner.study import Question
from tuner.suggestion import GIB, Candidate


def rank_word(question: Question) -> str:
    """What a rank is to its user: a GPU, or just a rank where it is a CPU process."""
    return "rank" if question.cluster.gpu.device == "cpu" else "GPU"


def speed_text(tokens_per_s: float | None) -> str:
    """Tokens per second with three digits or more."""
    if tokens_per_s is None:
        return "-"
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"


def range_text(quantity: Quantity) -> str:
    """``1,201 to 1,260``."""
    return f"{speed_text(quantity.low)} to {speed_text(quantity.high)}"


def speed_range_text(candidate: Candidate, per: str) -> str:
    """``1,243 tokens/s per GPU (1,201 to 1,260)``."""
    speed = candidate.tokens_per_s_per_gpu
    return f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)})"


def memory_range_text(candidate: Candidate, per: str) -> str:
    """``1.61 GiB needed per GPU, of 1.90 GiB (1.20 GiB of it allocated)``."""
    needed = size_text((candidate.needed_gib.value or 0.0) * GIB)
    allocated = size_text((candidate.allocated_gib.value or 0.0) * GIB)
    told = f"{needed} needed per {per}, of {size_text(candidate.limit_gib * GIB)}"
    return told if allocated == needed else f"{told} ({allocated} of it allocated)"
