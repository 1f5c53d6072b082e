"""What is known of a study as charts: results in, SVG out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlencode

from markupsafe import Markup

from api.pages import charts
from api.pages.charts import Bar, Effect, EffectValue, Interval, Mark, MarkKind, Part, Step
from api.pages.sentences import probe_path
from tuner.cost.categories import Category
from tuner.planner.words import describe
from tuner.quantity import Quantity
from tuner.results import KnobEffect, KnobValue, Point, Progress
from tuner.settings import Settings
from tuner.sizes import size_text, size_unit
from tuner.study import Study
from tuner.suggestion import GIB, Candidate

OUTSIDE = "outside the allocator"
"""What a device needs beside tensors: its context, and communicators."""
_ORDER = (
    "parameters",
    "gradients",
    "gradients_sharded",
    "gradients_unsharded",
    "optimizer",
    "optimizer_state",
    *Category,
)
"""What is held between steps first, then what comes and goes."""
_TONES = {
    "parameters": 1,
    "gradients": 2,
    "gradients_sharded": 2,
    "gradients_unsharded": 3,
    "optimizer": 4,
    "optimizer_state": 4,
    "activations": 5,
    "activations_and_temporaries": 5,
    "gathered_parameters": 6,
    "logits_and_loss": 7,
    "ddp_buckets": 3,
    "library_workspaces": 8,
    "unsplit_blocks": 8,
    "temporaries": 9,
    OUTSIDE: 9,
}
"""Colours of categories, the same in every bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawings:
    """The charts of one study."""

    points: tuple[Point, ...]
    """What the scatter shows."""
    per: str
    """What a rank is to its user."""
    study: Study
    """Whose."""

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of memory in the scatter, and its bytes."""
        sizes = [point.memory_gib.value or 0.0 for point in self.points]
        return size_unit(max(sizes, default=1.0) * GIB)

    @property
    def _limit_bytes(self) -> int:
        return self.study.terms.limit_bytes(self.study.question.cluster)

    @property
    def speed_unit(self) -> str:
        """What speeds are in."""
        return f"tokens/s per {self.per}"

    def scatter(self) -> Markup:
        """Memory against speed."""
        unit, divisor = self.unit
        marks = [
            _mark(self.study.id, number, point, GIB / divisor)
            for number, point in enumerate(self.points)
        ]
        return charts.scatter(
            marks,
            limit=self._limit_bytes / divisor,
            x_label=f"memory, {unit}",
            y_label=self.speed_unit,
            title="Memory against speed of the settings that were tried or predicted",
            prefix="at",  # short: there may be hundreds of marks
        )

    def progress(self, ended: Sequence[Progress]) -> Markup:
        """The best so far, probe by probe."""
        return charts.progress(
            [_step(one) for one in ended],
            y_label=self.speed_unit,
            title="Speed of each probe, and the best so far",
            prefix="steps",
        )

    def multiples(self, effects: Sequence[KnobEffect]) -> Markup:
        """What each knob does."""
        largest = max(
            (one.memory_gib.value or 0.0 for effect in effects for one in effect.values),
            default=1.0,
        )
        unit, divisor = size_unit(largest * GIB)
        return charts.small_multiples(
            [
                Effect(
                    knob=effect.knob.replace("_", " "),
                    values=tuple(_effect(one, GIB / divisor) for one in effect.values),
                )
                for effect in effects
            ],
            speed_label=self.speed_unit,
            memory_label=f"memory, {unit}",
            title="The best settings that are known with each value of a knob",
            prefix="effects",
        )


def best_bar(study: Study, best: Candidate, needed_gib: float, per: str) -> Markup:
    """The answer's memory by category, against the limit."""
    sizes = dict(best.breakdown_gib)
    outside = needed_gib - (best.allocated_gib.value or 0.0)
    if outside > 0:
        sizes[OUTSIDE] = outside
    return memory_bar(
        {name: size * GIB for name, size in sizes.items()},
        label=f"Peak memory of one {per}",
        study=study,
        prefix="held",
    )


def memory_bar(sizes_bytes: dict[str, float], *, label: str, study: Study, prefix: str) -> Markup:
    """Memory by category, against the study's limit.

    Args:
        sizes_bytes: by the names of categories.
        label: what it is the memory of.
        study: whose limit.
        prefix: of ids.
    """
    terms, gpu = study.terms, study.question.cluster.gpu
    limit = terms.limit_bytes(study.question.cluster)
    unit, divisor = size_unit(sum(sizes_bytes.values()))
    spare = gpu.memory_bytes - limit if terms.memory_limit_bytes is None else 0
    return charts.memory_bar(
        Bar(
            label=label,
            unit=unit,
            limit=limit / divisor,
            limit_label=f"limit {size_text(limit)}",
            headroom=max(0, spare) / divisor,
            parts=tuple(
                Part(
                    name=name.replace("_", " "),
                    value=sizes_bytes[name] / divisor,
                    tone=_TONES.get(name, 9),
                )
                for name in sorted(sizes_bytes, key=_place)
            ),
        ),
        prefix=prefix,
    )


def settings_path(study_id: str, settings: Settings) -> str:
    """Where it is shown what is predicted of settings."""
    values = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in settings.as_dict().items()
    }
    return f"/studies/{study_id}/settings?{urlencode(values)}"


def point_path(study_id: str, point: Point) -> str:
    """Where there is more of a point: its newest probe, or what is predicted."""
    if point.outcome is not None and point.probes:
        return probe_path(study_id, point.probes[-1])
    return settings_path(study_id, point.settings)


# A page is made again after every event, and most of what it shows stays the same.
@lru_cache(maxsize=4096)
def short_words(settings: Settings) -> str:
    """Settings without what follows from the rest: ``full_shard, micro_batch_size=4``."""
    sharding, *others = describe(settings).split(",")
    shown = [part for part in others if not part.startswith("gradient_accumulation_steps=")]
    return ", ".join((sharding.partition("=")[2], *shown))


def probe_query(point: Point) -> str:
    """The same from the study's own page, in short; empty where there is no probe."""
    return f"?probe={point.probes[-1]}" if point.outcome is not None and point.probes else ""


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _mark(study_id: str, number: int, point: Point, scale: float) -> Mark:
    return Mark(
        id=str(number),
        href=probe_query(point) or point_path(study_id, point),
        label=short_words(point.settings),
        x=_interval(point.memory_gib, scale),
        y=_interval(point.tokens_per_s_per_gpu),
        kind=MarkKind(point.kind),
        provenance=point.provenance,
        on_front=point.on_front,
        is_best=point.is_best,
    )


def _step(one: Progress) -> Step:
    speed = one.tokens_per_s_per_gpu
    return Step(
        number=one.number,
        value=speed.value,
        low=speed.low,
        high=speed.high,
        best=one.best,
        outcome=str(one.outcome).replace("_", " "),
        label=short_words(one.settings),
    )


def _effect(one: KnobValue, scale: float) -> EffectValue:
    memory = _interval(one.memory_gib, scale)
    return EffectValue(
        value=one.shown,
        speed=_interval(one.tokens_per_s_per_gpu),
        memory=None if memory is None else memory.value,
        is_best=one.is_best,
        note="does not fit" if one.fits is False else one.note.partition(":")[0],
        provenance=one.provenance,
    )


def _interval(quantity: Quantity, scale: float = 1.0) -> Interval | None:
    return Interval.of(quantity.scaled(scale))
