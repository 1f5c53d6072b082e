"""A probe of a study, as the JSON that every rank reads."""

from typing import Any

from tuner.measurement import Fidelity
from tuner.rank_spec import rank_spec
from tuner.study import Probe, Study
from workers.measuring.emulation import card_bytes

WARMUP_STEPS = 3
"""The first steps load kernels, fill the allocator's pools and make the optimizer's state."""
TRACKED_STEPS = 2
"""Of the warm-up: the second is the first one in steady state."""
MEASURED_STEPS = 10
"""Enough for an interval of the median."""
MINIMUM_STEPS = 3
"""The least that says anything about spread."""
TIME_BUDGET_S = 10.0
"""For the measured steps: on a small CPU machine ten probes stay within minutes."""


def probe_spec(
    study: Study, probe: Probe, *, give_up_above_s: float | None = None
) -> dict[str, Any]:
    """The ``spec.json`` of ``probe``.

    The accumulation counts that are run are the request's own, or the settings' where it names
    none; the last one is tracked. Above ``give_up_above_s`` seconds of an optimizer step no more
    of them are timed.
    """
    settings = probe.request.settings
    return {
        **rank_spec(study.question.workload, settings, study.question.cluster),
        "memory_limit_bytes": _limit_bytes(study, probe),
        "seed": study.seed,
        "accumulation_counts": list(
            probe.request.accumulation_counts or (settings.gradient_accumulation_steps,)
        ),
        "warmup_steps": WARMUP_STEPS,
        "tracked_steps": TRACKED_STEPS,
        "measured_steps": MEASURED_STEPS,
        "minimum_steps": MINIMUM_STEPS,
        "time_budget_s": TIME_BUDGET_S,
        "fidelity": str(probe.request.fidelity),
        "give_up_above_s": give_up_above_s,
    }


def _limit_bytes(study: Study, probe: Probe) -> int | None:
    """The terms' limit; of a probe of rank 0 alone also what the cluster's GPU leaves tensors.

    The one device has no communicators, and may be larger than the cluster's.
    """
    limit = probe.memory_limit_bytes
    if probe.request.fidelity is not Fidelity.EMULATED:
        return limit
    card = card_bytes(probe.request.settings, study.question.cluster)
    return card if limit is None else min(limit, card)
