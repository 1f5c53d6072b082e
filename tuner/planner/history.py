"""What the probes of earlier studies found, over what is predicted of them today.

NumPy, which is slow to import: this module is imported where a study has a past.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log, nan

import numpy as np

from tuner.cluster import Cluster
from tuner.cost.calibration import Calibration
from tuner.measurement import BROKEN, PROBED, Measurement, Outcome
from tuner.planner import candidates
from tuner.planner.timing import step_time
from tuner.search.features import settings_features, workload_features
from tuner.search.kernel import alike
from tuner.search.trials import Past, joined
from tuner.settings import Settings
from tuner.study import Study
from tuner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the probes of one settings found in an earlier study."""

    settings: Settings
    """Which."""
    seconds: float | None
    """Of an optimizer step; ``None`` where none was timed."""
    ran: bool
    """Whether its steps were done."""


def past_of(study: Study) -> Past | None:
    """The probes of a study's past as trials of earlier searches; ``None`` where there are none.

    Predictions are of each one's own question, by arithmetic, with the rates that are known of the
    devices today. Each settings is one trial: repetitions are pooled, and what was measured goes
    before what was emulated.
    """
    return _past_of(_Key(study.past, study.calibration)) if study.past else None


class _Key:
    """A past and today's rates. A past is the same one only while it is the same object: it is kept
    from one step of planning to the next, and studies cannot be hashed."""

    def __init__(self, past: tuple[Study, ...], calibration: Calibration | None) -> None:
        self.past, self.calibration = past, calibration

    def __hash__(self) -> int:
        return hash((id(self.past), self.calibration))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key):
            return False
        return self.past is other.past and self.calibration == other.calibration


@lru_cache(maxsize=4)
def _past_of(key: _Key) -> Past | None:
    parts = [_past(number, earlier, key.calibration) for number, earlier in enumerate(key.past)]
    return joined([part for part in parts if part.size])


def _past(number: int, study: Study, calibration: Calibration | None) -> Past:
    question, found = study.question, found_in(study)
    asked = candidates.Asked(question, calibration)
    predicted = [_predicted(asked, one.settings) for one in found]
    return past_trials(number, question.workload, question.cluster, found, predicted)


def past_trials(
    number: int,
    workload: Workload,
    cluster: Cluster,
    found: Sequence[Found],
    predicted_s: Sequence[float],
) -> Past:
    """What was found in one earlier study, as trials of a search.

    Args:
        number: that tells the study from others.
        workload: of the study.
        cluster: of the study.
        found: what was found.
        predicted_s: seconds of a step of each of them; ``nan`` where they are unknown.
    """
    rows = list(zip(found, predicted_s, strict=True))
    return Past(
        study=np.full(len(found), float(number)),
        features=settings_features([one.settings for one in found], cluster),
        workload=np.tile(workload_features(workload, cluster), (len(found), 1)),
        log_excess=np.array([_excess(one.seconds, seconds) for one, seconds in rows]),
        ran=np.array([float(one.ran) for one in found]),
        expected=np.full(len(found), candidates.RUNS),
    )


def studies_alike(study: Study, past: Past, least: float) -> Iterator[Study]:
    """The earlier studies with trials in ``past`` whose workload is at least so much alike.

    Args:
        study: with its past.
        past: trials of it.
        least: similarity from which a study is told; the most similar ones come first.
    """
    question = study.question
    here = workload_features(question.workload, question.cluster)
    similar = alike(here[None, :], past.workload)[0]
    weights = {int(n): float(w) for n, w in zip(past.study, similar, strict=True)}
    for number, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0])):
        if weight >= least:
            yield study.past[number]


def found_in(study: Study) -> tuple[Found, ...]:
    """What a study's probes found, by settings. Outcomes that teach nothing are left out."""
    groups: dict[Settings, Found] = {}
    for fidelity in reversed(PROBED):
        by_settings: dict[Settings, list[Measurement]] = defaultdict(list)
        for probe in study.at(fidelity).probes:
            if probe.measurement is not None:
                by_settings[probe.request.settings].append(probe.measurement)
        for settings, measurements in by_settings.items():
            if (one := _found(settings, measurements)) is not None:
                groups[settings] = one
    return tuple(groups.values())


def _found(settings: Settings, measurements: Sequence[Measurement]) -> Found | None:
    """Of all repetitions together; one that ran says that the settings run.

    Those that ran out of memory or time say nothing of settings that have enough of both.
    """
    ran = [m for m in measurements if m.outcome is Outcome.OK]
    if ran:
        seconds = step_time(ran, settings.gradient_accumulation_steps).value
        return Found(settings=settings, seconds=seconds, ran=True)
    if any(m.outcome in BROKEN for m in measurements):
        return Found(settings=settings, seconds=None, ran=False)
    return None


def _excess(seen: float | None, predicted: float) -> float:
    """Logarithm of what was seen over what was predicted; ``nan`` where one is not known."""
    return log(seen / predicted) if seen and predicted > 0 else nan


# A study is planned again after every probe, and its past stays the same.
@lru_cache(maxsize=1024)
def _predicted(asked: candidates.Asked, settings: Settings) -> float:
    """Seconds of a step; ``nan`` where they are unknown."""
    _, step = candidates.predicted(asked.question, settings, asked.calibration)
    return step.value or nan
