"""The settings as environment variables.

Names begin with ``TUNED_``: variables that begin with ``TUNER_`` are settings of this program.
"""

import re

from tuner.export.ranks import threads
from tuner.framework import FrameworkName
from tuner.settings import Settings
from tuner.study import Question

PREFIX = "TUNED_"
LONGEST_LABEL = 63
"""Characters of a DNS label (RFC 1035)."""


def variables(question: Question, settings: Settings) -> dict[str, str]:
    """Every knob, and what it belongs to, by variable; booleans are ``true`` and ``false``.

    Optimizer and number formats of a user's script are its own, and not known.
    """
    work = question.workload
    values = {
        **settings.as_dict(),
        "world_size": question.cluster.world_size,
        "global_batch_size": work.global_batch_size,
        "sequence_length": work.sequence_length,
    }
    if question.script is None:
        values |= {
            "optimizer": work.optimizer,
            "precision": work.precision,
            "reduce_dtype": work.reduce_dtype,
        }
    return {f"{PREFIX}{name.upper()}": _text(value) for name, value in values.items()}


def surroundings(question: Question) -> dict[str, str]:
    """Variables that the ranks themselves need, so that they run as probed or predicted."""
    found = {}
    if count := threads(question):
        found["OMP_NUM_THREADS"] = str(count)
    if question.framework.name is FrameworkName.NANOTRON:
        # asserted by its asynchronous tensor parallelism (parallel/tensor_parallel/functional.py)
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return found


def job_name(study_id: str) -> str:
    """A name for schedulers: a DNS label, whatever the study is called."""
    plain = re.sub(r"[^a-z0-9]+", "-", f"tuned-{study_id}".lower())
    return plain[:LONGEST_LABEL].strip("-")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
