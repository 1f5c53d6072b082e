"""This machine: whether it is what a study asks about."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tuner.cluster import Cluster
from tuner.errors import ProbeError, UsageError
from tuner.framework import not_installed
from tuner.machine import Machine, together
from tuner.machine.capabilities import stands_in, why_not_emulated, why_not_measured
from tuner.measurement import Fidelity
from tuner.study import Question
from workers.launchers.site import Site

T = TypeVar("T")


def judged(site: Site) -> Machine | None:
    """A site's machines as one, for :func:`check_machine`; ``None`` where it is this machine.

    Raises:
        ProbeError: what is there cannot be found out.
    """
    return None if site.is_here else together(site.machines())


def check_machine(
    question: Question, fidelity: Fidelity = Fidelity.MEASURED, there: Machine | None = None
) -> bool:
    """Refuse what cannot be measured, or emulated, here.

    Args:
        question: what is asked.
        fidelity: measured or emulated.
        there: this machine as it was described before; it is looked at anew unless given.

    Returns:
        Whether the device here is of another kind than the cluster's, which it is large enough for.

    Raises:
        ProbeError: this machine is not the cluster, or has no device that can play one of its, or
            has other versions than were stated.
    """
    for package, version, found in not_installed(question.framework):
        raise ProbeError(
            f"the question states {package} {version}; a probe here would measure"
            f" {found or 'no version'}"
        )
    cluster = question.cluster
    if fidelity is not Fidelity.EMULATED:
        check_cluster(cluster, there)
        return False
    _refuse(cluster, _seen(cluster, partial(why_not_emulated, there=there)))
    return _seen(cluster, partial(stands_in, there=there))


def check_cluster(cluster: Cluster, there: Machine | None = None) -> None:
    """Refuse a cluster that this machine is not.

    Args:
        cluster: what is asked about.
        there: as of :func:`check_machine`.

    Raises:
        ProbeError: so it is.
    """
    _refuse(cluster, _seen(cluster, partial(why_not_measured, there=there)))


def _seen(cluster: Cluster, look: Callable[[Cluster], T]) -> T:
    """What a look at this machine says of a cluster."""
    try:
        return look(cluster)
    except UsageError as error:
        raise ProbeError(f"{cluster.name} is asked about; {error}") from error


def _refuse(cluster: Cluster, why: str) -> None:
    if why:
        raise ProbeError(f"{cluster.name} is asked about; {why}")
