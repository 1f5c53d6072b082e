"""What failed, and how much was seen: sentences that name the probes."""

from collections.abc import Iterator

from tuner.measurement import Outcome
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.planner.words import MOST_NAMED, describe, seconds_text
from tuner.sizes import size_text
from tuner.study import Probe

_TOLD_ELSEWHERE = frozenset({Outcome.OK, Outcome.OOM, Outcome.STOPPED_EARLY})


def out_of_memory(known: Knowledge) -> Iterator[str]:
    """Which settings ran out of memory, and what they would have needed."""
    ran_out = [p for p in finished(known) if p.measurement and p.measurement.outcome is Outcome.OOM]
    if ran_out:
        named = "; ".join(_oom_text(probe) for probe in ran_out[:MOST_NAMED])
        yield f"Out of memory: {named}{_rest(ran_out)}."


def failures(known: Knowledge) -> Iterator[str]:
    """Which probes ended otherwise without a result, and why."""
    failed = [
        probe
        for probe in finished(known)
        if probe.measurement and probe.measurement.outcome not in _TOLD_ELSEWHERE
    ]
    if failed:
        named = "; ".join(_failure_text(probe) for probe in failed[:MOST_NAMED])
        yield f"Without a result: {named}{_rest(failed)}."


def stopped_early(known: Knowledge) -> Iterator[str]:
    """Which probes were ended because they were slower than the fastest known could be."""
    slow = [
        p
        for p in finished(known)
        if p.measurement and p.measurement.outcome is Outcome.STOPPED_EARLY
    ]
    if slow:
        named = "; ".join(_slow_text(known, probe) for probe in slow[:MOST_NAMED])
        yield f"Ended early, slower than the fastest could be: {named}{_rest(slow)}."


def coverage(known: Knowledge) -> Iterator[str]:
    """How much of the space was probed."""
    tried = known.tried
    probed = sum(1 for s in known.space.legal if s in tried)
    total, count = len(known.space.legal), len(finished(known))
    probes = "1 probe" if count == 1 else f"{count} probes"
    yield f"{probed} of the {total} legal settings were probed, in {probes}."


def finished(known: Knowledge) -> list[Probe]:
    """Probes that have an outcome, oldest first; what was withdrawn by another asking has none."""
    found = (p for p in known.study.probes if outcome_of(p) not in (None, Outcome.CANCELLED))
    return sorted(found, key=lambda p: p.id)


def _oom_text(probe: Probe) -> str:
    oom = probe.measurement.oom if probe.measurement else None
    where = f" in {oom.phase}, needing at least {size_text(oom.needed_bytes)}" if oom else ""
    return f"{describe(probe.request.settings)}{where} (probe #{probe.id})"


def _slow_text(known: Knowledge, probe: Probe) -> str:
    settings = probe.request.settings
    slow = known.slow.get(settings)
    seconds = slow.step_time.value if slow else None
    taken = f", about {seconds_text(seconds)} for a step" if seconds is not None else ""
    return f"{describe(settings)}{taken} (probe #{probe.id})"


def _failure_text(probe: Probe) -> str:
    assert probe.measurement is not None
    detail = f", {probe.measurement.detail}" if probe.measurement.detail else ""
    settings = describe(probe.request.settings)
    return f"{settings} ended as {probe.measurement.outcome}{detail} (probe #{probe.id})"


def _rest(probes: list[Probe]) -> str:
    return f"; and {len(probes) - MOST_NAMED} more" if len(probes) > MOST_NAMED else ""
