"""The suggestion that predictions support: arithmetic, corrected by the dry runs made so far."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.core.answer import (
    GIB,
    MOST_ALTERNATIVES,
    NOT_CHECKED,
    UNCHECKED,
    Candidate,
    Guard,
    Suggestion,
)
from tuner.core.study import OPEN, Study, StudyState
from tuner.model.shape import shown_workload
from tuner.planner.dry_runs import leading
from tuner.planner.estimates import Estimate, Forecast, forecast
from tuner.planner.expected_memory import MemoryOutlook
from tuner.planner.explain_answer import what_failed, what_is_left
from tuner.planner.explain_predicted import explain_prediction, why_predicted
from tuner.planner.explain_probes import finished, others_too
from tuner.planner.finalists import guard_of
from tuner.planner.knowledge import Knowledge
from tuner.planner.probes import outcomes
from tuner.planner.ranking import Choice, choose_predicted, pareto
from tuner.planner.spending import cost, spent, wall_is_spent
from tuner.planner.verdicts import known_verdicts, wrong_ones
from tuner.text import size_text

if TYPE_CHECKING:
    from tuner.planner.expected_speed import SpeedOutlook


# Classes that are listed where no speed is known, and none is best.
MOST_UNTIMED = 12


def predicted_answer(study: Study) -> Suggestion:
    """The answer from what is predicted so far; a pure function of the study.

    Raises:
        UsageError: the question has no legal settings.
    """
    known = forecast(study)
    choice = predicted_choice(known)
    found = suggested(study, known, choice)
    return replace(found, explanation=explain_prediction(study, known, choice))


def suggested(
    study: Study, known: Forecast, choice: Choice[Estimate] | None, spent_on: Study | None = None
) -> Suggestion:
    """Makes a suggestion of the predictions that is not explained yet.

    Args:
        study: with the probes of all fidelities.
        known: what is predicted of it.
        choice: the answer.
        spent_on: the study with the probes that are counted, by default its dry runs.
    """
    best = choice.best if choice else None
    counted = spent_on or known.study
    spent = cost(counted)
    return Suggestion(
        study_id=study.id,
        state=str(study.state),
        workload=shown_workload(study.question.workload.as_dict()),
        cluster=study.question.cluster.as_dict(),
        framework=study.question.framework.as_dict(),
        best=_candidate(known, best) if best else None,
        alternatives=tuple(_candidate(known, e) for e in _beside(known, best)),
        pareto=tuple(_candidate(known, e) for e in pareto(known.fitting)),
        dead_knobs=known.space.dead_knobs,
        legal=len(known.space.legal),
        predicted_to_fit=sum(e.may_fit for e in known.estimates.values()),
        probes=outcomes(counted.probes),
        wall_s=spent.wall_s,
        device_s=spent.device_s,
    )


def _beside(known: Forecast, best: Estimate | None) -> tuple[Estimate, ...]:
    """Lists what stands beside the best; where no speed is known and none is best, what fits."""
    if best is not None:
        return tuple(e for e in known.fitting if e is not best)[:MOST_ALTERNATIVES]
    return known.untimed[:MOST_UNTIMED] if leading(known) is not None else ()


def predicted_choice(known: Forecast) -> Choice[Estimate] | None:
    """The answer and what it is tied with; ``None`` when nothing fits, or nothing is known.

    Settings whose class was dry-run go before those that only look faster: a dry run may show
    that these do not fit.
    """
    leader, tolerance = leading(known), known.study.terms.tolerance
    if leader is None:
        return None
    if known.is_settled(leader.settings):
        return choose_predicted(known.promising, tolerance, known.checked)
    dry_run = [e for e in known.fitting if e.is_dry_run]
    expected = [e for e in known.timed if e.may_fit]
    pools = (dry_run, known.fitting, expected)
    choices = (choose_predicted(pool, tolerance, known.checked) for pool in pools)
    return next(filter(None, choices), None)


def has_predicted_answer(study: Study) -> bool:
    """Says if :func:`predicted_answer` has best settings that another asking would not look into
    again; much quicker than to ask for them.
    """
    known = forecast(study)
    return not known.accidents and predicted_choice(known) is not None


def why_no_speed(study: Study) -> str:
    """Why the speed of no settings is known; empty when it is of some."""
    return forecast(study).unknown


def what_is_wrong(study: Study) -> str:
    """Why all settings that are predicted to fit train something else; empty where some do not."""
    return forecast(study).what_is_wrong


def what_is_needed(study: Study, *, named: bool = True) -> str:
    """Says what would be needed, when nothing is predicted to fit; empty when something is.

    Args:
        study: the study.
        named: whether to say by what settings.
    """
    known = forecast(study)
    if leading(known) is None or any(e.may_fit for e in known.estimates.values()):
        return ""
    return known.smallest_need(named=named)


def _candidate(known: Forecast, found: Estimate) -> Candidate:
    prediction = found.prediction
    return Candidate(
        settings=found.settings,
        allocated_gib=prediction.allocated_bytes.scaled(1 / GIB),
        needed_gib=prediction.needed_bytes.scaled(1 / GIB),
        reserved_gib=prediction.reserved_bytes.scaled(1 / GIB),
        device_gib=prediction.device_bytes.scaled(1 / GIB),
        limit_gib=known.limit_bytes / GIB,
        breakdown_gib={name: size / GIB for name, size in prediction.breakdown.items()},
        tokens_per_s_per_gpu=prediction.tokens_per_s_per_gpu,
        step_time_s=prediction.step_time_s,
        guard=_guard(known.study, found),
        basis=prediction.basis,
        by_phase_gib={name: size / GIB for name, size in prediction.by_phase.items()},
    )


def _guard(study: Study, found: Estimate) -> Guard:
    """The verdict that is kept; else with what, and when, the class was dry-run."""
    measurement = found.probe.measurement if found.probe else None
    versions = measurement.versions if measurement else {}
    date = found.probe.finished_at if found.probe else None
    guard = guard_of(study, found.settings, versions, date)
    was_tried = any(known_verdicts(study, found.settings))
    unchecked = guard.verdict == NOT_CHECKED and not was_tried
    return replace(guard, verdict=UNCHECKED) if unchecked else guard


# Probability from which settings for which memory suffices are expected to run.
RUNS = 0.5


def foreseen_answer(study: Study, known: Knowledge) -> Suggestion:
    """The forecast as the answer of a study; ``best`` is ``None`` where nothing is known to fit.

    Args:
        study: with the probes of all fidelities.
        known: what those of its terms' fidelity have taught; none of them fits.
    """
    # that it has ended says nothing of its dry runs
    foreseen = _expected(forecast(replace(study, reason="")), known)
    choice = predicted_choice(foreseen)
    found = suggested(study, foreseen, choice, known.study)
    return replace(found, explanation=tuple(_why(study, known, foreseen, choice)))


def _expected(foreseen: Forecast, known: Knowledge) -> Forecast:
    """Without what is not expected to fit and run, after what the probes have shown."""
    if not (known.too_large or known.failed or known.slow):
        return foreseen
    from tuner.planner.expected_speed import SpeedOutlook  # imports NumPy

    outlook = SpeedOutlook(known)
    return replace(
        foreseen,
        estimates={
            settings: found if _is_expected(outlook, found) else _without(found)
            for settings, found in foreseen.estimates.items()
        },
    )


def _is_expected(outlook: "SpeedOutlook", found: Estimate) -> bool:
    """Tells whether settings fit and run, as far as probes of others say too."""
    return outlook.is_expected_to_fit(found.settings) and outlook.runs(found.settings) >= RUNS


def _without(found: Estimate) -> Estimate:
    """An estimate of what the probes of others speak against."""
    why = "the probes of others say that it does not fit, or does not run"
    return replace(found, prediction=replace(found.prediction, fits=False, why=why))


def _why(
    study: Study, known: Knowledge, foreseen: Forecast, choice: Choice[Estimate] | None
) -> Iterator[str]:
    fidelity, something = study.terms.fidelity, choice is not None or foreseen.untimed
    yield from standing(study, known)
    yield from what_failed(known)
    if something:
        yield f"What follows is predicted, until something is {fidelity} that fits."
    if something or not known.too_large:
        yield from why_predicted(foreseen, choice)
    else:
        yield from wrong_ones(known.wrong)
    yield from what_is_left(known)
    yield from others_too(study, known)


def standing(study: Study, known: Knowledge) -> Iterator[str]:
    """Says what the probes have shown of memory, why the study has ended, and how to go on."""
    outlook = MemoryOutlook(known)
    need = outlook.smallest_need()
    if not finished(known):
        yield f"Nothing was {study.terms.fidelity} yet: no probe is done."
    elif why := outlook.what_is_wrong():
        yield f"What was {study.terms.fidelity} and fits trains something else: {why}."
    elif need:
        yield f"None of the settings probed was seen to fit in {size_text(known.limit_bytes)}."
        yield f"{need[0].upper()}{need[1:]}."
    else:
        yield "No probe has given a result."
    if study.state not in OPEN and study.reason and not (need and need in study.reason):
        yield f"The study has ended: {study.reason}."
        yield from _how_to_go_on(study, known)


def _how_to_go_on(study: Study, known: Knowledge) -> Iterator[str]:
    if spent(known.study) or _is_out_of_time(study):
        terms = study.terms
        options = {"--budget": terms.wall_s, "--max-gpu-seconds": terms.device_s}
        named = ["--max-probes", *(option for option, value in options.items() if value)]
        yield f"Ask again with a larger budget ({', '.join(named)}): it goes on where it ended."
    elif study.state is StudyState.CANCELLED:
        yield "Ask again, and it goes on where it ended."


def _is_out_of_time(study: Study) -> bool:
    """Tells whether a worker ended it so, which knows the seconds that are spent between probes
    too.
    """
    budget_s = study.terms.wall_s
    return budget_s is not None and study.reason.startswith(wall_is_spent(budget_s))
