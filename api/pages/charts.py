"""Charts as numbers: scales, ticks, and marks in their places, which ``charts.html`` draws as SVG.

Positions across are percentages of the plot and positions down are pixels, so that one SVG reads
well at 360 px and at 2560 px. ``static/charts.js`` adds the tooltip, the zoom, and the way from a
mark to its row; each mark carries its numbers for it.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import ceil, floor, fsum, isfinite, log10
from statistics import median
from types import SimpleNamespace
from typing import NamedTuple

from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.measurement import RAN, Category, Outcome
from tuner.core.quantity import Provenance, Quantity
from tuner.core.study import Study
from tuner.core.words import number_text
from tuner.results.points import BestSoFar
from tuner.text import size_text, size_unit

HEIGHT_PX, PROGRESS_PX = 300.0, 220.0
# Height of the rail below the plot that holds what has no speed, and where its marks lie.
RAIL_PX = 30.0
# What is slower than this share of the median, or needs more than this multiple of it, is outside
# the crowd: it lies at the edge until somebody zooms out.
SLOW, LARGE = 0.5, 1.6
# An 80% interval that is wider than this share of its value says nothing about one mark.
TELLING = 0.4
# Marks from which on they are drawn small.
MANY = 120
# What a device needs beside tensors: its context, and communicators.
OUTSIDE = "outside the allocator"
# Categories of memory in their order, with their colours: what is held between steps first.
TONES = {
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
assert set(TONES) >= set(Category)
# Pixels that a bar has on a telephone, and that a letter of its parts' names takes, with the air
# around a name: a part that is wide enough there has its name on it.
NARROWEST_PX, LETTER_PX, AIR_PX = 320, 7.5, 12

OOM, FAILED, STOPPED, EXTRAPOLATED = "oom", "failed", "stopped_early", "extrapolated"
# Names of marks that are no provenance.
LEGEND: Mapping[str, str] = {
    EXTRAPOLATED: "ran, with an extrapolated step time",
    STOPPED: "stopped early",
    OOM: "out of memory",
    FAILED: "ended otherwise",
}


class Scale(NamedTuple):
    """Numbers from ``low`` to ``high``, laid out from 0 to 1."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """The place of a number; what lies beyond an end is put there."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self, count: int) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten, about ``count`` of them."""
        least = (self.high - self.low) / count
        power = 10.0 ** floor(log10(least))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [round(n * step, 12) for n in range(first, last + 1)]


def scale_for(values: Sequence[float]) -> Scale:
    """A scale with a little air around, from 0 where that wastes little of it."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if 0 <= low <= high / 4 and high > 0:
        return Scale(0.0, high * 1.05)
    # Small differences look small: the scale spans a fifth of its largest number.
    span = max(high - low, 0.2 * abs(high)) or 1.0
    middle = (low + high) / 2
    return Scale(max(middle - 0.56 * span, 0.0), middle + 0.56 * span)


class Interval(NamedTuple):
    """A finite number and the ends of its 80% interval, which equal it where nobody knows them."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return figure(self.value)
        return f"{figure(self.value)} ({figure(self.low)} to {figure(self.high)})"


def interval_of(quantity: Quantity, scale: float = 1.0) -> Interval | None:
    """A quantity's numbers, times ``scale``; ``None`` where it is unknown or not finite."""
    value, low, high = quantity.value, quantity.low, quantity.high
    if value is None or low is None or high is None:
        return None
    found = Interval(value * scale, low * scale, high * scale)
    return found if all(map(isfinite, found)) else None


def figure(value: float) -> str:
    """A number with three digits or more: ``9,412``, ``43.1``, ``0.512``; ``1.25e+09`` if huge."""
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.3g}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def tick_words(tick: float) -> str:
    """The label of a tick: ``0``, ``0.5``, ``5,000``, ``1.5M``."""
    size = abs(tick)
    if size >= 1e12 or 0 < size < 1e-3:
        return f"{tick:.3g}"
    return f"{tick / 1e6:.4g}M" if size >= 1e6 else f"{tick:,.6g}"


# -- memory against speed -----------------------------------------------------------------------


class Series(NamedTuple):
    """The points of one study, and where a click on one leads, within this site."""

    points: Sequence[Evaluation]
    href: Callable[[Evaluation], str]
    limit_bytes: float
    best: Settings | None  # of the answer
    name: str = ""


def scatter(series: Sequence[Series], *, per: str) -> SimpleNamespace:
    """Configurations by memory and speed: marks, the fronts, and the limit.

    The plot shows the crowd; the whole is a zoom away. ``per`` is the word for a rank.
    """
    points = [point for one in series for point in one.points]
    unit, divisor = size_unit(max((p.needed_bytes.value or 0.0 for p in points), default=GIB))
    limits = {one.limit_bytes / divisor for one in series}
    marks = [
        mark
        for number, one in enumerate(series)
        for point in one.points
        if (mark := _mark(point, number, one, divisor, unit))
    ]
    timed = [mark for mark in marks if mark.y]
    memory = [mark.x.value for mark in marks if mark.x]
    crowd, whole = _ranges(timed or marks, memory, limits)
    plot = SimpleNamespace(x=crowd[0], y=crowd[1], height=HEIGHT_PX)
    for mark in marks:
        inside = plot.x.low <= mark.x.value <= plot.x.high
        mark.is_beyond = not inside or bool(
            mark.y and not plot.y.low <= mark.y.value <= plot.y.high
        )
        down = _down(plot, mark.y.value) if mark.y else HEIGHT_PX + RAIL_PX * 0.6
        mark.across, mark.down = 100 * plot.x.at(mark.x.value), down
    for mark in timed:
        telling = mark.y.high - mark.y.low <= TELLING * mark.y.value
        if (mark.front or mark.best) and telling and mark.y.low < mark.y.high:
            mark.whisker = tuple(_down(plot, end) for end in (mark.y.low, mark.y.high))
    has_rail = len(timed) < len(marks)
    best = next((mark for mark in marks if mark.best and mark.y), None)
    # Limits that read the same are one line.
    lines = {f"limit {figure(limit)} {unit}": limit for limit in sorted(limits)}
    used = {mark.shape for mark in marks}
    # in the order of the legend
    names = {**{str(one): str(one) for one in Provenance}, **LEGEND}
    said = [f"{len(marks)} configurations by memory and speed" if marks else "Nothing is known yet"]
    said += [f"{len(marks) - len(timed)} without a speed"] if has_rail else []
    said += [f"the answer makes {best.y} tokens/s per {per}"] if best and len(series) == 1 else []
    return SimpleNamespace(
        plot=plot,
        bottom=HEIGHT_PX + (RAIL_PX if has_rail else 0.0),
        marks=marks,
        groups=_groups(marks, several=len(series) > 1),
        fronts=[_front(marks, number, plot) for number in range(len(series))],
        limits=[(limit, words) for words, limit in lines.items()],
        whole=whole,
        is_cut=any(mark.is_beyond for mark in marks),
        has_rail=has_rail,
        best=best,
        kinds=[(shape, words) for shape, words in names.items() if shape in used],
        names=[one.name for one in series],
        size="small" if len(marks) >= MANY else "usual",
        x_title=f"memory needed, {unit}",
        y_title=f"tokens/s per {per}",
        said="; ".join(said) + ".",
    )


def _mark(
    point: Evaluation, number: int, of: Series, divisor: int, unit: str
) -> SimpleNamespace | None:
    """A point as a mark; of unknown memory only what ran out of it has a place, at the limit."""
    x, y = interval_of(point.needed_bytes, 1 / divisor), interval_of(point.tokens_per_s_per_gpu)
    ran_out = point.too_large and point.outcome is Outcome.OOM
    if x is None:
        if not ran_out:
            return None
        x = Interval(*[of.limit_bytes / divisor] * 3)
    shape = str(point.known_from)
    if not (point.fits or point.too_large):
        shape = FAILED
    if ran_out:
        shape = OOM
    if point.outcome is Outcome.STOPPED_EARLY:
        shape = STOPPED
    elif point.outcome in RAN and point.known_from is Provenance.PREDICTED:
        shape = EXTRAPOLATED
    return SimpleNamespace(
        point=point,
        series=number,
        x=x,
        y=y,
        shape=shape,
        fits=bool(point.fits) and not point.too_large,
        best=point.settings == of.best,
        front=False,
        whisker=(),
        href=of.href(point),
        # Its row in a table has the configuration.
        said=f"{f'{y} tokens/s' if y else 'no speed'}, needs {'over ' * (shape == OOM)}{x} {unit}",
        at=f"{x.value:.5g} {y.value:.5g}" if y else f"{x.value:.5g}",
    )


def _ranges(
    marks: Sequence[SimpleNamespace], memory: Sequence[float], limits: set[float]
) -> tuple[tuple[Scale, Scale], tuple[Scale, Scale]]:
    """The scales of the crowd, and those of all there is."""
    speeds = [mark.y.value for mark in marks if mark.y]
    needs = [mark.x.value for mark in marks if mark.fits] or list(memory)
    usual = median(needs) if needs else 0.0
    # The answer is of the crowd, wherever it is; limits are where they do not squeeze it.
    near = [need for need in needs if need <= LARGE * usual]
    near += [mark.x.value for mark in marks if mark.best]
    near += [limit * 1.04 for limit in limits if not near or limit <= LARGE * max(near)]
    fast = [speed for speed in speeds if speed >= SLOW * median(speeds)]
    fast += [mark.y.value for mark in marks if mark.best and mark.y]
    everything = [*memory, *(limit * 1.04 for limit in limits)]
    return (scale_for(near), scale_for(fast)), (scale_for(everything), scale_for([0.0, *speeds]))


def _down(plot: SimpleNamespace, value: float) -> float:
    return float(plot.height * (1 - plot.y.at(value)))


def _front(marks: Sequence[SimpleNamespace], number: int, plot: SimpleNamespace) -> str:
    """Marks the configurations of a series that no other beats in both, as its path.

    What ran is not beaten by what is only predicted.
    """
    own = [mark for mark in marks if mark.series == number and mark.fits and mark.y]
    ran = [mark for mark in own if mark.point.outcome in RAN]
    best, path = 0.0, list[str]()
    for mark in sorted(ran or own, key=lambda one: (one.x.value, -one.y.value)):
        if mark.y.value > best:
            best, mark.front = mark.y.value, True
            across, down = 10 * mark.across, mark.down
            path.append(f"H{across:.1f}V{down:.1f}" if path else f"M{across:.1f} {down:.1f}")
    return "".join([*path, f"H{10 * 100 * plot.x.at(plot.x.high):.0f}"]) if path else ""


def _groups(
    marks: Sequence[SimpleNamespace], *, several: bool
) -> list[tuple[str, list[SimpleNamespace]]]:
    """Marks by what they look like; what matters most lies on top."""
    groups: dict[tuple[int, str], list[SimpleNamespace]] = {}
    for mark in marks:
        rank = 3 if mark.best else 2 if mark.front and mark.fits else 1 if mark.fits else 0
        look = ("chart-out", "chart-other", "chart-on-front", "chart-best")[rank]
        series = f" chart-series-{mark.series}" if several else ""
        groups.setdefault((rank, look + series), []).append(mark)
    return [(look, groups[rank, look]) for rank, look in sorted(groups)]


# -- best so far --------------------------------------------------------------------------------


def progress(ended: Sequence[BestSoFar], *, per: str) -> SimpleNamespace:
    """Each ended probe as a mark, those without a speed on the axis, and the best so far."""
    last = max((one.number for one in ended), default=1)
    found = [interval_of(one.tokens_per_s_per_gpu) for one in ended]
    speeds = [one.value for one in found if one]
    plot = SimpleNamespace(x=Scale(0.5, last + 0.5), y=scale_for(speeds), height=PROGRESS_PX)
    marks = [
        SimpleNamespace(
            across=100 * plot.x.at(one.number),
            down=_down(plot, speed.value) if speed else PROGRESS_PX,
            shape=OOM if speed is None else str(one.fidelity),
            best=speed is not None and speed.value == one.best,
            fits=speed is not None,
            front=False,
            said=str(speed or one.outcome),
            number=number_text(one.probe_id),
        )
        for one, speed in zip(ended, found, strict=True)
    ]
    path, before = list[str](), None
    for one, mark in zip(ended, marks, strict=True):
        if one.best is not None and one.best != before:
            across, down = 10 * mark.across, _down(plot, one.best)
            path.append(f"H{across:.1f}V{down:.1f}" if path else f"M{across:.1f} {down:.1f}")
            before = one.best
    ticks = sorted({max(1, round(tick)) for tick in plot.x.ticks(5) if tick <= last} | {1})
    failed = sum(speed is None for speed in found)
    said = [f"{len(ended)} probes ended", f"{failed} of them without a speed"][: 1 + bool(failed)]
    said += [f"the best makes {figure(before)} tokens/s per {per}"] if before is not None else []
    return SimpleNamespace(
        plot=plot,
        marks=marks,
        groups=_groups(marks, several=False),
        path="".join([*path, "H1000"]) if path else "",
        x_ticks=ticks,
        best=None if before is None else (figure(before), _down(plot, before)),
        size="small" if len(marks) >= MANY else "usual",
        y_title=f"tokens/s per {per}",
        said="; ".join(said) + ".",
    )


# -- memory ---------------------------------------------------------------------------------------


def memory_bar(sizes_bytes: Mapping[str, float], study: Study, title: str) -> SimpleNamespace:
    """Memory by the names of categories, against a study's limit."""
    limit = study.limits.limit_bytes(study.question.cluster)
    order = list(TONES)
    named = {name: size for name, size in sizes_bytes.items() if size > 0}
    names = sorted(named, key=lambda one: order.index(one) if one in order else len(order))
    total = fsum(named.values())  # the same with every Python: 3.12 changed sum
    # Of a limit far away the bar would be a smear: then it is said, and not drawn.
    is_near = limit <= 3 * total
    whole = max(total, limit * 1.02) if is_near else total * 1.02
    parts = []
    ends = accumulate(named[name] for name in names)
    for name, until in zip(names, ends, strict=True):
        start, share = until - named[name], named[name] / whole
        parts.append(
            SimpleNamespace(
                name=name.replace("_", " "),
                size=size_text(named[name]),
                share=named[name] / total,
                left=100 * start / whole,
                width=100 * share,
                tone=TONES.get(name, 9),
                is_named=share * NARROWEST_PX >= LETTER_PX * len(name) + AIR_PX,
            )
        )
    over = total - limit
    words = f"{size_text(abs(over))} {'over' if over > 0 else 'below'} the limit"
    return SimpleNamespace(
        title=title,
        parts=parts,
        total=size_text(total),
        limit=size_text(limit),
        limit_at=100 * limit / whole if is_near else None,
        over=over > 0,
        words=words,
        said=f"{size_text(total)} of {size_text(limit)}: "
        + ", ".join(f"{part.name} {part.size}" for part in parts),
    )
