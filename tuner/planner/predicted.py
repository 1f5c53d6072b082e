"""The suggestion that predictions support: arithmetic, corrected by the dry runs made so far."""

from dataclasses import replace

from tuner.model.unknown import shown_workload
from tuner.planner.dry_runs import leading
from tuner.planner.estimate import Estimate
from tuner.planner.estimates import Forecast, forecast
from tuner.planner.guarding import guard_of
from tuner.planner.predicted_words import explain_prediction
from tuner.planner.probes import outcomes
from tuner.planner.ranking import Choice, choose_predicted, pareto
from tuner.planner.spending import cost
from tuner.planner.verdicts import known_verdicts
from tuner.study import Study
from tuner.suggestion import (
    GIB,
    MOST_ALTERNATIVES,
    NOT_CHECKED,
    UNCHECKED,
    Candidate,
    Guard,
    Suggestion,
)

MOST_UNTIMED = 12
"""Classes that are listed where no speed is known, and none is best."""


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
    """What is predicted, as a suggestion that is not explained yet.

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
    """What is listed beside the best; where no speed is known and none is best, what fits."""
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
    """Whether :func:`predicted_answer` has best settings that another asking would not look into
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
    """What would be needed, when no settings are predicted to fit; empty when some are.

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
