"""The answer of a study in one line; and a few studies side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from tuner.core.answer import Suggestion
from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.study import SamplerName, Study, StudyState
from tuner.core.words import (
    describe,
    interval_text,
    range_text,
    rank_word,
    rough_duration_text,
    seconds_text,
    share_text,
    speed_text,
)
from tuner.errors import NothingFitsError, TunerError, UsageError
from tuner.explain.brief import is_forecast
from tuner.explain.known import is_unanswered, why_none
from tuner.planner.probes import outcomes
from tuner.planner.spending import cost
from tuner.serialization import Plain
from tuner.text import json_text, show, show_all, size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSummary(Plain):
    """The answer in one line, as lists of studies show it; of none, quantities are unknown."""

    study_id: str
    state: str
    shown_state: str
    """The state as people read it: see :func:`state_text`."""
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
    why_none: str
    """Why there is no answer of the fidelity that was asked for, in short; empty where there is, or
    while the study is open."""
    probes: int
    wall_s: float
    device_s: float
    trains: tuple[str, ...] = ()
    """How the workload is not all of a model that is trained on whole texts."""
    nothing_fits: bool = False
    """Whether there is no answer because nothing fits in memory."""

    @property
    def needed_share(self) -> float | None:
        """Part of the limit that the answer needs."""
        needed = self.needed_gib.value
        return None if needed is None else needed / self.limit_gib


def summary_of(study: Study, suggestion: Suggestion | None) -> AnswerSummary:
    best = suggestion and suggestion.best
    same = study.at(study.limits.fidelity)
    spent = cost(same)
    why = None
    if suggestion and is_unanswered(study, suggestion):
        why = why_none(study, suggestion, shown=True)
    forecasts = suggestion is not None and is_forecast(study, suggestion)
    return AnswerSummary(
        study_id=study.id,
        state=str(study.state),
        shown_state=state_text(study, why, is_forecast=forecasts),
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
        why_none=str(why or ""),
        nothing_fits=isinstance(why, NothingFitsError),
        probes=sum(outcomes(same.probes).values()),
        wall_s=spent.wall_s,
        device_s=spent.device_s,
        trains=study.question.workload.unlike_usual,
    )


def state_text(study: Study, why: TunerError | None, *, is_forecast: bool) -> str:
    """The state as people read it: of a study that is done, and has no answer of what was asked for
    (``why``), it says that."""
    if isinstance(why, NothingFitsError) and study.state is not StudyState.CANCELLED:
        return "nothing fits"
    if study.state is not StudyState.DONE or why is None:
        return str(study.state)
    return f"not {study.limits.fidelity}" if is_forecast else "no answer"


def rounded(value: float | None) -> float | None:
    """A number with four digits."""
    return None if value is None else float(f"{value:.4g}")


# Facts that whoever launches by an answer should know.
WARNINGS = {"other_load", "may_not_fit"}


def in_brief(study: Mapping[str, Any]) -> dict[str, Any]:
    """A study's JSON object in brief: what was chosen, its figures, what speaks against trusting
    them, and how it is launched."""
    found, none = study["suggestion"] or {}, study.get("no_answer")
    said = zip(found.get("facts", ()), found.get("explanation", ()), strict=False)
    best = found.get("best") or {}
    memory = best.get("memory", {})

    def figure(values: Mapping[str, Any], name: str) -> float | None:
        return rounded(values[name]["value"]) if name in values else None

    return {
        "study_id": study["study_id"],
        "state": study["state"],
        "reason": study.get("reason", ""),
        "pending": study.get("pending", False),
        "terms_id": study.get("terms_id", ""),
        "settings": best.get("settings"),
        "provenance": best.get("provenance"),
        "tokens_per_s_per_gpu": figure(best, "tokens_per_s_per_gpu"),
        "step_time_s": figure(best, "step_time_s"),
        "needed_gib": figure(memory, "needed_gib"),
        "limit_gib": rounded(memory.get("limit_gib")),
        "warnings": [text for one, text in said if one["kind"] in WARNINGS],
        "launch": found.get("launch", {}).get("argv", []),
        "script_sets": found.get("launch", {}).get("script_sets", []),
        "no_answer": none and none["kind"],
    }


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
        return self.suggestion.best if self.suggestion else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Value of one study in one line."""

    text: str = ""
    quantity: Quantity | None = None
    """The number that the words are of, where they are of one with an interval."""
    limit_share: float | None = None
    """Part of the limit that the number is, where there is one."""


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
        return len({cell.text for cell in self.cells}) > 1


def differences(studies: Sequence[Compared]) -> tuple[Difference, ...]:
    """The lines of a comparison, in a fixed order, part by part.

    What matters of every study has a line though it may be the same in all. All else that a
    question or the limits hold has one where it differs.
    """
    if not LEAST_COMPARED <= len(studies) <= MOST_COMPARED:
        allowed = f"compare {LEAST_COMPARED} to {MOST_COMPARED} studies"
        raise UsageError("ids", len(studies), allowed)
    # A GPU, too, is a rank beside CPU processes.
    words = {rank_word(one.study.question) for one in studies}
    per = words.pop() if len(words) == 1 else "rank"
    told = [(one, summary_of(one.study, one.suggestion)) for one in studies]
    figures = [dict(_leaves(_figures(one.study))) for one in studies]
    lines = [
        *_lines(Part.QUESTION, [_question(one.study) for one in studies]),
        *(replace(f, is_detail=True) for f in _lines(Part.QUESTION, figures) if f.differs),
        *_lines(Part.TERMS, [_limits(one.study) for one in studies]),
        *_lines(Part.ANSWER, [_answer(one, per) for one in told]),
        *_lines(Part.COST, [_cost(one, per) for one in told]),
    ]
    return tuple(line for line in lines if any(cell.text for cell in line.cells))


def _lines(part: Part, columns: Sequence[Mapping[str, Cell | str]]) -> Iterator[Difference]:
    """One line for each name that a study has, in the order of the first that has it."""
    for name in dict.fromkeys(name for column in columns for name in column):
        told = (column.get(name, "") for column in columns)
        cells = tuple(one if isinstance(one, Cell) else Cell(text=one) for one in told)
        yield Difference(part=part, name=name, cells=cells)


def _question(study: Study) -> dict[str, str]:
    question, workload = study.question, study.question.workload
    framework = question.framework
    versions = ", ".join(f"{package} {version}" for package, version in framework.versions.items())
    return {
        "model": question.trained,
        "cluster": question.cluster.name,
        "global batch": f"{workload.global_batch_size:,} sequences",
        "sequence length": f"{workload.sequence_length:,} tokens",
        "optimizer": str(workload.optimizer),
        "precision": str(workload.precision),
        "gradient reduction": str(workload.reduce_dtype),
        "loss": str(workload.loss),
        "tensor parallelism": str(workload.tensor_parallel),
        **({} if workload.model.is_causal_lm else {"task": str(workload.model.task)}),
        **({"adapter": str(workload.adapter)} if workload.adapter is not None else {}),
        **({"image tokens": f"{workload.image_tokens:,}"} if workload.image_tokens else {}),
        **({"frozen": ", ".join(workload.frozen)} if workload.frozen else {}),
        **({"packing": str(workload.packing)} if workload.packing is not None else {}),
        "framework": str(framework.name),
        "versions": versions,
        **{f"{knob} restricted to": show_all(v) for knob, v in question.knobs.items()},
    }


def _figures(study: Study) -> dict[str, object]:
    """The model's configuration and the cluster's figures."""
    values = study.question.as_dict()
    return {"cluster": values["cluster"], "model": values["workload"]["model"]}


def _leaves(value: object, *path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, *path, str(name))
    else:
        yield " ".join(path), value if isinstance(value, str) else json_text(value)


def _limits(study: Study) -> dict[str, str]:
    limits = study.limits
    limit = limits.limit_bytes(study.question.cluster)
    return {
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


def _answer(compared: tuple[Compared, AnswerSummary], per: str) -> dict[str, Cell | str]:
    one, line = compared
    best = one.best
    cells: dict[str, Cell | str] = {
        "state": str(one.study.state),
        "no answer because": line.why_none,
    }
    if best is None:
        return cells
    speed, step, needed = best.tokens_per_s_per_gpu, best.step_time_s, best.needed_gib
    told = {f"tokens/s per {per}": Cell(), "step": Cell(), "memory needed": Cell()}
    if speed.value is not None:
        text = f"{speed_text(speed.value)} ({range_text(speed)})"
        told[f"tokens/s per {per}"] = Cell(text=text, quantity=speed)
    if step.value is not None:
        text = f"{seconds_text(step.value)} ({interval_text(step)})"
        told["step"] = Cell(text=text, quantity=step)
    if needed.value is not None:
        share = needed.value / best.limit_gib
        text = f"{size_text(needed.value * GIB)}, {share_text(share)} of the limit"
        told["memory needed"] = Cell(text=text, quantity=needed, limit_share=share)
    return {
        **cells,
        "stands on": str(line.provenance),
        **told,
        **{knob: show(value) for knob, value in best.settings.all_values().items()},
        "trains as one process": best.guard.verdict.replace("_", " "),
    }


def _cost(compared: tuple[Compared, AnswerSummary], per: str) -> dict[str, str]:
    line, asked = compared[1], compared[0].study.asked_at
    return {
        "probes": str(line.probes),
        "wall time": rough_duration_text(line.wall_s),
        f"{per} time": rough_duration_text(line.device_s),
        "asked": f"{datetime.fromisoformat(asked):%Y-%m-%d %H:%M} UTC" if asked else "",
    }
