"""The verdicts of the guard that a study was read with, looked up by settings."""

from collections.abc import Iterable, Iterator

from tuner.guard.ruling import Ruling
from tuner.guard.shrink import NoTwinError
from tuner.guard.twin import Twin, twin_of
from tuner.guard.verdict import Verdict
from tuner.planner.words import describe
from tuner.settings import Settings
from tuner.study import Question, Study
from tuner.workload import Precision

NO_TWIN_OF_A_SCRIPT = "a twin shows nothing of a script of one's own"
"""Why settings of a script are not checked as those of the probe program are."""


def twins_of(question: Question, settings: Settings) -> tuple[Twin, ...]:
    """The twins whose verdicts settings need: in fp32, and in the workload's number format.

    Raises:
        NoTwinError: as in :func:`tuner.guard.twin.twin_of`; or they are of a user's script.
    """
    if question.script is not None:
        raise NoTwinError(NO_TWIN_OF_A_SCRIPT)
    precision = question.workload.precision
    formats = dict.fromkeys((Precision.FP32, precision))
    return tuple(twin_of(question, settings, one) for one in formats)


def failed(study: Study, settings: Iterable[Settings]) -> dict[Settings, Verdict]:
    """Those of the settings that were seen to train wrongly, or with a dead knob."""
    if all(verdict.ruling is not Ruling.FAILED for verdict in study.guards.values()):
        return {}
    by_class: dict[tuple[Settings, bool], Verdict | None] = {}
    found = {}
    for one in settings:
        kind = one.settings_class, one.gradient_accumulation_steps > 1
        if kind not in by_class:
            wrong = (v for v in known_verdicts(study, one) if v.ruling is Ruling.FAILED)
            by_class[kind] = next(wrong, None)
        if (verdict := by_class[kind]) is not None:
            found[one] = verdict
    return found


def known_verdicts(study: Study, settings: Settings) -> Iterator[Verdict]:
    """The verdicts on the settings' twins, as far as there are some."""
    versions = study.question.framework.versions
    try:
        twins = twins_of(study.question, settings)
    except NoTwinError:
        return
    for twin in twins:
        if (verdict := study.guards.get(twin.key(versions))) is not None:
            yield verdict


def wrong_ones(study: Study, legal: Iterable[Settings]) -> Iterator[str]:
    """A sentence for each verdict that closes settings."""
    found = failed(study, legal)
    for verdict in dict.fromkeys(v.key for v in found.values()):
        settings = [one for one, v in found.items() if v.key == verdict]
        first = found[settings[0]]
        yield (
            f"{len(settings)} settings such as {describe(settings[0])} are not suggested: a small"
            f" twin of theirs ended as {first.outcome}: {first.detail}."
        )
