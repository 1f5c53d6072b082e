"""The best that a study knows, with its facts; or the error that says why it knows none."""

from dataclasses import replace

from tuner.core.answer import Suggestion
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import OPEN, Limits, Study, StudyState
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    SpeedUnknownError,
    TrainsWronglyError,
    TunerError,
)
from tuner.explain.english import say
from tuner.explain.facts import AwkwardBatch, Fact, WhatFollows
from tuner.explain.predicted import grounds_of, how_it_stands, predicted_facts
from tuner.explain.probed import (
    failures,
    not_suggested,
    of_other_fidelities,
    probed_facts,
    probes_against,
    what_is_left,
)
from tuner.planner import Stop, next_probe, planned_answer, what_is_needed
from tuner.planner.answer import what_trained_wrongly
from tuner.planner.dry_runs import as_predicted
from tuner.planner.forecast import forecast
from tuner.planner.knowledge import learned
from tuner.planner.sizing import awkward_batch
from tuner.planner.spending import TRAINS_WRONGLY


def answer(study: Study) -> Suggestion:
    """The answer from what is known so far, with facts and words; a pure function of the study.

    Until a probe shows a configuration that fits, the answer to be measured or emulated is what is
    predicted, and says so: ``best.basis`` is ``None`` only where memory was measured or emulated.
    ``best`` is ``None`` where nothing is known to fit, or no speed is known; the explanation says
    why.
    """
    found = planned_answer(study)
    known, predictions, choice = found.known, found.forecast, found.choice
    facts: list[Fact] = []
    if predictions is None:
        assert known is not None
        assert choice is not None
        of_dry_runs = forecast(study) if study.dry_runs else None
        facts += probed_facts(study, known, choice, of_dry_runs)
    elif known is None:
        facts += predicted_facts(predictions, choice)
        facts += grounds_of(predictions)
        facts += probes_against(study, predictions)
    else:
        # It is to be measured or emulated, and nothing that was fits.
        something = choice is not None or bool(predictions.untimed)
        facts += how_it_stands(study, known)
        facts += failures(known)
        facts += [WhatFollows(fidelity=study.limits.fidelity)] if something else []
        if something or not known.too_large:
            facts += predicted_facts(predictions, choice)
            facts += grounds_of(predictions)
        else:
            facts += not_suggested(known.wrong, study)
        facts += what_is_left(known)
        facts += of_other_fidelities(study, known, None)
    if found.suggestion.best is not None:
        batch = awkward_batch(
            study.question, study.limits, lambda _: (study.calibration, study.guards)
        )
        facts += [AwkwardBatch(batch=batch)] if batch else []
    return replace(
        found.suggestion,
        facts=tuple(fact.as_dict() for fact in facts),
        explanation=tuple(map(say, facts)),
    )


def check_limits(study: Study, limits: Limits) -> None:
    """Refuses an answer within other limits than those asked for.

    Whoever asks the same question with other limits gives the study these: what it answers then
    may not fit in the memory, or be of the fidelity, that others had asked for.
    """
    apart = limits.apart(study.limits.as_dict())
    others = [f"{name} {value}" for name, (value, _) in apart.items()]
    if others:
        raise ProbeError(
            f"study {study.id} was asked again with other limits meanwhile ({', '.join(others)}),"
            " and answers within these; ask again"
        )


def best_known(study: Study) -> Suggestion | None:
    """The answer so far; ``None`` while a first dry run is wanted, and nothing else is known."""
    found = answer(study)
    best = found.best
    # Probes of this study, or of others, stand behind it.
    is_from_probes = best is not None and (
        best.basis is None or best.step_time_s.provenance is Provenance.TRANSFERRED
    )
    if study.state not in OPEN or study.dry_runs or is_from_probes:
        return found
    plan = next_probe(as_predicted(study))
    return found if isinstance(plan, Stop) else None


def require_best(study: Study, suggestion: Suggestion) -> Evaluation:
    if suggestion.best is None:
        raise why_none(study, suggestion)
    return suggestion.best


def is_forecast(study: Study, suggestion: Suggestion) -> bool:
    """True where what is suggested is predicted, while it was to be measured or emulated."""
    best, asked = suggestion.best, study.limits.fidelity
    return best is not None and best.basis is not None and asked is not Fidelity.PREDICTED


def why_none(study: Study, suggestion: Suggestion, *, shown: bool = False) -> TunerError:
    """Says why a study has no best: nothing fits, all that does trains something else, no speed is
    known, or nothing ran.

    Of one that was to be measured or emulated, that is a best of this fidelity; there may be a
    predicted one.
    """
    fidelity = study.limits.fidelity
    if fidelity is Fidelity.PREDICTED:
        known, needed = forecast(study), what_is_needed(study)
        if wrong := known.what_is_wrong:
            return TrainsWronglyError(f"{TRAINS_WRONGLY}: {wrong}")
        why = " ".join(suggestion.explanation[:2]) or study.reason
        if shown:
            in_short = what_is_needed(study, named=False) or known.unknown
            why = in_short or " ".join(suggestion.explanation[1:2]) or why
        if needed:
            return NothingFitsError(f"nothing fits: {why}")
        if suggestion.alternatives:
            return SpeedUnknownError(f"no settings are known to be the fastest: {why}")
        return ProbeError(f"study {study.id} has no answer: {why}")
    forecasts, wrong = is_forecast(study, suggestion), what_trained_wrongly(study)
    if wrong and forecasts:  # what was not tried is not known to be wrong
        seen = f"what was {fidelity} and fits trains something else"
        return TrainsWronglyError(f"{seen}: {wrong}. What is suggested is predicted.")
    if wrong or (suggestion.best is None and (wrong := forecast(study).what_is_wrong)):
        return TrainsWronglyError(f"{TRAINS_WRONGLY}: {wrong}")
    why = " ".join(map(say, how_it_stands(study, learned(study, fidelity))))
    why += " What is suggested is predicted." if forecasts else ""
    if {Outcome.OOM, Outcome.OK} & suggestion.probes.keys():
        # A study whose budget was spent first has configurations that were not tried.
        what = "nothing" if study.state is StudyState.FAILED else "nothing that was probed"
        return NothingFitsError(f"{what} fits: {why}")
    return ProbeError(f"study {study.id} has no {fidelity} answer: {why}")
