"""What the guard knows of a study's settings, and what it should look at before the end."""

from collections.abc import Mapping

from tuner.guard.ruling import Ruling
from tuner.guard.shrink import NoTwinError
from tuner.guard.twin import STACK
from tuner.guard.verdict import Verdict
from tuner.measurement import PROBED
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge
from tuner.planner.ranking import choose, indistinguishable
from tuner.planner.verdicts import known_verdicts, twins_of
from tuner.settings import Settings
from tuner.study import Study
from tuner.suggestion import Guard


def guard_of(
    study: Study, settings: Settings, versions: Mapping[str, str], date: str | None
) -> Guard:
    """What an answer says of settings: the worst of their twins' verdicts.

    Args:
        study: with the verdicts on its model's structure in its versions.
        settings: legal ones of it.
        versions: what the settings were probed with, for the case that nothing was checked.
        date: when they were.
    """
    found, why = _verdicts(study, settings)
    if why:
        return Guard(versions=dict(versions), date=date, why=why)
    worst = max(found, key=lambda verdict: _ORDER.index(verdict.ruling))
    if worst.ruling is Ruling.NOT_CHECKED:
        return Guard(versions=dict(versions), date=date, why=worst.detail)
    why = "; ".join(filter(None, (worst.detail, *_notes(study, settings))))
    return Guard(verdict=str(worst.ruling), versions=dict(worst.versions), date=worst.date, why=why)


def to_guard(known: Knowledge) -> list[Settings]:
    """The finalists without a verdict on each of their twins: the answer, and what ties with it.

    Settings that have no twin are left out.
    """
    study, tolerance = known.study, known.study.terms.tolerance
    choice = choose(known.fitting, tolerance)
    if choice is None or study.terms.fidelity not in PROBED:
        return []
    finalists: list[Finding] = [choice.best, choice.fastest]
    rivals = [f for f in known.fitting if f is not choice.best][:1]
    finalists += [f for f in rivals if indistinguishable(choice.best, f, tolerance)]
    wanted = dict.fromkeys(f.settings for f in finalists)
    return [one for one in wanted if _is_open(study, one)]


_ORDER = (Ruling.PASSED, Ruling.NOT_CHECKED, Ruling.FAILED)


def _is_open(study: Study, settings: Settings) -> bool:
    try:
        count = len(twins_of(study.question, settings))
    except NoTwinError:
        return False
    decided = [v for v in known_verdicts(study, settings) if v.ruling is not Ruling.NOT_CHECKED]
    return len(decided) < count


def _notes(study: Study, settings: Settings) -> tuple[str, ...]:
    """What the settings' own twins leave out: a verdict may be of another study's equal twin."""
    notes = (note for twin in twins_of(study.question, settings) for note in twin.notes)
    return tuple(dict.fromkeys(notes))


def _verdicts(study: Study, settings: Settings) -> tuple[list[Verdict], str]:
    """The verdicts on all twins, or why there are none."""
    versions = study.question.framework.versions
    if missing := [package for package in STACK if package not in versions]:
        return [], f"the version of {' and '.join(missing)} is not known"
    try:
        count = len(twins_of(study.question, settings))
    except NoTwinError as error:
        return [], str(error)
    found = list(known_verdicts(study, settings))
    wrong = any(verdict.ruling is Ruling.FAILED for verdict in found)
    if len(found) < count and not wrong:
        return [], "no small twin of these settings was trained with these versions yet"
    return found, ""
