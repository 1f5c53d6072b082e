"""The answer of a study that is to be measured or emulated, while none of its probes shows settings
that fit: what is predicted, and why nothing better stands behind it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.planner.budget import spent, wall_is_spent
from tuner.planner.estimate import Estimate
from tuner.planner.estimates import Forecast, forecast
from tuner.planner.explain import what_failed, what_is_left
from tuner.planner.explain_failures import finished
from tuner.planner.knowledge import Knowledge
from tuner.planner.other_fidelity import others_too
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.predicted import predicted_choice, suggested
from tuner.planner.predicted_words import why_predicted
from tuner.planner.ranking import Choice
from tuner.planner.verdicts import wrong_ones
from tuner.sizes import size_text
from tuner.study import OPEN, Study, StudyState
from tuner.suggestion import Suggestion

if TYPE_CHECKING:
    from tuner.planner.speed_outlook import SpeedOutlook

RUNS = 0.5
"""Probability from which settings for which memory suffices are expected to run."""


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
    from tuner.planner.speed_outlook import SpeedOutlook  # imports NumPy

    outlook = SpeedOutlook(known)
    return replace(
        foreseen,
        estimates={
            settings: found if _is_expected(outlook, found) else _without(found)
            for settings, found in foreseen.estimates.items()
        },
    )


def _is_expected(outlook: "SpeedOutlook", found: Estimate) -> bool:
    """Whether settings fit and run, as far as probes of others say too."""
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
    """What the probes have shown of memory, why the study has ended, and how to go on."""
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
    """Whether a worker ended it so, which knows the seconds that are spent between probes too."""
    budget_s = study.terms.wall_s
    return budget_s is not None and study.reason.startswith(wall_is_spent(budget_s))
