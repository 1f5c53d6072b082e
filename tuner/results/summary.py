"""The answer of a study in one line."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tuner.core.answer import Suggestion
from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.study import OPEN, Study
from tuner.core.words import describe, rank_word
from tuner.explain.known import is_forecast, why_none
from tuner.planner.probes import outcomes
from tuner.planner.spending import cost

_QUANTITIES = ("tokens_per_s_per_gpu", "step_time_s", "allocated_gib", "needed_gib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The answer in one line, as lists of studies show it; of none, quantities are unknown."""

    study_id: str
    state: str
    settings: Settings | None
    words: str
    tokens_per_s_per_gpu: Quantity
    step_time_s: Quantity
    allocated_gib: Quantity
    needed_gib: Quantity
    limit_gib: float
    per: str
    """What a rank is to its user: ``GPU``, or ``rank`` where it is a CPU process."""
    provenance: Provenance
    is_forecast: bool
    """Whether this is predicted, while it was to be measured or emulated."""
    is_pending: bool
    why_none: str
    """Why there is no answer of the fidelity that was asked for, in short; empty where there is, or
    while the study is open."""
    probes: int
    wall_s: float
    device_s: float

    def as_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        quantities = {name: values[name].as_dict() for name in _QUANTITIES}
        settings = self.settings and self.settings.as_dict()
        return {
            **values,
            **quantities,
            "settings": settings,
            "provenance": str(self.provenance),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Headline":
        """The reverse of :meth:`as_dict`.

        Raises:
            KeyError, TypeError, ValueError: it is of another form, as of another version.
            UsageError: so are its settings.
        """
        settings = values["settings"]
        quantities = {name: Quantity.from_dict(values[name]) for name in _QUANTITIES}
        read = {
            **quantities,
            "settings": None if settings is None else Settings.from_dict(settings),
            "provenance": Provenance(values["provenance"]),
        }
        return cls(**{**values, **read})


def headline(study: Study, suggestion: Suggestion | None) -> Headline:
    best = suggestion and suggestion.best
    same = study.at(study.limits.fidelity)
    spent = cost(same)
    forecasts, why = suggestion is not None and is_forecast(study, suggestion), ""
    if suggestion and study.state not in OPEN and (best is None or forecasts):
        why = str(why_none(study, suggestion, shown=True))
    return Headline(
        study_id=study.id,
        state=str(study.state),
        settings=best.settings if best else None,
        words=describe(best.settings) if best else "",
        tokens_per_s_per_gpu=best.tokens_per_s_per_gpu if best else UNKNOWN,
        step_time_s=best.step_time_s if best else UNKNOWN,
        allocated_gib=best.allocated_gib if best else UNKNOWN,
        needed_gib=best.needed_gib if best else UNKNOWN,
        limit_gib=study.limits.limit_bytes(study.question.cluster) / GIB,
        per=rank_word(study.question),
        provenance=suggestion.provenance if suggestion else Provenance.UNKNOWN,
        is_forecast=forecasts,
        is_pending=suggestion is None and study.state in OPEN,
        why_none=why,
        probes=sum(outcomes(same.probes).values()),
        wall_s=spent.wall_s,
        device_s=spent.device_s,
    )
