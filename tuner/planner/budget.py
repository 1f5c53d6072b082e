"""What is left of an asking's budget."""

from tuner.measurement import Fidelity
from tuner.planner.knowledge import probes_of_asking, total_measured
from tuner.study import Study


def spent(study: Study) -> str:
    """Which part of the budget is spent; empty when some of all is left."""
    probes, terms = probes_of_asking(study), study.terms
    wall_s, device_s = total_measured(probe.measurement for probe in probes)
    if len(probes) >= terms.max_probes:
        noun = "probe" if terms.max_probes == 1 else "probes"
        return f"the budget of {terms.max_probes} {noun} is spent"
    if terms.wall_s is not None and wall_s >= terms.wall_s:
        return f"the budget of {terms.wall_s:g} s is spent"
    if terms.device_s is not None and device_s >= terms.device_s:
        return f"the budget of {terms.device_s:g} device-seconds is spent"
    return ""


def remaining_wall_s(study: Study) -> float | None:
    """Seconds left; the tighter of the two budgets of time."""
    wall_s, device_s = total_measured(p.measurement for p in probes_of_asking(study))
    terms, devices = study.terms, devices_held(study)
    left = [
        None if terms.wall_s is None else terms.wall_s - wall_s,
        None if terms.device_s is None else (terms.device_s - device_s) / devices,
    ]
    return min((seconds for seconds in left if seconds is not None), default=None)


def devices_held(study: Study) -> int:
    """Devices that a probe holds: all of the cluster's, or the one that plays one of them."""
    if study.terms.fidelity is Fidelity.EMULATED:
        return 1
    return study.question.cluster.world_size
