"""Memory and collectives of a layout, for every micro-batch and accumulation.

A dry run follows one step segment by segment (a decoder layer, in one phase of one
micro-batch). Within a segment the highest moment is a straight line in the micro-batch size, and
from four layers on it is one in depth too, because a layer more adds the same to every segment.
Segments of two shallow models are matched by their place (:mod:`tuner.dryrun.trace`). The peak of a
step is the maximum over its segments, taken at the depth and the micro-batch that are asked for: a
moment that is low in a shallow model may well be the highest of the whole one. So may one of the
several moments of a segment that is no decoder layer: those are matched by their order.
"""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tuner.core.configuration import Settings
from tuner.core.measurement import Collective
from tuner.cost.prediction import Peak
from tuner.cost.time.collectives import StepCollective
from tuner.cost.time.compute import AMOUNTS, Amounts, Place, TracedStep
from tuner.dryrun.plan import DRY_RUN_FORMAT as FORMAT
from tuner.dryrun.plan import DryRunPlan
from tuner.dryrun.trace import Kind, Line, ProfileStep, Trace, by_sizes, matched_steps
from tuner.serialization import Plain

# Seconds of CPU time that the dry runs of one class may take together. Usual ones take 2 to 4 each,
# whatever the model: they are of four to eight layers. Of towers for images nothing is left out.
LIMIT_S = 90.0
# The category that takes what rounding leaves over.
OTHER = "temporaries"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Memory and collectives of a layout, from dry runs at one or two depths."""

    layers: int  # decoder layers of the model that it is for
    depths: tuple[int, ...]  # decoder layers of the models that were dry-run
    steps: tuple[ProfileStep, ...]  # by micro-batch sizes, then by accumulation, ascending
    block_bytes: int
    """The largest block of parameters that is gathered at once; 0 where nothing is sharded."""
    traces: tuple[Trace, ...]
    """Of those with the smallest micro-batch, by depth, where they say what is computed."""
    notes: tuple[str, ...]  # what is to be known about the figures
    versions: Mapping[str, str]  # of the packages that were run

    @classmethod
    def from_traces(cls, traces: Sequence[Trace], layers: int) -> "Profile":
        """Combine dry runs of one class at one or two depths.

        Args:
            traces: of the same one or two depths for each of their micro-batch sizes; a single
                depth is the whole model's.
            layers: decoder layers of the whole model.

        Raises:
            ValueError: the traces are not of one class, or do not reach ``layers``.
        """
        traces = sorted(traces, key=lambda trace: trace.layers)
        groups = by_sizes(traces, layers)
        return cls(
            layers=layers,
            depths=tuple(trace.layers for trace in groups[0]),
            steps=tuple(step for group in groups for step in matched_steps(group)),
            block_bytes=max(trace.block_bytes for trace in traces),
            traces=tuple(groups[0]) if all(trace.work for trace in groups[0]) else (),
            notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
            versions=traces[-1].versions,
        )

    def peak(self, micro_batch_size: int, accumulation: int) -> Peak:
        """The highest memory of an optimizer step, all bytes of rank 0.

        More micro-batches than were dry-run need what the most did. Raises ValueError: fewer
        micro-batches than were dry-run.
        """
        return _peak(self, micro_batch_size, self._steps(micro_batch_size, accumulation)[-1])

    def collectives(self, micro_batch_size: int, accumulation: int) -> tuple[Collective, ...]:
        """All collectives of an optimizer step. Raises ValueError: fewer micro-batches than were
        dry-run."""
        steps = self._steps(micro_batch_size, accumulation)
        here = _counted(self, steps[-1], micro_batch_size)
        more = accumulation - steps[-1].accumulation
        before = _counted(self, steps[-2], micro_batch_size) if more and len(steps) > 1 else here
        found = []
        for (op, axis, phase, overlap), (calls, sent) in here.items():
            calls_before, sent_before = before.get((op, axis, phase, overlap), (0.0, 0.0))
            one = Collective(
                op=op,
                axis=axis,
                phase=phase,
                overlap=overlap,
                count=round(calls + more * (calls - calls_before)),
                bytes=round(sent + more * (sent - sent_before)),
            )
            found.append(one)
        return tuple(found)

    def traced_step(self, micro_batch_size: int, accumulation: int) -> TracedStep | None:
        """What an optimizer step computes and sends; ``None`` where that was not counted. Raises
        ValueError: fewer micro-batches than were dry-run."""
        if not self.traces:
            return None
        sizes = self.traces[0].micro_batch_sizes
        each = [{(one.phase, one.part): one.amounts for one in t.work} for t in self.traces]

        def whole(place: Place, name: str) -> float:
            of_depths = [places[place][name] for places in each]
            return _whole(self, [_straight(sizes, pair, micro_batch_size) for pair in of_depths])

        return TracedStep(
            amounts={
                place: Amounts(**{name: max(0.0, whole(place, name)) for name in AMOUNTS})
                for place in each[0]
            },
            trained_elements=_whole(self, [t.trained_elements for t in self.traces]),
            updated_elements=_whole(self, [t.updated_elements for t in self.traces]),
            collectives=tuple(
                StepCollective.seen(one) for one in self.collectives(micro_batch_size, accumulation)
            ),
        )

    def _steps(self, size: int, accumulation: int) -> list[ProfileStep]:
        """The steps that were run for a micro-batch size, up to ``accumulation`` micro-batches."""
        of_size = max(
            (step.micro_batch_sizes for step in self.steps if step.micro_batch_sizes[0] <= size),
            default=self.steps[0].micro_batch_sizes,
        )
        steps = [step for step in self.steps if step.micro_batch_sizes == of_size]
        if accumulation < steps[0].accumulation:
            least = steps[0].accumulation
            raise ValueError(f"accumulation: got {accumulation}; {least} or more were dry-run")
        return [step for step in steps if step.accumulation <= accumulation]


@lru_cache(maxsize=4096)
def _peak(profile: Profile, size: int, step: ProfileStep) -> Peak:
    """The highest of all stretches in the whole model.

    Where the moments of two depths are not known to be the same ones, the highest are taken
    for it.
    """
    by_phase: dict[str, float] = {}
    top: tuple[str, Sequence[Line]] | None = None
    highest = -1.0

    def at(line: Line) -> float:
        return _straight(step.micro_batch_sizes, line.bytes, size)

    for stretch in step.stretches:
        moments = list(zip(*stretch.lines, strict=True)) if stretch.matches else []
        moments = moments or [tuple(max(lines, key=at) for lines in stretch.lines)]
        values = [_whole(profile, [at(line) for line in moment]) for moment in moments]
        best = max(range(len(values)), key=values.__getitem__)
        phase = stretch.place[1]
        by_phase[phase] = max(by_phase.get(phase, 0.0), values[best])
        if values[best] > highest:
            top, highest = (phase, moments[best]), values[best]
    assert top is not None, "a step has segments"
    none = (0.0,) * len(step.micro_batch_sizes)
    breakdown = {}
    for name in dict.fromkeys(name for line in top[1] for name in line.categories):
        of_depths = [line.categories.get(name, none) for line in top[1]]
        figures = [_straight(step.micro_batch_sizes, pair, size) for pair in of_depths]
        breakdown[name] = round(_whole(profile, figures))
    return Peak(
        total_bytes=round(highest),
        phase=top[0],
        by_phase={phase: round(value) for phase, value in by_phase.items()},
        breakdown=_balanced(breakdown, round(highest)),
    )


def _balanced(found: dict[str, int], total: int) -> dict[str, int]:
    """Categories that are not negative, and together exactly ``total``.

    Where the highest moments of two depths are of different kinds, a category that vanishes
    from one to the other may end below zero; the largest ones give that.
    """
    kept = {name: value for name, value in found.items() if value > 0}
    left = total - sum(kept.values())
    if left > 0:
        kept[OTHER] = kept.get(OTHER, 0) + left
    for name in sorted(kept, key=kept.__getitem__, reverse=True):
        taken = min(kept[name], max(0, -left))
        kept[name] -= taken
        left += taken
    return kept


def _counted(profile: Profile, step: ProfileStep, size: int) -> dict[Kind, tuple[float, float]]:
    """Collectives and their bytes, by kind."""
    found = {}
    for kind, of_depths in step.calls.items():
        sizes = step.micro_batch_sizes
        sent = [_straight(sizes, one.bytes, size) if one else 0.0 for one in of_depths]
        calls = [one.count if one else 0 for one in of_depths]
        found[kind] = _whole(profile, calls), _whole(profile, sent)
    return found


def _whole(profile: Profile, values: Sequence[float]) -> float:
    """A figure of the whole model, from those at each depth."""
    return _straight(profile.depths, values, profile.layers)


def _straight(places: Sequence[int], values: Sequence[float], at: int) -> float:
    """The straight line through one or two points, at ``at``; one point stands for itself."""
    if len(places) == 1:
        assert at == places[0], "one point says nothing of another place"
        return values[0]
    (low, high), (at_low, at_high) = places, values
    return at_low + (at_high - at_low) * (at - low) / (high - low)


# Type of the error of dry runs that took too long.
TIME_LIMIT = "TimeLimit"
# Types of errors of dry runs that were ended from outside, whatever they were at.
ENDED = (TIME_LIMIT, "Crashed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun(Plain):
    """The dry runs of one layout, or why there are none."""

    form = FORMAT

    key: str  # what decides the result, hashed: :attr:`tuner.dryrun.DryRunPlan.key`
    class_settings: Settings  # the class
    layers: int  # decoder layers of the whole model
    depths: tuple[int, ...]  # decoder layers of the models that were run
    traces: tuple[Trace, ...] = field(default=(), hash=False)
    """What they showed, one for each depth; empty when one failed."""
    error: str = ""  # why there is no profile, fit to be shown; empty when there is one
    is_refusal: bool = False
    """Whether the error is the stack's word on these settings: it names a rule, or an operator
    that raised it, or the dry runs take too much CPU time. All else is an accident."""
    limit_s: float = 0.0
    """Seconds of CPU time after which the dry runs were ended; 0 where they were not."""
    machine: str = ""  # name of the machine that took so long; empty where none did
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the packages that were run."""
    created_at: str = ""  # when, UTC in ISO 8601

    @property
    def profile(self) -> Profile | None:
        """Extrapolates the traces to the whole model; ``None`` when there is an error."""
        return None if self.error else _profile(self)

    @property
    def is_late(self) -> bool:
        """Tells whether it took too long, for its limit or on its machine."""
        return self.error.startswith(TIME_LIMIT)

    @property
    def is_kept(self) -> bool:
        """Tells whether it is worth keeping for other requests: accidents are not."""
        return not self.error or self.is_refusal

    @property
    def holds_here(self) -> bool:
        """Tells whether this machine need not make it again.

        What took too long does on the machine that it took too long on, unless it is given more
        time now; on others, which may be faster, it is made again.
        """
        is_late = self.limit_s and (self.limit_s < LIMIT_S or self.machine != platform.node())
        return self.is_kept and not is_late

    @classmethod
    def from_answers(
        cls,
        plan: DryRunPlan,
        answers: Iterable[Mapping[str, Any]],
        created_at: str = "",
        *,
        why_none: str = "no answer came",
    ) -> "DryRun":
        """The record of a plan's answers, in any order; other plans' answers are passed over.

        Whatever is wrong with them becomes its ``error``; ``why_none`` where there are none, which
        is an accident.
        """
        by_id = {answer.get("id"): answer for answer in answers}
        of_plan = [by_id.get(request["id"], {}) for request in plan.requests]
        none = {"type": "Crashed", "message": why_none}
        failed = [one.get("error") or none for one in of_plan if "trace" not in one]
        failed.sort(key=_is_refusal, reverse=True)
        error, is_refusal = (_text(failed[0]), _is_refusal(failed[0])) if failed else ("", False)
        limit_s = float(failed[0].get("limit_s", 0.0)) if is_refusal else 0.0
        traces: tuple[Trace, ...] = ()
        if not error:
            try:
                # none of a depth that does not show the whole model: that was run in its place
                found = (answer["trace"] for answer in of_plan if answer["trace"] is not None)
                traces = tuple(map(Trace.from_dict, found))
                Profile.from_traces(traces, plan.layers)
            except ValueError as wrong:
                traces, error = (), f"the dry runs cannot be combined: {wrong}"
                is_refusal = True
        return cls(
            key=plan.key,
            class_settings=plan.class_settings,
            layers=plan.layers,
            depths=tuple(sorted({trace.layers for trace in traces})) or plan.depths,
            traces=traces,
            error=error,
            is_refusal=is_refusal,
            limit_s=limit_s,
            machine=platform.node() if limit_s else "",
            versions=traces[-1].versions if traces else {},
            created_at=created_at,
        )


@lru_cache(maxsize=256)
def _profile(dry_run: DryRun) -> Profile:
    return Profile.from_traces(dry_run.traces, dry_run.layers)


def _is_refusal(error: Mapping[str, Any]) -> bool:
    if error["type"] in ENDED:
        return bool(error.get("limit_s"))
    return bool(error.get("rule") or error.get("operator"))


def _text(error: Mapping[str, Any]) -> str:
    where = " in ".join(filter(None, (error.get("operator"), error.get("phase"))))
    text = " ".join(str(error.get("message", "")).split())[:300]
    named = f"{error['type']}: {text}" if text else str(error["type"])
    return f"{named} (at {where})" if where else named
