"""The way to the answer: each probe as it ended, and the fastest that was known then."""

from collections import defaultdict
from dataclasses import dataclass, replace

from tuner.guard.counts import blamed_by_counts
from tuner.measurement import BROKEN, CLOSES_CLASS, TRAINS_WRONGLY, Fidelity, Measurement, Outcome
from tuner.planner.probes import fits, step_time_of
from tuner.planner.repricing import repriced
from tuner.planner.spending import measured_so_far
from tuner.planner.timing import speed_of, step_time
from tuner.planner.verdicts import wrong_of
from tuner.planner.words import describe
from tuner.quantity import Quantity
from tuner.settings import Settings
from tuner.study import Probe, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One probe that has ended."""

    number: int
    """From 1, in the order in which they ended."""
    probe_id: int
    """The probe's own number."""
    settings: Settings
    """What was tried."""
    words: str
    """The same, as people read it."""
    fidelity: Fidelity
    """How it was run."""
    outcome: Outcome
    """How it ended."""
    fits: bool | None
    """Whether it fits on the study's terms; ``None`` when that is not known."""
    tokens_per_s_per_gpu: Quantity
    """Its own speed; unknown where no step was timed."""
    best: float | None
    """Tokens per second and rank of the fastest that was known to fit then, from all probes of its
    settings up to then; ``None`` before there was one. A repetition may lower it."""
    is_best: bool
    """Whether its settings were the fastest then."""
    wall_s: float
    """Seconds that probes had taken by then; those in which several ran count once."""
    device_s: float
    """Device-seconds that probes had taken by then."""


def progress(study: Study) -> tuple[Progress, ...]:
    """The probes of the fidelity that is asked for, in the order in which they ended."""
    study = repriced(study.at(study.terms.fidelity))
    done = [(probe, probe.measurement) for probe in study.in_order if probe.measurement]
    fastest = _Fastest(study)
    spent = measured_so_far(probe for probe, _ in done)
    return tuple(
        _step(fastest, number, probe, found, taken)
        for number, ((probe, found), taken) in enumerate(zip(done, spent, strict=True), start=1)
    )


def _step(
    fastest: "_Fastest",
    number: int,
    probe: Probe,
    found: Measurement,
    taken: tuple[float, float],
) -> Progress:
    study, settings = fastest.study, probe.request.settings
    speed = speed_of(step_time_of(study, probe, found), study.question)
    is_best = fastest.add(probe, found, speed)
    wall_s, device_s = taken
    return Progress(
        number=number,
        probe_id=probe.id,
        settings=settings,
        words=describe(settings),
        fidelity=probe.request.fidelity,
        outcome=found.outcome,
        fits=fits(study, found),
        tokens_per_s_per_gpu=speed,
        best=fastest.speed,
        is_best=is_best,
        wall_s=wall_s,
        device_s=device_s,
    )


class _Fastest:
    """The fastest settings that are known to fit, while probes are told one after the other."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._probes: dict[Settings, list[Probe]] = defaultdict(list)
        self._speeds: dict[Settings, float] = {}
        self._closed: set[Settings] = set()
        self._closed_classes: set[Settings] = set()
        self._wrong: frozenset[Settings] = frozenset()
        self._told: list[Probe] = []
        self.speed: float | None = None
        """Tokens per second and rank; ``None`` where nothing is known to fit."""

    def add(self, probe: Probe, found: Measurement, own: Quantity) -> bool:
        """Tells of a probe, and of its own speed; whether its settings are the fastest now."""
        settings = probe.request.settings
        self._told.append(probe)
        if found.outcome in TRAINS_WRONGLY or self._wrong:  # another layout may open it again
            self._look_for_wrong()
        ranks = self.study.question.cluster.world_size
        if found.outcome in CLOSES_CLASS and not blamed_by_counts(settings, ranks, found):
            self._closed_classes.add(settings.settings_class)
        elif found.outcome in BROKEN:
            self._closed.add(settings)
        self._forget_closed()
        self._probes[settings].append(probe)
        speed = self._speed_of(settings, own)
        before = self._speeds.pop(settings, None)
        if before is not None and before == self.speed:  # what it was may have been the fastest
            self.speed = max(self._speeds.values(), default=None)
        if speed is None:
            return False
        self._speeds[settings] = speed
        self.speed = speed if self.speed is None else max(speed, self.speed)
        return speed == self.speed

    def _look_for_wrong(self) -> None:
        """What the probes so far have shown to train something else."""
        known = replace(self.study, probes=tuple(self._told), guards={})
        tried = {probe.request.settings for probe in self.study.probes}
        self._wrong = frozenset(wrong_of(known, tried))

    def _forget_closed(self) -> None:
        """What closes a knob's value or a class takes others with it."""
        if closed := [one for one in self._speeds if self._is_closed(one)]:
            for one in closed:
                del self._speeds[one]
            self.speed = max(self._speeds.values(), default=None)

    def _is_closed(self, settings: Settings) -> bool:
        closed = settings in self._closed or settings in self._wrong
        return closed or settings.settings_class in self._closed_classes

    def _speed_of(self, settings: Settings, own: Quantity) -> float | None:
        """Of all probes of some settings together, as the answer has it; ``None`` of what does not
        fit or run.
        """
        found = [probe.measurement for probe in self._probes[settings] if probe.measurement]
        ended = [one for one in found if one.outcome is Outcome.OK]
        if not ended or self._is_closed(settings):
            return None
        if any(fits(self.study, one) is False for one in found):
            return None
        if len(found) == 1 or not ended[-1].step_times_s:
            return own.value
        time = step_time(ended, settings.gradient_accumulation_steps)
        return speed_of(time, self.study.question).value
