"""Whether a study needs probes at all, what it answers until then, and why it has no answer."""

from collections.abc import Mapping
from dataclasses import replace

from tuner import planner
from tuner.answering.advance import advance_from_cache, conclude, end_of
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    SpeedUnknownError,
    TrainsWronglyError,
    TunerError,
)
from tuner.measurement import Fidelity
from tuner.planner import (
    Stop,
    answer,
    next_probe,
    what_is_needed,
    what_is_wrong,
    why_no_speed,
)
from tuner.planner.dry_runs import MOST_CLASSES, MOST_DRY_RUNS
from tuner.planner.plans import TRAINS_WRONGLY
from tuner.quantity import Provenance
from tuner.store import Store
from tuner.study import OPEN, Question, Study, StudyState, Terms
from tuner.suggestion import Candidate, Suggestion


def answered_before(store: Store, question: Question, terms: Terms) -> Study | None:
    """The study of the same question, if it was answered on the same terms; else ``None``."""
    study = store.find(question)
    return study if study is not None and is_answered(study, terms) else None


def is_answered(study: Study, terms: Terms, *, here: bool = True) -> bool:
    """Whether a study was answered on these terms, so that asking again would find nothing new.

    Args:
        study: the study.
        terms: on which it is asked again.
        here: whether what is not installed here cannot be dry-run.
    """
    if study.state is not StudyState.DONE or study.terms != terms:
        return False
    if terms.fidelity is Fidelity.PREDICTED:
        # Where torch was not there, and is now, more can be said.
        return end_of(study, here=here) is not None and planner.is_answered(study)
    return planner.is_answered(study)


def check_terms(study: Study, terms: Terms) -> None:
    """Refuses an answer on other terms than were asked for.

    Whoever asks the same question on other terms puts the study on these: what it answers then may
    not fit in the memory, or be of the fidelity, that others had asked for.

    Raises:
        ProbeError: the study is on other terms; with those that differ.
    """
    wanted = terms.as_dict()
    others = [f"{name} {value}" for name, value in study.terms.as_dict().items()
              if value != wanted[name]]  # fmt: skip
    if others:
        raise ProbeError(
            f"study {study.id} was asked again on other terms meanwhile ({', '.join(others)}), and"
            " answers on these; ask again"
        )


def closed_without_probes(store: Store, study: Study) -> Study | None:
    """The study at its end, if nothing more is worth probing on its terms; else ``None``."""
    if study.terms.fidelity is Fidelity.PREDICTED:
        return conclude(store, advance_from_cache(store, study))
    return closed_as_probed(store, study)


def closed_as_probed(store: Store, study: Study) -> Study | None:
    """The same of a study that is not predicted."""
    if study.state is not StudyState.QUEUED or not study.probes:
        return None
    plan = next_probe(study)
    if not isinstance(plan, Stop) or plan.failure:
        return None
    moved = store.move(
        study.id,
        StudyState.DONE,
        plan.reason,
        expect={StudyState.QUEUED},
        revision=study.revision,
    )
    return store.study(study.id) if moved else None


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


def foresee(store: Store, study: Study, installed: Mapping[str, str]) -> Study:
    """Enter what dry runs that are kept say of a study, until something is measured.

    Args:
        store: where the study is.
        study: of any fidelity.
        installed: as of :func:`tuner.answering.advance.kept_dry_run`.

    Returns:
        The study after that.

    Raises:
        StoreError: the database fails.
    """
    return advance_from_cache(store, study, installed, as_predicted)


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
    """Whether probes of this study, or of others, stand behind the best settings."""
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
    """Whether what is suggested is predicted, while it was to be measured or emulated."""
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
    """What a predicted answer lacks; empty where nothing is known."""
    return what_is_needed(study, named=False) or why_no_speed(study)
