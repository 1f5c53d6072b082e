"""All that the probes and the predictions of a study say, each part made when it is asked for."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from tuner.core.configuration import Settings
from tuner.core.measurement import PROBED, Fidelity
from tuner.core.study import Probe, Study
from tuner.planner.estimates import Estimate, Forecast, forecast
from tuner.planner.expected_speed import SpeedOutlook
from tuner.planner.knowledge import Knowledge, learned
from tuner.planner.step_times import fair
from tuner.planner.timing import speed_of
from tuner.results.figures import Figures, predicted_figures, probed_figures


class Evidence:
    """Knowledge of a study, shared by all that is shown of it at one time."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def forecast(self) -> Forecast:
        """Predictions, corrected by what probes and other studies have shown.

        Raises:
            UsageError: the question has no legal settings.
        """
        return forecast(self.study)

    @cached_property
    def knowledge(self) -> Mapping[Fidelity, Knowledge]:
        """Knowledge from probes that ran steps, by how they were run; the fidelity that was
        requested goes first, then the stronger one.

        Raises:
            UsageError: the question has no legal settings.
        """
        asked = self.study.terms.fidelity
        order = sorted(PROBED, key=lambda fidelity: fidelity is not asked)
        return {f: learned(self.study, f) for f in order if self._has(f)}

    @cached_property
    def probed(self) -> Mapping[Fidelity, Mapping[Settings, Figures]]:
        """Findings of these probes by configuration, in the same order."""
        return {fidelity: _found(known) for fidelity, known in self.knowledge.items()}

    @cached_property
    def outlook(self) -> SpeedOutlook | None:
        """Expected times of configurations that were not probed, where the cost model knows no
        rates; ``None`` where it does, or no step was timed.
        """
        known = self.knowledge.get(self.study.terms.fidelity)
        if known is None or not self.forecast.unknown:
            return None
        timed = any(found.step_time.value is not None for found in known.findings.values())
        return SpeedOutlook(known) if timed else None

    def _has(self, fidelity: Fidelity) -> bool:
        return any(p.request.fidelity is fidelity and p.measurement for p in self.study.probes)

    def seen(self, settings: Settings) -> tuple[Figures, ...]:
        """Figures of a measured or emulated configuration, in the order of :attr:`probed`."""
        return tuple(found[settings] for found in self.probed.values() if settings in found)

    def predicted(self, settings: Settings) -> Figures | None:
        """Predicted figures of a legal configuration; ``None`` where nothing is predicted."""
        found = self.forecast.estimates.get(settings)
        return None if found is None else self.of_estimate(found)

    def of_estimate(self, found: Estimate) -> Figures:
        """The figures of a prediction."""
        return predicted_figures(found, self.forecast.limit_bytes)

    def with_speed(self, found: Estimate) -> Estimate:
        """An estimate, with the speed of the :attr:`outlook` where its own is unknown."""
        if self.outlook is None or found.step_time.value is not None:
            return found
        step = self.outlook.seconds(found.settings)
        prediction = replace(
            found.prediction,
            step_time_s=step,
            tokens_per_s_per_gpu=speed_of(step, self.study.question),
            why="" if found.may_fit else found.prediction.why,
        )
        return replace(found, prediction=prediction)


def _found(known: Knowledge) -> dict[Settings, Figures]:
    """Gathers the findings of one fidelity by configuration, in the order of their first probes."""
    probes: dict[Settings, list[Probe]] = defaultdict(list)
    for probe in known.study.probes:
        if probe.measurement is not None:
            probes[probe.request.settings].append(probe)
    # Those that fit have the intervals that the answer has.
    findings = {**known.findings, **fair(known)}
    return {
        settings: probed_figures(known, findings.get(settings), found)
        for settings, found in probes.items()
    }
