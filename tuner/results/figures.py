"""Figures of a configuration from one source: memory, speed, and if it fits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tuner.core.answer import GIB
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Provenance, Quantity, weakest
from tuner.core.study import Probe
from tuner.planner.estimates import Estimate
from tuner.planner.findings import Finding
from tuner.planner.knowledge import TEACHES_NOTHING, Knowledge
from tuner.planner.timing import speed_of
from tuner.text import Same

_BY_FIDELITY = {
    Fidelity.MEASURED: Provenance.MEASURED,
    Fidelity.EMULATED: Provenance.EMULATED,
    Fidelity.PREDICTED: Provenance.PREDICTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a configuration from the probes of one fidelity, or as predicted."""

    settings: Settings
    """Which."""
    fidelity: Fidelity
    """How they were run, or that they are predicted."""
    outcome: Outcome | None
    """How the last probe of them ended that says something; ``None`` of a prediction."""
    fits: bool | None
    """Whether they fit, run and train what they should; ``None`` when that is not known."""
    memory_gib: Quantity
    """What must be free on the device that needs most, which is compared with the limit; where they
    ran out of memory, a lower bound. Allocated, and what lies outside the allocator."""
    allocated_gib: Quantity
    """Peak of allocated tensors; unknown where they ran out of memory."""
    tokens_per_s_per_gpu: Quantity
    """Tokens per second and rank; unknown where no step was timed or is predicted."""
    step_time_s: Quantity
    """Seconds of an optimizer step."""
    overshoot_gib: float | None
    """By how much they exceed the limit, at least; ``None`` where they do not, or it is unknown."""
    probes: tuple[int, ...]
    """Numbers of the probes that this is known from, oldest first; of a prediction, its dry run."""
    detail: str
    """What happened, or why it does not fit, in one line; empty where all is well."""

    @property
    def provenance(self) -> Provenance:
        """The weakest of what is known of memory and speed; of neither, how they were run."""
        known = (self.memory_gib, self.step_time_s)
        found = [quantity.provenance for quantity in known if quantity.value is not None]
        return weakest(found) if found else _BY_FIDELITY[self.fidelity]

    @property
    def speed(self) -> float | None:
        """The best estimate of tokens per second and rank."""
        return self.tokens_per_s_per_gpu.value

    @property
    def is_over_limit(self) -> bool:
        """Tells whether they need more than the limit."""
        return self.overshoot_gib is not None


def predicted_figures(found: Estimate, limit_bytes: int) -> Figures:
    """Makes figures of a prediction.

    Args:
        found: their memory and speed, of which at least the memory is known.
        limit_bytes: what one device may need.
    """
    return _predicted(Same(found), limit_bytes)


# Most of what is predicted of a study stays the same when one more probe is done.
@lru_cache(maxsize=8192)
def _predicted(key: Same[Estimate], limit_bytes: int) -> Figures:
    found, prediction = key.value, key.value.prediction
    return Figures(
        settings=found.settings,
        fidelity=Fidelity.PREDICTED,
        outcome=None,
        fits=found.may_fit,
        memory_gib=prediction.needed_bytes.scaled(1 / GIB),
        allocated_gib=prediction.allocated_bytes.scaled(1 / GIB),
        tokens_per_s_per_gpu=prediction.tokens_per_s_per_gpu,
        step_time_s=prediction.step_time_s,
        overshoot_gib=_overshoot_gib(found.expected_bytes, limit_bytes),
        probes=(found.probe.id,) if found.probe else (),
        detail="" if found.may_fit else prediction.why,
    )


def probed_figures(known: Knowledge, finding: Finding | None, probes: Sequence[Probe]) -> Figures:
    """Makes figures of the probes of a configuration.

    Args:
        known: what all probes of their fidelity taught.
        finding: of these settings, if steps were done.
        probes: of these settings, all of them done; one or more.
    """
    ordered = sorted(probes, key=lambda probe: probe.id)
    figures = _of_other(known, ordered) if finding is None else _of_finding(known, finding, ordered)
    need, limit = known.too_large.get(figures.settings), known.limit_bytes
    if need is not None:
        at_least = _exactly(need.bytes, figures.fidelity)
        over = max(need.bytes - limit, 0) / GIB
        memory = figures.memory_gib if finding is not None else at_least
        return replace(figures, fits=False, memory_gib=memory, overshoot_gib=over)
    why = _why_closed(known, figures)
    return replace(figures, fits=False, detail=figures.detail or why) if why else figures


def failed_figures(probe: Probe) -> Figures:
    """Makes figures of a probe that is done, after which nothing is known or predicted."""
    found, fidelity = _last([probe]), probe.request.fidelity
    return Figures(
        settings=probe.request.settings,
        fidelity=fidelity,
        outcome=found.outcome,
        fits=None,
        memory_gib=UNKNOWN,
        allocated_gib=UNKNOWN,
        tokens_per_s_per_gpu=UNKNOWN,
        step_time_s=UNKNOWN,
        overshoot_gib=None,
        probes=(probe.id,),
        detail=_detail(found),
    )


def _of_finding(known: Knowledge, finding: Finding, probes: Sequence[Probe]) -> Figures:
    """Makes figures of a configuration whose steps were done."""
    peak, more = finding.peak, finding.overhead_bytes
    assert peak.value is not None
    assert peak.low is not None
    assert peak.high is not None
    needed = replace(peak, value=peak.value + more, low=peak.low + more, high=peak.high + more)
    last = _last(probes)
    return Figures(
        settings=finding.settings,
        fidelity=probes[0].request.fidelity,
        outcome=last.outcome,
        fits=finding.needed_bytes <= known.limit_bytes,
        memory_gib=needed.scaled(1 / GIB),
        allocated_gib=peak.scaled(1 / GIB),
        tokens_per_s_per_gpu=speed_of(finding.step_time, known.study.question),
        step_time_s=finding.step_time,
        overshoot_gib=None,
        probes=tuple(probe.id for probe in probes),
        detail=_detail(last),
    )


def _of_other(known: Knowledge, probes: Sequence[Probe]) -> Figures:
    """Makes figures of a configuration whose steps were not done, or not all of them."""
    settings, last = probes[0].request.settings, _last(probes)
    slow = known.slow.get(settings)
    time = slow.step_time if slow else UNKNOWN
    fidelity, memory = probes[0].request.fidelity, last.memory
    if memory is not None:
        allocated = _exactly(memory.allocated_bytes, fidelity)
        needed = _exactly(memory.allocated_bytes + memory.overhead_bytes, fidelity)
    else:
        allocated = UNKNOWN
        needed = _exactly(last.oom.needed_bytes, fidelity) if last.oom else UNKNOWN
    return Figures(
        settings=settings,
        fidelity=fidelity,
        outcome=last.outcome,
        # One that ran out under a smaller limit than today's may fit now.
        fits=True if slow and memory is not None else None,
        memory_gib=needed,
        allocated_gib=allocated,
        tokens_per_s_per_gpu=speed_of(time, known.study.question),
        step_time_s=time,
        overshoot_gib=None,
        probes=tuple(probe.id for probe in probes),
        detail=_detail(last),
    )


def _why_closed(known: Knowledge, found: Figures) -> str:
    """Says what other than memory speaks against a configuration; empty where nothing does."""
    if closed := known.closed_classes.get(found.settings.settings_class):
        whose = "settings of its class"
    elif wrong := known.wrong.get(found.settings):
        return wrong.why
    elif closed := known.closed.get(found.settings):
        whose = "it"
    return f"{whose} ended as {closed}" if closed else ""


def _last(probes: Sequence[Probe]) -> Measurement:
    """The last one that says something of the settings, or else the last one."""
    found = [probe.measurement for probe in probes if probe.measurement is not None]
    telling = [one for one in found if one.outcome not in TEACHES_NOTHING]
    return (telling or found)[-1]


def _detail(found: Measurement) -> str:
    return "" if found.outcome is Outcome.OK else found.detail


def _exactly(size_bytes: int, fidelity: Fidelity) -> Quantity:
    """A size that was seen once, in GiB."""
    size = size_bytes / GIB
    return Quantity(value=size, low=size, high=size, provenance=_BY_FIDELITY[fidelity])


def _overshoot_gib(needed_bytes: int, limit_bytes: int) -> float | None:
    return (needed_bytes - limit_bytes) / GIB if needed_bytes > limit_bytes else None
