"""One probe of a study: its ranks, what they found, and what that says of the settings."""

from collections.abc import Callable
from dataclasses import replace

from tuner.cluster import Cluster, Device
from tuner.cost.emulated import rates_of
from tuner.measurement import Fidelity, Measurement, Outcome
from tuner.study import Probe, Study
from workers.measuring.emulation import with_communication
from workers.measuring.knob_check import check_knobs
from workers.measuring.records import RankRecord
from workers.measuring.spec import probe_spec
from workers.measuring.warm import Kind, WarmRanks


def measure(
    study: Study,
    probe: Probe,
    ranks: WarmRanks,
    *,
    kind: Kind,
    stands_in: bool,
    deadline_s: float,
    pause: Callable[[float], str],
    give_up_above_s: float | None = None,
) -> Measurement:
    """Run a probe.

    Args:
        study: what it is of.
        probe: what to run.
        ranks: to run it on.
        kind: of these ranks.
        stands_in: whether the device here is of another kind than the cluster's.
        deadline_s: seconds after which it is ended.
        pause: waits for so many seconds; why the probe must be given up.
        give_up_above_s: seconds of an optimizer step above which it is not timed further, if there
            are such.

    Raises:
        ProbeError: there is no place for its files, or a rank cannot be killed.
    """
    cluster, request = study.question.cluster, probe.request
    probed = ranks.measure(
        kind,
        probe_spec(study, probe, give_up_above_s=give_up_above_s),
        deadline_s=deadline_s,
        pause=pause,
    )
    found = probed.measurement
    first = probed.records[0] if probed.records else None
    if request.fidelity is Fidelity.EMULATED and isinstance(first, RankRecord):
        rates = rates_of(study.calibration, study.question.workload.precision, cluster)
        found = with_communication(
            found,
            first.emulation,
            request.settings,
            rates.cluster,
            stands_in=stands_in,
            costs=rates.costs,
            at=rates.at,
        )
    if found.outcome is Outcome.STOPPED_EARLY and give_up_above_s is not None:
        found = replace(found, detail=_slower(give_up_above_s))
    return check_knobs(study.question, request.settings, found)


def _slower(than_s: float) -> str:
    return f"a step takes more than {than_s:.3g} s: the fastest so far is surely faster"


def kind_of(cluster: Cluster, fidelity: Fidelity, machines: int = 1) -> Kind:
    """The ranks of a probe on a cluster; alone, one has the cores that it would have with all.

    Args:
        cluster: what is asked about.
        fidelity: of the probe.
        machines: that are there. On one, groups of CPU ranks stand for nodes.
    """
    alone = fidelity is Fidelity.EMULATED
    on_one = cluster.gpu.device is Device.CPU and machines == 1
    return Kind(
        ranks=1 if alone else cluster.world_size,
        world_size=cluster.world_size,
        device=str(cluster.gpu.device),
        nodes=1 if alone or machines == 1 else cluster.nodes,
        fidelity=fidelity,
        sharing=cluster.world_size if on_one else cluster.gpus_per_node,
    )
