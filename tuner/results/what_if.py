"""Predicts any legal configuration of a study's space by the cost model.

The figures are those that a predicted answer has for the same settings, never measured ones. What
probes found of the very settings stands beside them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tuner.core.configuration import InactiveKnob, Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.measurement import Basis
from tuner.core.quantity import Provenance, Quantity, weakest
from tuner.core.study import Study
from tuner.core.words import describe, seconds_text
from tuner.cost.prediction import unknown_prediction
from tuner.errors import UsageError
from tuner.explain.english import basis_text, failure_text, grounds_text, say
from tuner.explain.memory import memory_facts
from tuner.planner.forecast import evaluated
from tuner.results.choices import Choices, choices
from tuner.results.evidence import Evidence
from tuner.space import check_settings, settings_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Prediction for one configuration; fields as of its evaluation."""

    settings: Settings
    words: str
    collapsed: tuple[InactiveKnob, ...]
    """Knobs that were asked for at other values, with the reasons why they have not got them."""
    global_batch_size: int
    fits: bool | None
    why: str
    """Why they are not, or why a quantity is unknown; empty when all is known and fits."""
    limit_gib: float
    memory_gib: Quantity
    allocated_gib: Quantity
    reserved_gib: Quantity
    device_gib: Quantity
    breakdown_gib: Mapping[str, float]
    by_phase_gib: Mapping[str, float]
    outside_gib: float
    basis: Basis | None
    tokens_per_s_per_gpu: Quantity
    step_time_s: Quantity
    notes: tuple[str, ...]
    """What is to be known of the figures, in sentences: what they are from, and how sure."""
    seen: tuple[Evaluation, ...]
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
        evidence, known = self.evidence, self.evidence.forecast
        notes: Iterable[str] = ()
        if (found := known.estimates.get(checked)) is not None:
            notes, found = _notes(evidence, found), evidence.with_speed(found)
        else:
            if refused := known.refused.get(checked.settings_class):
                why = f"their dry run failed: {failure_text(refused)}"
            elif wrong := known.wrong.get(checked):
                why = wrong.why
            else:
                why = next(why for why, ones in known.uncovered.items() if checked in ones)
            found = evaluated(checked, unknown_prediction(known.limit_bytes, why))
        return WhatIf(
            settings=checked,
            words=describe(checked),
            collapsed=collapsed,
            global_batch_size=question.workload.global_batch_size,
            fits=found.fits,
            why=found.why,
            limit_gib=known.limit_bytes / GIB,
            memory_gib=found.needed_gib,
            allocated_gib=found.allocated_gib,
            reserved_gib=found.reserved_gib,
            device_gib=found.device_gib,
            breakdown_gib=found.breakdown_gib,
            by_phase_gib=found.by_phase_gib,
            outside_gib=found.outside_bytes / GIB,
            basis=found.basis,
            tokens_per_s_per_gpu=found.tokens_per_s_per_gpu,
            step_time_s=found.step_time_s,
            notes=tuple(notes),
            seen=evidence.seen(checked),
        )

    def explain(self, settings: Settings) -> tuple[str, ...]:
        """Explains where the predicted memory of a legal configuration goes, and what each knob
        would change.
        """
        question, known = self.study.question, self.evidence.forecast
        if settings not in known.estimates:
            return ()
        profiles = {key: profile for key, (profile, _) in known.profiles.items()}
        return tuple(map(say, memory_facts(question, settings, profiles)))


def what_if(study: Study, settings: Settings, *, given: Collection[str] = ()) -> WhatIf:
    """Predicts one configuration of one question, as :meth:`Predictor.what_if` does.

    Raises:
        UsageError: the settings are not legal, or not in the space that the study looks at.
    """
    return Predictor(study).what_if(settings, given=given)


def _notes(evidence: Evidence, found: Evaluation) -> Iterator[str]:
    """Lists what the figures rest on, and what to know of them."""
    known = evidence.forecast
    why = known.why_no_dry_run(found.settings) if not found.probes else ""
    yield f"The memory is {basis_text(found)}{f': {why}' if why else ''}."
    rates = " at assumed rates" if known.at_assumed_rates else ""
    if found.step_time_s.value is None:
        if evidence.outlook:
            yield f"The step time is {grounds_text(evidence.outlook.grounds)}."
    elif found.factor == 1.0 and not found.near:
        yield f"The step time is by arithmetic{rates}."
    else:
        whom = "other studies" if found.near else "the probes of this study"
        before = seconds_text(found.seconds / found.factor)
        yield (
            f"The step time is {before} by arithmetic{rates}, times {found.factor:.2f}: by so much"
            f" {whom} found other steps to be off."
        )
    yield from (f"{note[0].upper()}{note[1:]}." for note in found.notes)
    if found.probes:
        yield from (f"Of its dry run: {note}." for note in known.notes(found))
