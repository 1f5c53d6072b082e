"""Predicts any legal configuration of a study's space by the cost model.

The figures are those that a predicted answer has for the same settings, never measured ones. What
probes found of the very settings stands beside them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tuner.core.answer import GIB
from tuner.core.configuration import InactiveKnob, Settings
from tuner.core.measurement import Basis
from tuner.core.quantity import Provenance, Quantity, weakest
from tuner.core.study import Study
from tuner.core.words import describe, seconds_text
from tuner.cost.explain import explain_memory
from tuner.cost.prediction import Prediction, unknown_prediction
from tuner.errors import UsageError
from tuner.planner.estimates import Estimate
from tuner.planner.explain_predicted import basis_text, failure_text
from tuner.results.choices import Choices, choices
from tuner.results.evidence import Evidence
from tuner.results.figures import Figures
from tuner.space import check_settings, settings_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Prediction for one configuration."""

    settings: Settings
    """What they are, dead knobs at their canonical value."""
    words: str
    """The same, as people read it."""
    collapsed: tuple[InactiveKnob, ...]
    """Knobs that were asked for at other values, with the reasons why they have not got them."""
    global_batch_size: int
    """Sequences of one optimizer step: always the study's."""
    fits: bool | None
    """Whether they are expected to fit and run; ``None`` when nothing is known."""
    why: str
    """Why they are not, or why a quantity is unknown; empty when all is known and fits."""
    limit_gib: float
    """What one device may need."""
    memory_gib: Quantity
    """What must be free on a device: what is compared with the limit."""
    allocated_gib: Quantity
    """Peak of allocated tensors."""
    reserved_gib: Quantity
    """Peak held by the caching allocator."""
    device_gib: Quantity
    """What the device's own tool would show."""
    breakdown_gib: Mapping[str, float]
    """Allocated memory by category at the peak; adds up to ``allocated_gib``."""
    by_phase_gib: Mapping[str, float]
    """The highest allocated memory of each phase."""
    outside_gib: float
    """What lies outside the allocator: the device's context, and communicators."""
    basis: Basis | None
    """What the memory was computed from; ``None`` when it is unknown."""
    tokens_per_s_per_gpu: Quantity
    """Tokens per second and rank."""
    step_time_s: Quantity
    """Seconds of an optimizer step."""
    notes: tuple[str, ...]
    """What is to be known of the figures, in sentences: what they are from, and how sure."""
    seen: tuple[Figures, ...]
    """What was measured or emulated of these very settings, the fidelity asked for first."""

    @property
    def provenance(self) -> Provenance:
        """The weakest of the memory's and the speed's; of what is unknown, the other's."""
        known = (self.memory_gib, self.step_time_s)
        return weakest(one.provenance for one in known if one.value is not None)


class Predictor:
    """Answers what-if questions of one study; what they share is made once, at the first one.

    Safe to use from any thread.
    """

    def __init__(self, study: Study, evidence: Evidence | None = None) -> None:
        self.study = study
        self.evidence = evidence or Evidence(study)

    @cached_property
    def choices(self) -> Choices:
        """Lists the choices.

        Raises:
            UsageError: the question has no legal settings.
        """
        return choices(self.study)

    def what_if(self, settings: Settings, *, given: Collection[str] = ()) -> WhatIf:
        """Predicts a configuration, with what was seen of it.

        Args:
            settings: as for :func:`tuner.space.check_settings`: an accumulation of 1 counts as
                left out, and is derived from the global batch.
            given: names of knobs that were written, as there.

        Raises:
            UsageError: the settings are not legal, or not in the space that the study looks at.
        """
        question = self.study.question
        checked = check_settings(question, settings, given=given)
        if checked not in self.choices:
            raise UsageError("settings", str(checked), "is not in the space of this study")
        collapsed = settings_notes(question, settings, given=given)
        found = self.evidence.forecast.estimates.get(checked)
        if found is not None:
            notes = _notes(self.evidence, found)
            prediction = self.evidence.with_speed(found).prediction
            return _what_if(self.evidence, checked, prediction, collapsed, notes)
        limit, why = self.evidence.forecast.limit_bytes, self._why_nothing(checked)
        return _what_if(self.evidence, checked, unknown_prediction(limit, why), collapsed, ())

    def explain(self, settings: Settings) -> tuple[str, ...]:
        """Explains where the predicted memory of a legal configuration goes, and what each knob
        would change.
        """
        question, known = self.study.question, self.evidence.forecast
        if settings not in known.estimates:
            return ()
        return explain_memory(
            question.workload,
            question.cluster,
            question.framework,
            settings,
            profiles={key: profile for key, (profile, _) in known.profiles.items()},
        )

    def _why_nothing(self, settings: Settings) -> str:
        """Why nothing is predicted of legal settings."""
        known = self.evidence.forecast
        if refused := known.refused.get(settings.settings_class):
            return f"their dry run failed: {failure_text(refused)}"
        if wrong := known.wrong.get(settings):
            return wrong.why
        return next(why for why, ones in known.uncovered.items() if settings in ones)


def what_if(study: Study, settings: Settings, *, given: Collection[str] = ()) -> WhatIf:
    """Predicts one configuration of one question, as :meth:`Predictor.what_if` does.

    Raises:
        UsageError: the settings are not legal, or not in the space that the study looks at.
    """
    return Predictor(study).what_if(settings, given=given)


def _what_if(
    evidence: Evidence,
    settings: Settings,
    prediction: Prediction,
    collapsed: tuple[InactiveKnob, ...],
    notes: Iterable[str],
) -> WhatIf:
    is_known = prediction.needed_bytes.value is not None
    outside = prediction.context_bytes + prediction.communicator_bytes
    return WhatIf(
        settings=settings,
        words=describe(settings),
        collapsed=collapsed,
        global_batch_size=evidence.study.question.workload.global_batch_size,
        fits=prediction.fits if is_known else None,
        why=prediction.why,
        limit_gib=evidence.forecast.limit_bytes / GIB,
        memory_gib=prediction.needed_bytes.scaled(1 / GIB),
        allocated_gib=prediction.allocated_bytes.scaled(1 / GIB),
        reserved_gib=prediction.reserved_bytes.scaled(1 / GIB),
        device_gib=prediction.device_bytes.scaled(1 / GIB),
        breakdown_gib=_parts_gib(prediction.breakdown),
        by_phase_gib=_parts_gib(prediction.by_phase),
        outside_gib=outside / GIB,
        basis=prediction.basis if is_known else None,
        tokens_per_s_per_gpu=prediction.tokens_per_s_per_gpu,
        step_time_s=prediction.step_time_s,
        notes=tuple(notes),
        seen=evidence.seen(settings),
    )


def _parts_gib(sizes_bytes: Mapping[str, float]) -> dict[str, float]:
    return {name: size / GIB for name, size in sizes_bytes.items()}


def _notes(evidence: Evidence, found: Estimate) -> Iterator[str]:
    """Lists what the figures rest on, and what to know of them."""
    known = evidence.forecast
    why = known.why_no_dry_run(found.settings) if found.probe is None else ""
    yield f"The memory is {basis_text(found)}{f': {why}' if why else ''}."
    yield from _of_time(evidence, found)
    yield from (f"{note[0].upper()}{note[1:]}." for note in found.prediction.notes)
    if found.probe is not None:
        yield from (f"Of its dry run: {note}." for note in known.notes(found))


def _of_time(evidence: Evidence, found: Estimate) -> Iterator[str]:
    """Says what the step time is from; nothing where it is unknown."""
    if found.step_time.value is None:
        yield from [f"The step time is {evidence.outlook.grounds}."] if evidence.outlook else []
        return
    rates = " at assumed rates" if evidence.forecast.at_assumed_rates else ""
    if found.factor == 1.0 and not found.near:
        yield f"The step time is by arithmetic{rates}."
        return
    whom = "other studies" if found.near else "the probes of this study"
    before = seconds_text(found.seconds / found.factor)
    yield (
        f"The step time is {before} by arithmetic{rates}, times {found.factor:.2f}: by so much"
        f" {whom} found other steps to be off."
    )
