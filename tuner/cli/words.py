"""Questions, settings and findings in words, for lines that people read."""

from tuner.cli.rows import Row
from tuner.cli.units import speed_text
from tuner.quantity import Quantity
from tuner.sizes import size_text
from tuner.study import Question
from tuner.suggestion import GIB, Candidate


def question_text(question: Question) -> str:
    """``stories15m on cpu:2 (torch), global batch 8, sequence 128, adamw, bf16``."""
    workload = question.workload
    return (
        f"{workload.model.name} on {question.cluster.name} ({question.framework.name}),"
        f" global batch {workload.global_batch_size}, sequence {workload.sequence_length},"
        f" {workload.optimizer}, {workload.precision}"
    )


def rank_word(question: Question) -> str:
    """What a rank is to its user: a GPU, or just a rank where it is a CPU process."""
    return "rank" if question.cluster.gpu.device == "cpu" else "GPU"


def row_text(row: Row, per: str) -> str:
    """What probes have shown: ``ok, 612 MiB, 1,243 tokens/s per GPU``."""
    parts = [row.outcome]
    if row.needed_bytes is not None:
        parts.append(f"{'more than ' if row.at_least else ''}{size_text(row.needed_bytes)}")
    if row.speed.value is not None:
        parts.append(f"{speed_text(row.speed.value)} tokens/s per {per}")
    elif row.detail and not row.at_least:
        parts.append(row.detail)
    return ", ".join(parts)


def speed_range_text(candidate: Candidate, per: str) -> str:
    """``1,243 tokens/s per GPU (1,201 to 1,260)``."""
    speed = candidate.tokens_per_s_per_gpu
    return f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)})"


def memory_range_text(candidate: Candidate, per: str) -> str:
    """``612 MiB allocated per GPU, of 1.90 GiB``."""
    allocated = (candidate.allocated_gib.value or 0.0) * GIB
    limit = size_text(candidate.limit_gib * GIB)
    return f"{size_text(allocated)} allocated per {per}, of {limit}"


def range_text(quantity: Quantity) -> str:
    """``1,201 to 1,260``."""
    return f"{speed_text(quantity.low)} to {speed_text(quantity.high)}"
