"""Chooses the layout to dry-run next, or the configuration to rehearse, and decides when the answer
needs no further one."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, log1p

from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.framework import NOT_PROBED
from tuner.core.measurement import Fidelity
from tuner.core.study import MOST_DRY_RUNS, MOST_LAYOUTS, ProbeRequest, Study
from tuner.core.words import need_text
from tuner.planner.forecast import Forecast, forecast
from tuner.planner.knowledge import Knowledge, last_failure, learned
from tuner.planner.ranking import choose_predicted, complexity
from tuner.planner.spending import TRAINS_WRONGLY, Stop, probes_of_request, spent


def next_dry_run(study: Study) -> ProbeRequest | Stop:
    """The class to dry-run next, as a probe of those of its settings that lead."""
    known = forecast(study)
    if study.question.workload.is_traced:
        return _next_traced(known)
    study, leader = known.study, leading(known)
    if leader is None and known.what_is_wrong:
        return _stop(known, TRAINS_WRONGLY)
    if leader is None and not known.refused:
        return Stop(reason=f"nothing is predicted of any settings: {'; '.join(known.uncovered)}")
    if leader is None:
        return Stop(reason="the dry runs failed, so nothing is known of any settings")
    # What looked smallest does not run: further dry runs would only say how far from fitting the
    # next ones are.
    smallest = known.smallest
    is_refused = smallest is not None and any(
        e.expected_bytes <= smallest.expected_bytes for e in known.left_out
    )
    if leader.is_dry_run or (known.is_hopeless and is_refused):
        return _stop(known, "the memory of the best settings was checked by a dry run")
    if why := known.why_no_dry_run(leader.settings):
        return _stop(known, f"the best settings cannot be dry-run: {why}")
    if why := spent(study):
        return _stop(known, why)
    if safe := _safe(known, leader):
        leader = safe
    if why := too_many_dry_runs(known, leader):
        return _stop(known, why)
    return _dry_run_of(study, leader.settings)


def _dry_run_of(study: Study, settings: Settings) -> ProbeRequest:
    """Asks for a dry run, of which one of another version, or one that timed out, may be there."""
    same = [p.request.repetition for p in study.probes if p.request.settings == settings]
    return ProbeRequest(
        settings=settings, fidelity=Fidelity.PREDICTED, repetition=max(same, default=-1) + 1
    )


# Configurations of different layouts that are rehearsed until they fit: the answer, and others for
# whoever measures them.
FINALISTS = 3


def next_rehearsal(study: Study) -> ProbeRequest | Stop:
    """The configuration to rehearse next: times are predicted, so it is the fastest that may fit,
    until that was rehearsed; then the fastest of other layouts, as finalists."""
    name = study.question.framework.name
    if (what := study.question.unprobed) or name in NOT_PROBED:
        what = what or f"settings of {name}"
        return Stop(reason=f"{what} cannot be rehearsed; ask for predictions")
    known, seen = forecast(study), learned(study, Fidelity.REHEARSED)
    candidates, order = frozenset(seen.candidates()), known.timed or known.untimed
    left = [e for e in order if e.settings in candidates]
    fitting = [e for e in order if e.is_rehearsed and e.fits]
    layouts = {e.settings.layout for e in fitting}
    faster = left
    if fitting:
        least_s = fitting[0].seconds / (1 + study.limits.tolerance)
        faster = [e for e in left if e.seconds < least_s]
    wanted = [e.settings for e in faster if e.fits]
    wanted += [e.settings for e in faster if (e.needed_bytes.low or 0.0) <= e.limit_bytes]
    if len(fitting) < FINALISTS:
        wanted += [e.settings for e in left if e.fits and e.settings.layout not in layouts]
    if not seen.tried:  # nothing may fit: what it would need is worth knowing
        wanted += [e.settings for e in sorted(left, key=lambda e: e.expected_bytes)[:1]]
    if study.question.script is not None or study.question.workload.is_traced:
        wanted = _by_belief(seen, [e.settings for e in fitting])
    why = spent(seen.study)
    if wanted and not why:
        return ProbeRequest(settings=wanted[0], fidelity=Fidelity.REHEARSED)
    if fitting:
        none = f"settings fit, but none is known to be the fastest: {known.unknown}"
        fastest = none if known.unknown else "nothing that may fit is predicted to be faster"
        return Stop(reason=why or fastest)
    if known.what_is_wrong:
        return Stop(reason=TRAINS_WRONGLY, wrong=known.what_is_wrong)
    if known.smallest is not None and not any(e.fits for e in known.estimates.values()):
        needed = need_text(known.smallest, known.limit_bytes)
        return Stop(reason="no settings fit", nothing_fits=needed)
    last = last_failure(seen)
    why = f"{why or 'all settings that may fit were rehearsed'}; none of them gave a result"
    return Stop(reason=f"{why} that fits{f'; the last: {last}' if last else ''}")


def _by_belief(seen: Knowledge, fitting: Sequence[Settings]) -> list[Settings]:
    """What is to be rehearsed where nothing is predicted, as of a user's script: what is likely to
    fit and to be fast first, by arithmetic or, of an unknown model, by rules of thumb."""
    from tuner.planner.search import Search  # imports NumPy
    from tuner.search.gain import HOPEFUL, log_expected_speed

    search = Search(seen)
    prior, belief = search.prior, search.belief
    log_s = dict(zip(prior.settings, prior.log_seconds.tolist(), strict=True))
    least = min((log_s[one] for one in fitting), default=inf) - log1p(seen.study.limits.tolerance)
    layouts = {one.layout for one in fitting}
    score = log_expected_speed(belief)
    left = [
        (-float(score[place]), settings)
        for place, settings in enumerate(prior.settings)
        if search.allowed[place] and belief.fits[place] >= HOPEFUL
        if log_s[settings] < least or (len(fitting) < FINALISTS and settings.layout not in layouts)
    ]
    return [settings for _, settings in sorted(left, key=lambda one: (one[0], str(one[1])))]


def _next_traced(known: Forecast) -> ProbeRequest | Stop:
    """The next layout of a model that only dry runs know: those with fewer knobs off their default
    go first, until all were dry-run or the budget is spent."""
    left = [
        settings
        for settings in known.space.legal
        if settings.layout not in known.refused and not known.is_settled(settings)
    ]
    if left and not (why := spent(known.study)):
        return _dry_run_of(known.study, min(left, key=partial(complexity, known.study.question)))
    if known.estimates:
        return _stop(known, why if left else "every layout was dry-run")
    ended = (p.measurement.detail for p in known.refused.values() if p.measurement)
    cannot = map(known.why_no_dry_run, known.space.legal)
    detail = next(filter(None, (*ended, *cannot)), "")
    return Stop(reason=f"nothing is predicted of any settings: {detail}")


def leading(known: Forecast) -> Evaluation | None:
    """The settings that would be the answer, if they need what is expected of them.

    Where no speed is known, the first of those that fit. Where none is expected to fit, those that
    need least: a dry run then says whether that is so.
    """
    if known.refused and not known.profiles and _all_tried(known):
        return None
    study = known.study
    choice = choose_predicted(
        study.question, known.promising, study.limits.tolerance, known.checked
    )
    if choice:
        return choice.best
    return known.untimed[0] if known.untimed else known.smallest


def too_many_dry_runs(known: Forecast, wanted: Evaluation) -> str:
    """Why the class of ``wanted`` is not dry-run any more; empty while the budget allows it."""
    left = _dry_runs_left(known)
    if left is None or known.dry_runs_of(wanted.settings) <= left:
        return ""
    most = known.study.limits.max_dry_runs
    return f"the budget of {most} dry runs is spent" + (
        f" but for {left}, and the best settings take {known.dry_runs_of(wanted.settings)}"
        if left
        else ""
    )


def _dry_runs_left(known: Forecast) -> int | None:
    """Dry runs that this request may still make; ``None`` where only its probes are counted."""
    study = known.study
    if study.limits.max_dry_runs is None:
        return None
    made = (known.dry_runs_of(probe.request.settings) for probe in probes_of_request(study))
    return max(0, study.limits.max_dry_runs - sum(made))


def _safe(known: Forecast, leader: Evaluation) -> Evaluation | None:
    """Chooses the last dry run of a request, while none has shown a configuration that fits.

    The settings that lead may turn out too large. Of those that fit at the upper end of their
    memory, whatever the dry run shows is likely to be an answer.
    """
    study, left = known.study, _dry_runs_left(known)
    is_last = len(probes_of_request(study)) == study.limits.max_probes - 1
    is_last |= left is not None and left <= known.dry_runs_of(leader.settings)
    if not is_last or any(e.is_dry_run for e in known.fitting):
        return None
    untried = [
        e
        for e in known.fitting
        if not known.is_settled(e.settings) and not too_many_dry_runs(known, e)
    ]
    choice = choose_predicted(study.question, untried, study.limits.tolerance)
    return choice.best if choice else None


def _all_tried(known: Forecast) -> bool:
    """Tells whether a request has spent what it may on dry runs that were all refused."""
    now = {probe.id for probe in probes_of_request(known.study)}
    refused_now = sum(probe.id in now for probe in known.refused.values())
    few = refused_now < known.study.limits.max_probes and len(known.refused) < MOST_LAYOUTS
    return not few or _dry_runs_left(known) == 0


def _stop(known: Forecast, reason: str) -> Stop:
    if known.promising:
        return Stop(reason=reason)
    if known.untimed:
        return Stop(reason=f"settings fit, but none is known to be the fastest: {known.unknown}")
    if known.what_is_wrong:
        return Stop(reason=TRAINS_WRONGLY, wrong=known.what_is_wrong)
    least = known.smallest
    needed = need_text(least, known.limit_bytes) if least else ""
    surely = " for sure" if least and least.fits else ""
    return Stop(reason=f"no settings are predicted to fit{surely}", nothing_fits=needed)


def what_is_needed(study: Study, *, named: bool = True) -> str:
    """Says what would be needed, when nothing is predicted to fit; empty when something is."""
    known, least = forecast(study), forecast(study).smallest
    fits = any(e.fits for e in known.estimates.values())
    if least is None or leading(known) is None or fits:
        return ""
    return need_text(least, known.limit_bytes, named=named)


def as_predicted(study: Study) -> Study:
    """The study as if predictions had been asked for, by the dry runs that it has."""
    if study.limits.fidelity is Fidelity.PREDICTED:
        return study
    limits = replace(
        study.limits,
        fidelity=Fidelity.PREDICTED,
        max_probes=MOST_LAYOUTS,
        max_dry_runs=MOST_DRY_RUNS,
    )
    return replace(study, limits=limits)
