"""Accidents that are no one settings' own: after some, more probes would only meet the same."""

from collections import defaultdict

from tuner.measurement import RAN, Outcome
from tuner.planner.knowledge import outcome_of
from tuner.planner.spending import probes_of_asking
from tuner.settings import Settings
from tuner.study import Study

ENOUGH = 3
"""Settings that end in the same accident, while none runs, after which an asking is ended."""

LOOK_AT = {
    Outcome.COMMUNICATION_ERROR: (
        "look at the links between the ranks: the interface that they take (NCCL_SOCKET_IFNAME,"
        " GLOO_SOCKET_IFNAME), firewalls, the fabric; NCCL_DEBUG=INFO says more"
    ),
    Outcome.DEVICE_LOST: (
        "look at the devices: tuner doctor, nvidia-smi, and Xid errors in the kernel's log"
    ),
    Outcome.WORKER_LOST: (
        "look at the machines of the workers: their logs, and whether memory ran out there"
    ),
}
"""Accidents that say nothing of settings, each of which was tried again, and what to look at."""


def same_accident(study: Study) -> str:
    """Which accident all of an asking's probes end in, and what to look at; empty if they do not.

    Args:
        study: with its probes of one fidelity.
    """
    hit: dict[Outcome, dict[Settings, str]] = defaultdict(dict)
    for probe in probes_of_asking(study):
        outcome = outcome_of(probe)
        if outcome in RAN:
            return ""
        if probe.measurement and outcome in LOOK_AT:
            hit[outcome][probe.request.settings] = probe.measurement.detail
    outcome = max(hit, key=lambda one: len(hit[one]), default=None)
    if outcome is None or len(hit[outcome]) < ENOUGH:
        return ""
    count, detail = len(hit[outcome]), next(filter(None, hit[outcome].values()), "")
    seen = f" ({detail})" if detail else ""
    return f"{count} settings ended as {outcome}{seen}, and none ran: {LOOK_AT[outcome]}"
