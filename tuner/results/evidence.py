"""All that the probes and the predictions of a study say, each part made when it is asked for."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import PROBED, Fidelity, Measurement, Outcome
from tuner.core.study import Probe, Study
from tuner.planner.forecast import Forecast, forecast
from tuner.planner.knowledge import TEACHES_NOTHING, Knowledge, exactly, learned, measurements_of
from tuner.planner.outlook import Outlook
from tuner.planner.step_times import fair
from tuner.planner.timing import speed_of


class Evidence:
    """Knowledge of a study, shared by all that is shown of it at one time."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def forecast(self) -> Forecast:
        return forecast(self.study)

    @cached_property
    def knowledge(self) -> Mapping[Fidelity, Knowledge]:
        """Knowledge from probes that ran steps, by how they were run; the fidelity that was
        requested goes first, then the stronger one.
        """
        asked, probes = self.study.limits.fidelity, self.study.probes
        there = {p.request.fidelity for p in probes if p.measurement}
        order = sorted(PROBED, key=lambda fidelity: fidelity is not asked)
        return {f: learned(self.study, f) for f in order if f in there}

    @cached_property
    def probed(self) -> Mapping[Fidelity, Mapping[Settings, Evaluation]]:
        """Findings of these probes by configuration, in the same order."""
        return {fidelity: _found(known) for fidelity, known in self.knowledge.items()}

    @cached_property
    def outlook(self) -> Outlook | None:
        """Expected times of configurations that were not probed, where the cost model knows no
        rates; ``None`` where it does, or no step was timed.
        """
        known = self.knowledge.get(self.study.limits.fidelity)
        if known is None or not self.forecast.unknown:
            return None
        timed = any(found.step_time_s.value is not None for found in known.findings.values())
        return Outlook(known) if timed else None

    def seen(self, settings: Settings) -> tuple[Evaluation, ...]:
        """Measured and emulated results of a configuration, in the order of :attr:`probed`."""
        return tuple(found[settings] for found in self.probed.values() if settings in found)

    def predicted(self, settings: Settings) -> Evaluation | None:
        return self.forecast.estimates.get(settings)

    def with_speed(self, found: Evaluation) -> Evaluation:
        """An estimate, with the speed of the :attr:`outlook` where its own is unknown."""
        if self.outlook is None or found.step_time_s.value is not None:
            return found
        step = self.outlook.seconds(found.settings)
        speed = speed_of(step, self.study.question)
        why = "" if found.fits else found.why
        return replace(found, step_time_s=step, tokens_per_s_per_gpu=speed, why=why)


def _found(known: Knowledge) -> dict[Settings, Evaluation]:
    """Gathers the findings of one fidelity by configuration, in the order of their first probes:
    those that failed too."""
    by_settings: dict[Settings, list[Probe]] = defaultdict(list)
    for probe in known.study.probes:
        if probe.measurement is not None:
            by_settings[probe.request.settings].append(probe)
    # Those that fit have the intervals that the answer has.
    findings, evaluated = {**known.findings, **fair(known)}, {}
    for settings, probes in by_settings.items():
        ordered = tuple(sorted(probes, key=lambda probe: probe.id))
        finding, last, fidelity = findings.get(settings), _last(ordered), probes[0].request.fidelity
        slow, need = known.slow.get(settings), known.too_large.get(settings)
        found = replace(
            finding or slow or Evaluation(settings=settings, fidelity=fidelity),
            outcome=last.outcome,
            why="" if last.outcome is Outcome.OK else last.detail,
            probes=ordered,
            limit_bytes=known.limit_bytes,
        )
        if finding is None and (memory := last.memory) is not None:
            found = replace(
                found,
                fits=True if slow else None,
                allocated_bytes=exactly(memory.allocated_bytes, fidelity),
                needed_bytes=exactly(memory.allocated_bytes + memory.overhead_bytes, fidelity),
            )
        elif finding is None and last.oom:
            # One that ran out under a smaller limit than today's may fit now.
            found = replace(found, needed_bytes=exactly(last.oom.needed_bytes, fidelity))
        if need is not None:
            needed = found.needed_bytes if finding else need.needed_bytes
            found = replace(found, fits=False, over_bytes=need.over_bytes, needed_bytes=needed)
        elif closed := why_closed(known, settings):
            found = replace(found, fits=False, why=found.why or closed)
        evaluated[settings] = found
    return evaluated


def failed(probe: Probe) -> Evaluation:
    found, request = _last([probe]), probe.request
    why = "" if found.outcome is Outcome.OK else found.detail
    return Evaluation(
        settings=request.settings,
        fidelity=request.fidelity,
        outcome=found.outcome,
        why=why,
        probes=(probe,),
    )


def why_closed(known: Knowledge, settings: Settings) -> str:
    """Says what other than memory speaks against a configuration; empty where nothing does."""
    if closed := known.closed_layouts.get(settings.settings_class):
        return f"settings of its class ended as {closed}"
    if wrong := known.wrong.get(settings):
        return wrong.why
    closed = known.closed.get(settings)
    return f"it ended as {closed}" if closed else ""


def _last(probes: Sequence[Probe]) -> Measurement:
    """The last one that says something of the configuration, or else the last one."""
    found = measurements_of(probes)
    telling = [one for one in found if one.outcome not in TEACHES_NOTHING]
    return (telling or found)[-1]
