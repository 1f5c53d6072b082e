"""A study with its answer, wherever that was found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tuner.answering.known import is_forecast, why_none
from tuner.answering.launch import with_launch
from tuner.asking.targets import Target, write_text
from tuner.errors import TunerError
from tuner.planner import answer
from tuner.study import Study
from tuner.suggestion import Candidate, Suggestion


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer(Suggestion):
    """A suggestion that has a best: what :func:`tuner.suggest` returns."""

    best: Candidate
    """The fastest that fits, or one that cannot be told apart from it and is lighter."""

    def __repr__(self) -> str:
        """The best, in one line; the whole has tens of thousands of characters."""
        best = self.best
        return (
            f"Answer(study_id={self.study_id!r}, settings={str(best.settings)!r},"
            f" tokens_per_s_per_gpu={best.tokens_per_s_per_gpu.value},"
            f" allocated_gib={best.allocated_gib.value}, provenance={str(self.provenance)!r}, ...)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A study with its answer, wherever that was found."""

    study: Study
    """The study."""
    suggestion: Suggestion
    """The answer."""
    as_json: Mapping[str, Any]
    """The same as plain values."""
    why_none: TunerError | None
    """Why it is none; ``None`` where it is one."""
    targets: tuple[str, ...]
    """Paths of those files among the launch's that are to be written."""

    @property
    def files(self) -> Mapping[str, str]:
        """Text by path of the files to write; none where it is no answer."""
        if self.why_none is not None:
            return {}
        return {path: self.suggestion.launch["files"][path] for path in self.targets}

    def write(self) -> None:
        """Write the files.

        Raises:
            TunerError: one cannot be written after all.
        """
        for path, text in self.files.items():
            write_text(Path(path), text)

    def require(self) -> Answer:
        """The answer, which must be one.

        Raises:
            TunerError: it is none: nothing fits, no speed is known, or nothing ran. Its
                ``suggestion`` is what is known nevertheless.
        """
        if self.why_none is not None:
            self.why_none.suggestion = self.suggestion
            raise self.why_none
        return Answer(**{one.name: getattr(self.suggestion, one.name) for one in fields(Answer)})


def answered_of(study: Study, targets: Sequence[Target] = ()) -> Answered:
    """A study with the answer that its probes give, and the text of these files.

    Where the answer was to be measured or emulated, and is predicted, it is none.
    """
    wanted = [(target.format_name, str(target.path)) for target in targets]
    suggestion = with_launch(answer(study), study.question, wanted)
    is_answered = suggestion.best is not None and not is_forecast(study, suggestion)
    return Answered(
        study=study,
        suggestion=suggestion,
        as_json=suggestion.as_dict(),
        why_none=None if is_answered else why_none(study, suggestion, shown=True),
        targets=tuple(path for _, path in wanted),
    )
