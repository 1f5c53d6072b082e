"""Questions, settings and findings in words, for lines that people read."""

from tuner.answering.words import speed_text
from tuner.results.rows import Row
from tuner.sizes import size_text
from tuner.study import Question


def question_text(question: Question) -> str:
    """``stories15m on cpu:2 (torch), global batch 8, sequence 128, adamw, bf16``.

    Optimizer and precision of a user's script are its own, and not known.
    """
    workload = question.workload
    known = f", {workload.optimizer}, {workload.precision}" if question.script is None else ""
    return (
        f"{question.trained} on {question.cluster.name} ({question.framework.name}),"
        f" global batch {workload.global_batch_size}, sequence {workload.sequence_length}{known}"
    )


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
