"""Whether a case fits: as it was measured or emulated, where it was, or else as predicted."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tuner.asking.predicting import Prediction
from tuner.cases import Case, Finding, answer_of
from tuner.measurement import Fidelity
from tuner.quantity import Provenance, Quantity
from tuner.results import Evidence
from tuner.results.figures import Figures
from tuner.store import Store
from tuner.study import Question, Study, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What probes of a study found of these very settings."""

    study_id: str
    """Whose probes."""
    figures: Figures
    """What they found, on the terms of the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A case, with what is known of it."""

    format_name: str
    """Whose file it is from."""
    case: Case
    """The whole case."""
    prediction: Prediction
    """What is predicted."""
    seen: Seen | None = None
    """What was measured, or else emulated; ``None`` where neither was."""

    @property
    def fits(self) -> bool | None:
        """Whether it fits; ``None`` where nothing is known."""
        seen = self._seen_to_fit
        return self.prediction.fits if seen is None else seen.fits

    @property
    def _seen_to_fit(self) -> Figures | None:
        """What probes say of whether it fits: nothing where they closed it for what it trains."""
        if self.seen is None or (self.trains_wrongly and not self.seen.figures.is_over_limit):
            return None
        return self.seen.figures

    @property
    def allocated_gib(self) -> Quantity:
        """Peak of allocated tensors."""
        known = self.seen and self.seen.figures.allocated_gib
        return known if known and known.value is not None else self.prediction.allocated_gib

    @property
    def step_time_s(self) -> Quantity:
        """Seconds of one optimizer step."""
        known = self.seen and self.seen.figures.step_time_s
        return known if known and known.value is not None else self.prediction.step_time_s

    @property
    def tokens_per_s_per_gpu(self) -> Quantity:
        """Tokens of the global batch per second of its step and GPU."""
        known = self.seen and self.seen.figures.tokens_per_s_per_gpu
        return known if known and known.value is not None else self.prediction.tokens_per_s_per_gpu

    @property
    def provenance(self) -> Provenance:
        """The weakest of the memory's and the speed's."""
        return self.prediction.provenance if self.seen is None else self.seen.figures.provenance

    @property
    def reason(self) -> str:
        """Why it does not fit, or why nothing is known; empty where it fits."""
        figures = self._seen_to_fit
        if figures is None:
            return self.prediction.reason
        if figures.fits is not False:
            return ""
        return figures.detail or f"it needs {figures.memory_gib.value or 0:.2f} GiB of a device"

    @property
    def trains_wrongly(self) -> str:
        """Why it trains something else, where that was seen; else empty."""
        wrong: str = self.prediction.plain["trains_wrongly"]
        return wrong

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know."""
        return (*self.prediction.notes, *_close(self))

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``tuner check --json`` prints."""
        question, seen = self.case.question, self.seen
        return {
            "format": self.format_name,
            **{name: value for name, value in question.as_dict().items() if name != "knobs"},
            "settings": self.case.settings.as_dict(),
            "fits": self.fits,
            "memory": {
                "allocated_gib": self.allocated_gib.as_dict(),
                "limit_gib": self.prediction.limit_gib,
            },
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
            "step_time_s": self.step_time_s.as_dict(),
            "provenance": str(self.provenance),
            "reason": self.reason,
            "trains_wrongly": self.trains_wrongly,
            "notes": list(self.notes),
            "seen": seen
            and {
                "study_id": seen.study_id,
                "fidelity": str(seen.figures.fidelity),
                "outcome": str(seen.figures.outcome),
                "probes": list(seen.figures.probes),
            },
            "prediction": self.prediction.as_dict(),
        }


def check(store: Store, format_name: str, case: Case, finding: Finding) -> Checked:
    """What is known of a case.

    Args:
        store: where probes are looked for.
        format_name: whose file it is from.
        case: the case.
        finding: what dry runs say of it.

    Raises:
        StoreError: the database fails.
    """
    prediction = Prediction.from_answer(answer_of(case, finding))
    telling = [one for one in _seen(store, case) if one.figures.fits is not None]
    measured_first = sorted(telling, key=lambda one: one.figures.fidelity is not Fidelity.MEASURED)
    seen = next(iter(measured_first), None)
    return Checked(format_name=format_name, case=case, prediction=prediction, seen=seen)


def _seen(store: Store, case: Case) -> Iterator[Seen]:
    """What probes of the same question found, whatever knobs their studies allowed."""
    terms = Terms(headroom=case.headroom, memory_limit_bytes=case.limit_bytes)
    own = store.find(case.question)
    for study in filter(None, (own, *store.similar(case.question))):
        if _asks_the_same(study.question, case.question):
            yield from _of_study(replace(study, terms=terms), case)


def _of_study(study: Study, case: Case) -> Iterator[Seen]:
    for figures in Evidence(study).seen(case.settings):
        yield Seen(study_id=study.id, figures=figures)


def _asks_the_same(one: Question, other: Question) -> bool:
    return replace(one, knobs={}).identity == replace(other, knobs={}).identity


def _close(checked: Checked) -> Iterator[str]:
    """That a prediction's upper end lies above the limit."""
    found = checked.prediction
    beside = found.plain["memory"]
    if checked.seen is not None or not checked.fits or found.allocated_gib.high is None:
        return
    outside = beside["context_gib"] + beside["communicator_gib"]
    most = found.allocated_gib.high + outside
    if found.limit_gib is not None and most > found.limit_gib:
        yield (
            f"it may need up to {most:.2f} GiB, which is more than the limit of"
            f" {found.limit_gib:.2f} GiB: measure it before a long run"
        )
