"""What is left of an asking's budget."""

from math import inf

from tuner.planner.spending import cost_of_asking, devices_held, probes_of_asking
from tuner.study import Study


def spent(study: Study) -> str:
    """Which part of the budget is spent; empty when some of all is left."""
    probes, terms = probes_of_asking(study), study.terms
    if len(probes) >= terms.max_probes:
        noun = "probe" if terms.max_probes == 1 else "probes"
        return f"the budget of {terms.max_probes} {noun} is spent"
    if terms.wall_s is not None and cost_of_asking(study).wall_s >= terms.wall_s:
        return wall_is_spent(terms.wall_s)
    if terms.device_s is not None and cost_of_asking(study).device_s >= terms.device_s:
        return device_time_is_spent(terms.device_s)
    return ""


def wall_is_spent(budget_s: float) -> str:
    """What is said when the time that an asking may take is spent."""
    return f"the budget of {budget_s:g} s is spent"


def device_time_is_spent(budget_s: float) -> str:
    """What is said when the device-seconds of an asking are spent."""
    return f"the budget of {budget_s:g} device-seconds is spent"


def remaining_wall_s(study: Study) -> float | None:
    """Seconds left; the tighter of the two budgets of time."""
    wall_s, device_time_s = study.terms.wall_s, remaining_device_time_s(study)
    left = [inf if wall_s is None else wall_s - cost_of_asking(study).wall_s, device_time_s]
    return None if min(left) == inf else min(left)


def remaining_device_time_s(study: Study) -> float:
    """Seconds for which a probe may still hold its devices; infinite without such a budget."""
    budget = study.terms.device_s
    if budget is None:
        return inf
    return (budget - cost_of_asking(study).device_s) / devices_held(study)
