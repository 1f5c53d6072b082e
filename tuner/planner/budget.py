"""What is left of an asking's budget."""

from math import inf

from tuner.measurement import Fidelity
from tuner.planner.knowledge import probes_of_asking, total_measured
from tuner.study import Study


def spent(study: Study) -> str:
    """Which part of the budget is spent; empty when some of all is left."""
    probes, terms = probes_of_asking(study), study.terms
    if len(probes) >= terms.max_probes:
        noun = "probe" if terms.max_probes == 1 else "probes"
        return f"the budget of {terms.max_probes} {noun} is spent"
    if terms.wall_s is not None and _wall_s(study) >= terms.wall_s:
        return wall_is_spent(terms.wall_s)
    return device_time_is_spent(study)


def wall_is_spent(budget_s: float) -> str:
    """What is said when the time that an asking may take is spent."""
    return f"the budget of {budget_s:g} s is spent"


def device_time_is_spent(study: Study) -> str:
    """Says so when no device-seconds are left; empty when some are."""
    budget = study.terms.device_s
    if budget is None or _device_s(study) < budget:
        return ""
    return f"the budget of {budget:g} device-seconds is spent"


def remaining_wall_s(study: Study) -> float | None:
    """Seconds left; the tighter of the two budgets of time."""
    wall_s, device_time_s = study.terms.wall_s, remaining_device_time_s(study)
    left = [inf if wall_s is None else wall_s - _wall_s(study), device_time_s]
    return None if min(left) == inf else min(left)


def remaining_device_time_s(study: Study) -> float:
    """Seconds for which a probe may still hold its devices; infinite without such a budget."""
    budget = study.terms.device_s
    return inf if budget is None else (budget - _device_s(study)) / devices_held(study)


def devices_held(study: Study) -> int:
    """Devices that a probe holds: all of the cluster's, or the one that plays one of them."""
    if study.terms.fidelity is Fidelity.EMULATED:
        return 1
    return study.question.cluster.world_size


def _wall_s(study: Study) -> float:
    """Seconds of this asking's probes, also of attempts that came to nothing."""
    wall_s, _ = total_measured(probe.measurement for probe in probes_of_asking(study))
    return wall_s + study.fruitless_s


def _device_s(study: Study) -> float:
    """Seconds times the devices held for them; a dry run holds none."""
    _, device_s = total_measured(probe.measurement for probe in probes_of_asking(study))
    is_dry = study.terms.fidelity is Fidelity.PREDICTED
    return device_s + (0.0 if is_dry else study.fruitless_s * devices_held(study))
