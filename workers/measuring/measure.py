"""One probe of a study: its order, its ranks' findings, and what these say of the configuration."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from tuner.catalog.gpus import cuda_bytes
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Settings
from tuner.core.framework import usual_loss_kernel
from tuner.core.measurement import RAN, Emulation, Fidelity, Measurement, Outcome
from tuner.core.study import Probe, Question, Study
from tuner.cost.memory.device import device_terms
from tuner.cost.time.emulated import Rates, priced, rates_of
from tuner.dryrun.plan import rank_spec
from tuner.guard.check import inactive_knob
from tuner.text import show
from workers.measuring.ranks import Kind, WarmRanks
from workers.measuring.records import RankEmulation, RankRecord
from workers.probe.giving_up import computing

# The first steps load kernels, fill the allocator's pools and make the optimizer's state.
WARMUP_STEPS = 3
# Of the warm-up: the second is the first one in steady state.
TRACKED_STEPS = 2
# Enough for an interval of the median.
MEASURED_STEPS = 10
# The least that says anything about spread.
MINIMUM_STEPS = 3
# For the measured steps: on a small CPU machine ten probes stay within minutes.
TIME_BUDGET_S = 10.0


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
    """Runs a probe.

    Args:
        pause: waits for so many seconds; the reason to give the probe up, empty without one.

    Raises:
        ProbeError: there is no place for its files, or a rank cannot be killed.
    """
    cluster, request = study.question.cluster, probe.request
    spec = probe_spec(study, probe, give_up_above_s=give_up_above_s)
    probed = ranks.measure(kind, spec, deadline_s=deadline_s, pause=pause)
    found = probed.measurement
    first = probed.records[0] if probed.records else None
    if request.fidelity is Fidelity.EMULATED and isinstance(first, RankRecord):
        rates = rates_of(study.calibration, study.question.workload.precision, cluster)
        alone, settings = first.emulation, request.settings
        found = with_communication(found, alone, settings, rates, stands_in=stands_in)
    if request.fidelity is Fidelity.REHEARSED:
        found = as_rehearsed(found, request.settings, cluster)
    if found.outcome is Outcome.STOPPED_EARLY and give_up_above_s is not None:
        detail = f"a step takes more than {give_up_above_s:.3g} s: the fastest so far is surely"
        found = replace(found, detail=f"{detail} faster")
    return check_knobs(study.question, request.settings, found)


def probe_spec(
    study: Study, probe: Probe, *, give_up_above_s: float | None = None
) -> dict[str, Any]:
    """The ``spec.json`` of a probe, which every rank reads.

    The accumulation counts that are run are the request's own, or the configuration's where it
    names none; the last one is tracked. Above ``give_up_above_s`` seconds of an optimizer step no
    more of them are timed.
    """
    settings, cluster = probe.request.settings, study.question.cluster
    limit = probe.memory_limit_bytes
    counts = probe.request.accumulation_counts or (settings.gradient_accumulation_steps,)
    if probe.request.fidelity is Fidelity.REHEARSED:
        # nothing is timed, and two micro-batches hold as much as any larger number of them
        counts = (min(settings.gradient_accumulation_steps, 2),)
    if probe.request.fidelity is not Fidelity.MEASURED:
        # The one device has no communicators, and may be larger than the cluster's. Of the card
        # what CUDA offers, which is less than the memory that the driver reports.
        gpu, terms = cluster.gpu, device_terms(settings, cluster, 0.0)
        is_cpu = gpu.device is Device.CPU
        total = gpu.memory_bytes if is_cpu else cuda_bytes(gpu.name, gpu.memory_bytes)
        beside = (terms.context.value or 0.0) + (terms.communicators.value or 0.0)
        card = max(1, int(total - beside))
        limit = card if limit is None else min(limit, card)
    kernel = {"loss_kernel": str(usual_loss_kernel(study.question.framework.name))}
    return {
        **rank_spec(study.question.workload, settings, cluster),
        **(kernel if settings.fused_loss else {}),
        "memory_limit_bytes": limit,
        "seed": study.seed,
        "accumulation_counts": list(counts),
        "warmup_steps": WARMUP_STEPS,
        "tracked_steps": TRACKED_STEPS,
        "measured_steps": MEASURED_STEPS,
        "minimum_steps": MINIMUM_STEPS,
        "time_budget_s": TIME_BUDGET_S,
        "fidelity": str(probe.request.fidelity),
        "give_up_above_s": give_up_above_s,
    }


def with_communication(
    measurement: Measurement,
    found: RankEmulation | None,
    settings: Settings,
    rates: Rates,
    *,
    stands_in: bool,
) -> Measurement:
    """The measurement of an emulated probe, with step times and memory as on the cluster.

    A step takes its computing and the communication that it waits for. Beside the device's own
    overhead are the buffers of the communicators that are not there.
    """
    if measurement.outcome not in RAN or found is None or measurement.memory is None:
        return measurement
    compute, phases = {}, {}
    for count, steps in found.phase_times_s.items():
        each = [computing(step, found.copies_s[count]) for step in steps]
        compute[count] = tuple(sum(one.values()) for one in each)
        phases[count] = {p: median(step.get(p, 0.0) for step in each) for p in each[0]}
    memory = measurement.memory
    terms = device_terms(settings, rates.cluster, memory.allocated_bytes)
    buffers = terms.communicators.value or 0.0
    alone = replace(
        measurement,
        memory=replace(
            memory,
            device_bytes=memory.device_bytes + int(buffers),
            overhead_bytes=memory.overhead_bytes + int(buffers),
        ),
        emulation=Emulation(
            compute_s=compute,
            exposed_s={},
            collectives=dict(found.collectives),
            stands_in=stands_in,
            phases_s=phases,
            copies_left_out=found.copies_left_out,
        ),
    )
    return priced(alone, settings, rates)


def as_rehearsed(found: Measurement, settings: Settings, cluster: Cluster) -> Measurement:
    """The measurement of a rehearsed probe: no device was held, and beside its allocator's peak is
    what the cost model says of context and communicators."""
    own = "torch's CUDA allocator without a GPU: its libraries are stood in for"
    found = replace(found, device_s=0.0, hardware={"device": own})
    if (memory := found.memory) is None:
        return found
    terms = device_terms(settings, cluster, memory.allocated_bytes)
    beside = int((terms.context.value or 0.0) + (terms.communicators.value or 0.0))
    total = memory.reserved_bytes + beside
    return replace(found, memory=replace(memory, device_bytes=total, overhead_bytes=beside))


def check_knobs(question: Question, settings: Settings, measurement: Measurement) -> Measurement:
    """The measurement, with the outcome ``knob_inactive`` if an active knob did not act.

    One without tracked steps is left as it is.
    """
    count = measurement.tracked_accumulation
    if measurement.outcome not in RAN or not count:
        return measurement
    tracked = replace(settings, gradient_accumulation_steps=count)
    found = inactive_knob(question.workload, tracked, question.cluster, measurement)
    if found is None:
        return measurement
    value = show(getattr(settings, found.knob))
    detail = f"{found.knob}={value} acted as {show(found.value)}: {found.why}"
    inactive = Outcome.KNOB_INACTIVE
    return replace(measurement, outcome=inactive, detail=detail, knob=found.knob)


def kind_of(cluster: Cluster, fidelity: Fidelity, machines: int = 1) -> Kind:
    """The ranks of a probe on a cluster; alone, one has the cores that it would have with all.

    Args:
        machines: that are there. On one, groups of CPU ranks stand for nodes.
    """
    alone = fidelity is not Fidelity.MEASURED
    on_one = cluster.gpu.device is Device.CPU and machines == 1
    return Kind(
        ranks=1 if alone else cluster.world_size,
        world_size=cluster.world_size,
        device=str(cluster.gpu.device),
        nodes=1 if alone or machines == 1 else cluster.nodes,
        fidelity=fidelity,
        sharing=cluster.world_size if on_one else cluster.gpus_per_node,
    )
