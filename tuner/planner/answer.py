"""The answer that a study supports so far: on probes, or on predictions until some fit."""

from dataclasses import dataclass, replace

from tuner.core.answer import MOST_ALTERNATIVES, Suggestion
from tuner.core.evaluation import NOT_CHECKED, UNCHECKED, Evaluation, Guard
from tuner.core.framework import usual_loss_kernel
from tuner.core.measurement import PROBED, Fidelity, Outcome
from tuner.core.study import Study
from tuner.guard.faults import NO_REPLICA_OF_A_SCRIPT, known_checks
from tuner.model.shape import shown_workload
from tuner.planner.dry_runs import leading
from tuner.planner.expectation import Expectation
from tuner.planner.forecast import Forecast, forecast
from tuner.planner.knowledge import Knowledge, learned
from tuner.planner.probes import outcomes
from tuner.planner.ranking import Choice, choose, choose_predicted, guard_of, pareto
from tuner.planner.search import ExpectedMemory
from tuner.planner.spending import cost
from tuner.planner.step_times import fair
from tuner.text import count_text

# Layouts that are listed where no speed is known, and none is best.
MOST_UNTIMED = 12
# Probability from which a configuration for which memory suffices is expected to run.
RUNS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An answer, and all that it was chosen from."""

    suggestion: Suggestion  # without facts and words
    choice: Choice | None  # ``None`` where nothing is known to fit, or no speed is known
    known: Knowledge | None = None
    """What the probes of the fidelity that was asked for have taught; ``None`` where that is
    predicted."""
    forecast: Forecast | None = None
    """What the answer was chosen from where it is predicted; else ``None``."""


def answer(study: Study) -> Planned:
    """The answer from what is known so far, at the fidelity asked for; a pure function of the
    study.

    Until a probe shows a configuration that fits, the answer to be measured or emulated is what is
    predicted, and says so: ``best.basis`` is ``None`` only where memory was measured or emulated.
    """
    if study.limits.fidelity not in PROBED:
        return _predicted(study, forecast(study), None)
    known = learned(study)
    choice = choose(study.question, known.fitting, study.limits.tolerance)
    if choice is None:
        # That it has ended says nothing of its dry runs.
        return _predicted(study, _expected(forecast(replace(study, reason="")), known), known)
    return _probed(study, known, choice)


def is_answered(study: Study) -> bool:
    """True where :func:`answer` has a best that stands on what was asked for: on probes, where it
    is to be measured or emulated; on predictions that another request would not look into again."""
    if study.limits.fidelity in PROBED:
        return bool(learned(study).fitting)
    known = forecast(study)
    if study.limits.fidelity is Fidelity.REHEARSED:
        return any(e.is_rehearsed and e.fits for e in known.estimates.values())
    return not known.accidents and predicted_choice(known) is not None


def predicted_choice(known: Forecast) -> Choice | None:
    """The answer and what it is tied with; ``None`` when nothing fits, or nothing is known.

    Configurations whose layout was dry-run go before those that only look faster: a dry run may
    show that these do not fit. So do those that were rehearsed, where that was asked for.
    """
    leader, limits = leading(known), known.study.limits
    question, tolerance = known.study.question, limits.tolerance
    if leader is None:
        return None
    is_rehearsed = limits.fidelity is Fidelity.REHEARSED
    if known.is_settled(leader.settings) and not is_rehearsed:
        return choose_predicted(question, known.promising, tolerance, known.checked)
    tried = [e for e in known.fitting if (e.is_rehearsed if is_rehearsed else e.is_dry_run)]
    expected = [e for e in known.timed if e.fits]
    pools = (tried, known.fitting, expected)
    choices = (choose_predicted(question, pool, tolerance, known.checked) for pool in pools)
    return next(filter(None, choices), None)


def _suggestion(
    whole: Study,
    counted: Study,
    listed: Knowledge | Forecast,
    best: Evaluation | None,
    others: tuple[Evaluation, ...],
    predicted_to_fit: int,
) -> Suggestion:
    question, spent = whole.question, cost(counted)

    def checked(found: Evaluation) -> Evaluation:
        return replace(found, guard=_guard(listed.study, found))

    return Suggestion(
        study_id=whole.id,
        state=str(whole.state),
        workload=shown_workload(question.workload.as_dict()),
        cluster=question.cluster.as_dict(),
        framework=question.framework.as_dict(),
        best=checked(best) if best else None,
        alternatives=tuple(map(checked, others)),
        pareto=tuple(map(checked, pareto(listed.fitting))),
        dead_knobs=listed.space.dead_knobs,
        legal=len(listed.space.legal),
        predicted_to_fit=predicted_to_fit,
        probes=outcomes(counted.probes),
        wall_s=spent.wall_s,
        device_s=spent.device_s,
        loss_kernel="" if question.script else str(usual_loss_kernel(question.framework.name)),
    )


# -- on probes --------------------------------------------------------------------------------


def _probed(whole: Study, known: Knowledge, choice: Choice) -> Planned:
    by_settings, memory = fair(known), ExpectedMemory(known)
    listed = replace(known, findings={**known.findings, **by_settings})
    others = tuple(by_settings[f.settings] for f in known.fitting if f is not choice.best)
    best, shown = by_settings[choice.best.settings], others[:MOST_ALTERNATIVES]
    suggestion = _suggestion(whole, known.study, listed, best, shown, memory.fitting)
    return Planned(suggestion=suggestion, choice=choice, known=known)


def _guard(study: Study, found: Evaluation) -> Guard:
    if found.basis is None and study.question.script is not None:
        return _script_guard(study, found)
    last = found.probes[-1] if found.probes else None
    measurement = last.measurement if last else None
    versions, date = measurement.versions if measurement else {}, last.finished_at if last else None
    guard = guard_of(study, found.settings, versions, date)
    if found.basis is None or found.is_rehearsed or guard.verdict != NOT_CHECKED:
        return guard
    was_tried = any(known_checks(study, found.settings))
    return guard if was_tried else replace(guard, verdict=UNCHECKED)


def _script_guard(study: Study, finding: Evaluation) -> Guard:
    """Says what was seen of a script's steps: it is no check that they train the same."""
    last = finding.probes[-1]
    found = last.measurement
    if found is None:
        return Guard(why=NO_REPLICA_OF_A_SCRIPT)
    asked = finding.settings.gradient_accumulation_steps
    counted = "backward passes could not be counted"
    if found.tracked_accumulation:
        counted = (
            f"counted: {count_text(found.tracked_accumulation, 'backward call')} in an optimizer"
            f" step, with gradient_accumulation_steps={asked};"
            f" {count_text(found.optimizer_steps, 'optimizer step')} in"
            f" {count_text(found.expected_optimizer_steps, 'report')}"
        )
    # How far the first losses are apart: batches in another order differ too.
    firsts = {
        probe.request.settings: probe.measurement.losses[0]
        for probe in study.probes
        if probe.measurement and probe.measurement.outcome is Outcome.OK
        if probe.measurement.losses
    }
    mine = firsts.get(finding.settings)
    others = [loss for settings, loss in firsts.items() if settings != finding.settings]
    losses = "losses could not be compared: they were reported of no two settings"
    if mine is not None and others:
        apart = max(abs(loss - mine) / max(abs(mine), 1e-12) for loss in others)
        many = "that of another settings" if len(others) == 1 else f"those of {len(others)} others"
        losses = f"the first loss that was reported lies within {100 * apart:.2g}% of {many}"
    why = "; ".join((NO_REPLICA_OF_A_SCRIPT, counted, losses))
    return Guard(versions=dict(found.versions), date=last.finished_at, why=why)


# -- on predictions ---------------------------------------------------------------------------


def _predicted(study: Study, found: Forecast, known: Knowledge | None) -> Planned:
    choice = predicted_choice(found)
    if choice is not None:
        others = tuple(e for e in found.fitting if e is not choice.best)[:MOST_ALTERNATIVES]
    else:
        # Where no speed is known, and none is best: what fits.
        others = found.untimed[:MOST_UNTIMED] if leading(found) is not None else ()
    suggestion = _suggestion(
        study,
        known.study if known else study.at(study.limits.fidelity),
        found,
        choice.best if choice else None,
        others,
        sum(bool(e.fits) for e in found.estimates.values()),
    )
    return Planned(suggestion=suggestion, choice=choice, known=known, forecast=found)


def _expected(found: Forecast, known: Knowledge) -> Forecast:
    """Without what is not expected to fit and run, after what the probes have shown."""
    if not (known.too_large or known.failed or known.slow):
        return found
    expectation = Expectation(known)
    why = "the probes of others say that it does not fit, or does not run"
    return replace(
        found,
        estimates={
            s: e
            if expectation.is_expected_to_fit(s) and expectation.runs(s) >= RUNS
            else replace(e, fits=False, why=why)
            for s, e in found.estimates.items()
        },
    )
