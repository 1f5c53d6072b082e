"""The best that a study knows, or why it knows none."""

from dataclasses import replace

from tuner import planner
from tuner.core.answer import Candidate, Suggestion
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance
from tuner.core.study import MOST_CLASSES, MOST_DRY_RUNS, OPEN, Study, StudyState, Terms
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    SpeedUnknownError,
    TrainsWronglyError,
    TunerError,
)
from tuner.planner import (
    Stop,
    answer,
    next_probe,
    what_is_needed,
    what_is_wrong,
    why_no_speed,
)
from tuner.planner.spending import TRAINS_WRONGLY


def check_terms(study: Study, terms: Terms) -> None:
    """Refuses an answer on other terms than were asked for.

    Whoever asks the same question on other terms puts the study on these: what it answers then may
    not fit in the memory, or be of the fidelity, that others had asked for.

    Raises:
        ProbeError: the study is on other terms; with those that differ.
    """
    apart = terms.apart(study.terms.as_dict())
    others = [f"{name} {value}" for name, (value, _) in apart.items()]
    if others:
        raise ProbeError(
            f"study {study.id} was asked again on other terms meanwhile ({', '.join(others)}), and"
            " answers on these; ask again"
        )


def as_predicted(study: Study) -> Study:
    """The study as if predictions had been asked for, by the dry runs that it has."""
    if study.terms.fidelity is Fidelity.PREDICTED:
        return study
    terms = replace(
        study.terms,
        fidelity=Fidelity.PREDICTED,
        max_probes=MOST_CLASSES,
        max_dry_runs=MOST_DRY_RUNS,
    )
    return replace(study, terms=terms)


def best_known(study: Study) -> Suggestion | None:
    """The answer as it stands; ``None`` while a first dry run is wanted, and nothing else is known.

    Raises:
        UsageError: the question has no legal settings.
    """
    found = answer(study)
    if study.state not in OPEN or study.dry_runs or _is_from_probes(found):
        return found
    plan = next_probe(as_predicted(study))
    return found if isinstance(plan, Stop) else None


def _is_from_probes(suggestion: Suggestion) -> bool:
    """Tells whether probes of this study, or of others, stand behind the best settings."""
    best = suggestion.best
    if best is None:
        return False
    return best.basis is None or best.step_time_s.provenance is Provenance.TRANSFERRED


def require_best(study: Study, suggestion: Suggestion) -> Candidate:
    """The best settings of an answer.

    Raises:
        NothingFitsError: there are none, for want of memory.
        TrainsWronglyError: there are none, for all that fit train something else.
        SpeedUnknownError: some fit, but no speed is known.
        ProbeError: there are none, because no probe had a result.
    """
    if suggestion.best is None:
        raise why_none(study, suggestion)
    return suggestion.best


def is_forecast(study: Study, suggestion: Suggestion) -> bool:
    """Tells whether what is suggested is predicted, while it was to be measured or emulated."""
    best, asked = suggestion.best, study.terms.fidelity
    return best is not None and best.basis is not None and asked is not Fidelity.PREDICTED


def why_none(study: Study, suggestion: Suggestion, *, shown: bool = False) -> TunerError:
    """Why a study has no best settings: nothing fits, all that does trains something else, no speed
    is known, or nothing ran.

    Of one that was to be measured or emulated, these are best settings of that fidelity; there may
    be predicted ones.

    Args:
        study: the study.
        suggestion: its answer.
        shown: whether the answer is shown too, so that the error need not repeat it.
    """
    if study.terms.fidelity is not Fidelity.PREDICTED:
        return _why_unprobed(study, suggestion)
    if wrong := what_is_wrong(study):
        return TrainsWronglyError(f"{TRAINS_WRONGLY}: {wrong}")
    why = " ".join(suggestion.explanation[:2]) or study.reason
    if shown:
        why = _in_short(study) or " ".join(suggestion.explanation[1:2]) or why
    if what_is_needed(study):
        return NothingFitsError(f"nothing fits: {why}")
    if suggestion.alternatives:
        return SpeedUnknownError(f"no settings are known to be the fastest: {why}")
    return ProbeError(f"study {study.id} has no answer: {why}")


def _why_unprobed(study: Study, suggestion: Suggestion) -> TunerError:
    """Why nothing was measured, or emulated, that fits and trains what it should."""
    wrong = planner.what_trained_wrongly(study)
    if wrong or (suggestion.best is None and (wrong := what_is_wrong(study))):
        if is_forecast(study, suggestion):  # settings that were not tried are not known to be wrong
            seen = f"what was {study.terms.fidelity} and fits trains something else"
            return TrainsWronglyError(f"{seen}: {wrong}. What is suggested is predicted.")
        return TrainsWronglyError(f"{TRAINS_WRONGLY}: {wrong}")
    why = planner.why_unprobed(study)
    why += " What is suggested is predicted." if is_forecast(study, suggestion) else ""
    if {"oom", "ok"} & suggestion.probes.keys():
        # A study whose budget was spent first has settings that were not tried.
        what = "nothing" if study.state is StudyState.FAILED else "nothing that was probed"
        return NothingFitsError(f"{what} fits: {why}")
    return ProbeError(f"study {study.id} has no {study.terms.fidelity} answer: {why}")


def _in_short(study: Study) -> str:
    """Says what a predicted answer lacks; empty where nothing is known."""
    return what_is_needed(study, named=False) or why_no_speed(study)
