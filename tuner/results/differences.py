"""Compares a few studies: their questions, limits, answers and costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from tuner.core.answer import Suggestion
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.quantity import Quantity
from tuner.core.study import SamplerName, Study
from tuner.core.words import (
    interval_text,
    range_text,
    rank_word,
    rough_duration_text,
    seconds_text,
    share_text,
    speed_text,
)
from tuner.errors import UsageError
from tuner.results.summary import headline
from tuner.space.inactive import show, show_all
from tuner.text import json_text, size_text

# Studies side by side.
LEAST_COMPARED, MOST_COMPARED = 2, 4


class Part(StrEnum):
    """Parts of a comparison."""

    QUESTION = "question"  # what is asked
    TERMS = "terms"  # within which limits
    ANSWER = "answer"  # what was found
    COST = "cost"  # what that took


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A study to compare."""

    study: Study
    suggestion: Suggestion | None
    """Its answer; ``None`` while there is none."""

    @property
    def best(self) -> Evaluation | None:
        """The settings that it answers with."""
        return self.suggestion.best if self.suggestion else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Value of one study in one line."""

    text: str = ""
    quantity: Quantity | None = None
    """The number that the words are of, where they are of one with an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One line: something that each of the studies has or has not."""

    part: Part
    name: str
    cells: tuple[Cell, ...]
    is_detail: bool = False
    """It is one of the many figures of a model or a cluster."""

    @property
    def differs(self) -> bool:
        """Tells whether their words are not all the same."""
        return len({cell.text for cell in self.cells}) > 1


def differences(studies: Sequence[Compared]) -> tuple[Difference, ...]:
    """The lines of a comparison, in a fixed order, part by part.

    What matters of every study has a line though it may be the same in all. All else that a
    question or the limits hold has one where it differs.

    Args:
        studies: two to four.

    Raises:
        UsageError: fewer or more.
    """
    if not LEAST_COMPARED <= len(studies) <= MOST_COMPARED:
        allowed = f"compare {LEAST_COMPARED} to {MOST_COMPARED} studies"
        raise UsageError("ids", len(studies), allowed)
    per = _per(studies)
    lines = [
        *_lines(Part.QUESTION, [_question(one.study) for one in studies]),
        *_others(Part.QUESTION, [_rest_of_question(one.study) for one in studies]),
        *_lines(Part.TERMS, [_limits(one.study) for one in studies]),
        *_lines(Part.ANSWER, [_answer(one, per) for one in studies]),
        *_lines(Part.COST, [_cost(one, per) for one in studies]),
    ]
    return tuple(line for line in lines if any(cell.text for cell in line.cells))


def _lines(part: Part, columns: Sequence[Mapping[str, Cell]]) -> Iterator[Difference]:
    """One line for each name that a study has, in the order of the first that has it."""
    for name in dict.fromkeys(name for column in columns for name in column):
        yield Difference(
            part=part, name=name, cells=tuple(column.get(name, Cell()) for column in columns)
        )


def _others(part: Part, columns: Sequence[Mapping[str, Cell]]) -> Iterator[Difference]:
    """The same, of lines that differ only."""
    return (replace(line, is_detail=True) for line in _lines(part, columns) if line.differs)


def _question(study: Study) -> dict[str, Cell]:
    question, workload = study.question, study.question.workload
    framework = question.framework
    versions = ", ".join(f"{package} {version}" for package, version in framework.versions.items())
    texts = {
        "model": question.trained,
        "cluster": question.cluster.name,
        "global batch": f"{workload.global_batch_size:,} sequences",
        "sequence length": f"{workload.sequence_length:,} tokens",
        "optimizer": str(workload.optimizer),
        "precision": str(workload.precision),
        "gradient reduction": str(workload.reduce_dtype),
        "framework": str(framework.name),
        "versions": versions,
        **{f"{knob} restricted to": show_all(v) for knob, v in question.knobs.items()},
    }
    return _cells(texts)


def _rest_of_question(study: Study) -> dict[str, Cell]:
    """The model's configuration and the cluster's figures, by their place."""
    values = study.question.as_dict()
    told = {
        "cluster": values["cluster"],
        "model": values["workload"]["model"],
    }
    return _cells({" ".join(path): text for path, text in _leaves(told)})


def _leaves(value: object, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """All values of nested objects, by their place."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, *path, str(name))
    else:
        yield path, value if isinstance(value, str) else json_text(value)


def _limits(study: Study) -> dict[str, Cell]:
    limits = study.limits
    limit = limits.limit_bytes(study.question.cluster)
    texts = {
        "fidelity": str(limits.fidelity),
        "memory limit": f"{size_text(limit)} on one device",
        "headroom": share_text(limits.headroom) if limits.memory_limit_bytes is None else "",
        "tolerance": share_text(limits.tolerance),
        "probes at most": str(limits.max_probes),
        "dry runs at most": str(limits.max_dry_runs or ""),
        "time at most": rough_duration_text(limits.wall_s) if limits.wall_s else "",
        "device time at most": rough_duration_text(limits.device_s) if limits.device_s else "",
        "pool": limits.pool,
        "sampler": "" if limits.sampler is SamplerName.COST_MODEL else str(limits.sampler),
    }
    return _cells(texts)


def _per(studies: Sequence[Compared]) -> str:
    """Names a rank for all of them: a GPU, too, is a rank beside CPU processes."""
    words = {rank_word(one.study.question) for one in studies}
    return words.pop() if len(words) == 1 else "rank"


def _answer(one: Compared, per: str) -> dict[str, Cell]:
    line, best = headline(one.study, one.suggestion), one.best
    cells = _cells(
        {
            "state": str(one.study.state),
            "no answer because": line.why_none,
        }
    )
    if best is None:
        return cells
    return {
        **cells,
        "stands on": Cell(text=str(line.provenance)),
        f"tokens/s per {per}": _speed(best.tokens_per_s_per_gpu),
        "step": _time(best.step_time_s),
        "memory needed": _memory(best),
        **_cells({knob: show(value) for knob, value in best.settings.as_dict().items()}),
        "trains as one process": Cell(text=best.guard.verdict.replace("_", " ")),
    }


def _speed(speed: Quantity) -> Cell:
    if speed.value is None:
        return Cell()
    return Cell(text=f"{speed_text(speed.value)} ({range_text(speed)})", quantity=speed)


def _time(seconds: Quantity) -> Cell:
    if seconds.value is None:
        return Cell()
    return Cell(text=f"{seconds_text(seconds.value)} ({interval_text(seconds)})", quantity=seconds)


def _memory(best: Evaluation) -> Cell:
    needed = best.needed_gib
    if needed.value is None:
        return Cell()
    share = share_text(needed.value / best.limit_gib)
    return Cell(text=f"{size_text(needed.value * GIB)}, {share} of the limit", quantity=needed)


def _cost(one: Compared, per: str) -> dict[str, Cell]:
    line = headline(one.study, one.suggestion)
    return _cells(
        {
            "probes": str(line.probes),
            "wall time": rough_duration_text(line.wall_s),
            f"{per} time": rough_duration_text(line.device_s),
            "asked": _minute(one.study.asked_at),
        }
    )


def _minute(iso: str) -> str:
    """A moment of UTC to the minute; empty where there is none."""
    return f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M} UTC" if iso else ""


def _cells(texts: Mapping[str, str]) -> dict[str, Cell]:
    return {name: Cell(text=text) for name, text in texts.items()}
