"""The last probes of a study: the leaders again, so that the answer stands on more than one run."""

from collections.abc import Mapping
from contextlib import suppress
from math import inf

from tuner.core.configuration import Settings
from tuner.core.evaluation import KNOBS_PASSED, Guard
from tuner.core.measurement import PROBED, Outcome
from tuner.core.study import ProbeRequest, Study
from tuner.guard.check import CheckState, GuardCheck
from tuner.guard.replica import STACK, NoReplicaError, stack_of
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.planner.ranking import choose, indistinguishable
from tuner.planner.wrong import is_checked, known_verdicts, replicas_of

# Probes that must be allowed before some are kept for repeating finalists.
REPEAT_FROM = 6

# Optimizer steps that a verification runs at least, warm-up included.
VERIFICATION_STEPS = 8


def finals(known: Knowledge, *, remaining_wall_s: float | None = None) -> list[ProbeRequest]:
    """The final probes that are still wanted, most wanted first; at most two.

    An answer whose time was extrapolated is verified at its full accumulation, if the time
    left allows it. An answer and a rival that cannot be told apart are run once more each.
    """
    # The answer so far, and its closest rival when the two cannot be told apart.
    fitting, limits = known.fitting, known.study.limits
    if (choice := choose(fitting, limits.tolerance)) is None:
        return []
    rivals = [f for f in (choice.fastest, *fitting) if f is not choice.best][:1]
    if limits.max_probes < REPEAT_FROM or not (
        rivals and indistinguishable(choice.best, rivals[0], limits.tolerance)
    ):
        rivals = []
    leaders = [choice.best, *rivals] if choice.best.extrapolated or rivals else []
    wanted = []
    for finding in leaders:
        # A later probe than the one that ended well first means that it was repeated.
        repetition = known.repetitions[finding.settings]
        if repetition != finding.probes[0].request.repetition + 1:
            continue
        needed_s = VERIFICATION_STEPS * finding.seconds if finding.extrapolated else 0.0
        if remaining_wall_s is None or needed_s <= remaining_wall_s or not finding.extrapolated:
            wanted.append(
                ProbeRequest(
                    settings=finding.settings,
                    fidelity=known.study.limits.fidelity,
                    repetition=repetition,
                )
            )
    return wanted


def is_final(study: Study, request: ProbeRequest) -> bool:
    """Says if a probe repeats what ended well: its time decides, so it has no neighbours."""
    return any(
        probe.request.settings == request.settings and outcome_of(probe) is Outcome.OK
        for probe in study.at(request.fidelity).probes
    )


def guard_of(
    study: Study, settings: Settings, versions: Mapping[str, str], date: str | None
) -> Guard:
    """The check of a configuration: the worst of its replicas'."""
    stated = study.question.framework.versions
    found: list[GuardCheck] = []
    count, notes, why = 0, dict[str, None](), ""
    if missing := [package for package in STACK if package not in stated]:
        why = f"the version of {' and '.join(missing)} is not known"
    else:
        try:
            replicas = replicas_of(study.question, settings)
            count, found = len(replicas), list(known_verdicts(study, settings))
            # A check may be of another study's equal replica; what it leaves out is of this one's.
            notes = dict.fromkeys(note for replica in replicas for note in replica.notes)
        except NoReplicaError as error:
            why = str(error)
    is_wrong = any(one.ruling is CheckState.FAILED for one in found)
    if not why and len(found) < count and not is_wrong:
        why = "no small replica of these settings was trained with these versions yet"
    if why and is_checked(study, settings):
        passed = [v.date for v in study.guards.values() if v.ruling is CheckState.PASSED and v.date]
        return Guard(
            verdict=KNOBS_PASSED,
            versions=stack_of(stated),
            date=max(passed, default=None),
            why="small replicas with each of these values train what one process trains; one of"
            " these settings and this model was not trained yet",
        )
    if why:
        return Guard(versions=dict(versions), date=date, why=why)
    order = (CheckState.PASSED, CheckState.NOT_CHECKED, CheckState.FAILED)
    worst = max(found, key=lambda one: order.index(one.ruling))
    if worst.ruling is CheckState.NOT_CHECKED:
        return Guard(versions=dict(versions), date=date, why=worst.detail)
    why = "; ".join(filter(None, (worst.detail, *notes)))
    return Guard(verdict=str(worst.ruling), versions=dict(worst.versions), date=worst.date, why=why)


def to_guard(known: Knowledge) -> list[Settings]:
    """The finalists without a check of each of their replicas: the answer, what ties with it, and
    what would be it if a knob's value were right that failed in another layout.

    A configuration that has no replica is left out.
    """
    study, fitting, tolerance = known.study, known.fitting, known.study.limits.tolerance
    if study.limits.fidelity not in PROBED:
        return []
    # The fastest finding that only an unconfirmed failure speaks against, if it is the fastest.
    unconfirmed = (known.findings[one] for one in known.unconfirmed if one in known.findings)
    timed = [f for f in unconfirmed if f.seconds < inf and f.settings not in known.too_large]
    first = min(timed, key=lambda f: (f.seconds, str(f.settings)), default=None)
    finalists = []
    if first is not None and (not fitting or first.seconds < fitting[0].seconds):
        finalists.append(first)
    if (choice := choose(fitting, tolerance)) is not None:
        finalists += [choice.best, choice.fastest]
        rivals = [f for f in fitting if f is not choice.best][:1]
        finalists += [f for f in rivals if indistinguishable(choice.best, f, tolerance)]
    wanted = []
    for settings in dict.fromkeys(f.settings for f in finalists):
        with suppress(NoReplicaError):
            checks = known_verdicts(study, settings)
            decided = [one for one in checks if one.ruling is not CheckState.NOT_CHECKED]
            if len(decided) < len(replicas_of(study.question, settings)):
                wanted.append(settings)
    return wanted
