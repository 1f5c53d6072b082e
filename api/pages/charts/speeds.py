"""Speeds: of configurations against their memory, with the Pareto front and the limit; and of
probes in the order that they ended, with the best so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from api.pages.charts.scales import (
    Interval,
    Scale,
    cut,
    figure,
    interval_of,
    range_words,
    reach,
    scale_for,
    short_words,
)
from api.pages.charts.svg import (
    BEST,
    BEYOND,
    FAILED,
    OOM,
    Plot,
    area_key,
    chart,
    element,
    label,
    layer,
    legend,
    line,
    line_key,
    nothing,
    number,
    percent,
    plot_svg,
    staircase,
    symbol_key,
    symbols,
    text,
    use,
    whiskers,
    x_axis,
    y_axis,
)
from tuner.core.evaluation import GIB
from tuner.core.quantity import Provenance
from tuner.results import BestSoFar, Point, PointKind
from tuner.text import size_unit

_TITLE = "Memory against speed of the settings that were tried or predicted"
_HEIGHT_PX = 300.0
# Height of the rail below the plot that holds what has no speed, and where its marks lie.
_RAIL_PX = 34.0
_ON_RAIL_PX = _HEIGHT_PX + _RAIL_PX * 0.55
# The axis ends at this share of the limit at most; marks beyond it are put at the edge.
_BEYOND = 1.3
# From this many marks on they are smaller; then only front and answer have whiskers, and probes no
# words of their own.
_DENSE = 120
_ENDED: Mapping[PointKind, str] = {
    PointKind.OOM: "out of memory",
    PointKind.OVER_LIMIT: "over the limit",
    PointKind.OTHER: "ended otherwise",
}

_PROGRESS_PX = 200.0
_PROGRESS = "Speed of each probe, and the best so far"
_OTHER, _OUT, _BEST = "chart-is-other", "chart-is-out", "chart-is-best"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """A configuration in the plot."""

    id: str
    point: Point
    x: Interval | None
    """Memory; of unknown memory only what ran out of it is drawn, beyond the limit."""
    y: Interval | None
    """Speed; what has none lies on the rail."""
    across: float
    down: float
    shapes: tuple[str, ...]


def scatter(
    points: Sequence[Point],
    path: Callable[[Point], str],
    *,
    limit_bytes: float,
    per: str,
    prefix: str = "points",
) -> Markup:
    """Configurations, the most important ones first, as marks by memory and speed that are links.

    ``path`` is where a click on one leads, within this site; ``limit_bytes`` is the memory that
    one may need; ``per`` is the word for a rank.
    """
    unit, divisor = size_unit(max((p.memory_gib.value or 0.0 for p in points), default=1.0) * GIB)
    labels = memory, speed = f"memory, {unit}", f"tokens/s per {per}"
    limit = limit_bytes / divisor
    plot, marks = _placed(points, limit, GIB / divisor)
    has_rail = any(mark.y is None for mark in marks)
    is_dense = len(marks) >= _DENSE
    bottom = plot.height + (_RAIL_PX if has_rail else 0.0)
    at = plot.x.at(limit)
    used = {shape for mark in marks for shape in mark.shapes}
    names = [name for name in (BEST, *Provenance, OOM, FAILED, BEYOND) if name in used]
    sizes = {"size": 0.7, "target_px": 7.0} if is_dense else {"size": 1.0, "target_px": 12.0}
    room = {"x": percent(at), "y": 0, "width": percent(1 - at), "height": bottom}
    content = [symbols(prefix, names, **sizes), element("rect", **room, class_="chart-beyond")]
    if any(mark.y for mark in marks):
        content.append(y_axis(plot))
    else:
        empty = "nothing ran to its end yet" if marks else "nothing to show yet"
        content.append(nothing(empty, _HEIGHT_PX))
    if has_rail:
        content.append(line(0, plot.height, "100%", plot.height, "chart-grid"))
        place = {"dy": ".35em", "text_anchor": "end", "class_": "chart-tick"}
        content.append(text("no speed", -3, _ON_RAIL_PX, **place))
    crosses = []
    for mark in marks:
        x, y, matters = mark.x, mark.y, mark.point.on_front or mark.point.is_best
        if y and (matters or not is_dense):
            if x and x.low < x.high:
                crosses.append((plot.x.at(x.low), mark.down, plot.x.at(x.high), mark.down))
            if y.low < y.high:
                crosses.append((mark.across, plot.down(y.low), mark.across, plot.down(y.high)))
    # The most speed that is known within each memory, up to the limit.
    front = sorted((m.across, m.down) for m in marks if m.point.on_front and m.x and m.y)
    content += [
        x_axis(plot.x, bottom),
        label(memory, "100%", bottom, dy="3em", text_anchor="end"),
        label(speed, 0, -38, class_="chart-words chart-from-edge"),
        line(percent(at), -10, percent(at), bottom, "chart-limit"),
        label(f"limit {figure(limit)}", percent(at), -18, text_anchor="end"),
        layer(bottom, staircase(front, at, "chart-front-line")) if front else Markup(),
        whiskers(crosses, bottom),
    ]
    groups: dict[str, list[Markup]] = {}
    for mark in marks:
        point, href = mark.point, path(mark.point)
        assert href.startswith(("/", "#", "?")), href
        assert not href.startswith(("//", "/\\")), href
        kind = "is-other" if point.kind is PointKind.FITS else "is-out"
        kind = "is-best" if point.is_best else "is-front" if point.on_front else kind
        across, down = percent(mark.across), number(round(mark.down, 1))
        shapes = (use(f"{prefix}-{name}", across, down) for name in mark.shapes)
        title = element("title", _title(mark, labels, is_dense))
        link = element("a", title, *shapes, id=f"{prefix}-{mark.id}", href=href)
        groups.setdefault(f"chart-{kind}", []).append(link)
    content += [element("g", *links, class_=class_) for class_, links in groups.items()]
    best = next((mark for mark in marks if mark.point.is_best and mark.y), None)
    if best and best.y:
        # Up and left of the answer's mark: nothing known is faster and smaller.
        side, anchor = (-8, "end") if best.across > 0.2 else (8, "start")
        place = {"text_anchor": anchor, "class_": "chart-end"}
        shown, left = figure(best.y.value), percent(best.across)
        content.append(text(shown, left, best.down - 11, dx=side, **place))
    failed, left_out = sum(mark.y is None for mark in marks), len(points) - len(marks)
    said = [f"{len(marks)} settings by memory and speed" if marks else "No settings yet"]
    said += [f"{failed} of them without a speed"] if failed else []
    said += [f"the answer makes {range_words(best.y)} {speed}"] if best and best.y else []
    said += [f"{left_out} more of unknown memory not shown"] if left_out else []
    drawn = plot_svg(prefix, _TITLE, "; ".join(said) + ".", bottom, content, role="group")
    return chart("scatter", drawn, legend(_keys(names, prefix, has_front=bool(front))))


def _placed(points: Sequence[Point], limit: float, scale: float) -> tuple[Plot, list[_Mark]]:
    """The scales, and the marks in the order of drawing: what matters most lies on top."""
    found = [
        (str(n), p, interval_of(p.memory_gib, scale), interval_of(p.tokens_per_s_per_gpu))
        for n, p in enumerate(points)
    ]
    found = [one for one in found if one[2] or one[1].kind is PointKind.OOM]
    memory = [x.value for _, _, x, _ in found if x and x.value <= limit * _BEYOND]
    across = scale_for(memory, include=(limit, limit * 1.1, *(() if memory else (0.0,))))
    upwards = scale_for([end for _, _, _, y in found if y for end in reach(y)])
    plot = Plot(x=across, y=upwards, height=_HEIGHT_PX)
    marks = []
    for id_, point, x, y in found:
        ended = {PointKind.OOM: OOM, PointKind.OTHER: FAILED}.get(point.kind, point.provenance)
        beyond = (BEYOND,) if x is not None and x.value > across.high else ()
        mark = _Mark(
            id=id_,
            point=point,
            x=x,
            y=y,
            across=across.at(x.value) if x else (across.at(limit) + 1) / 2,
            down=plot.down(y.value) if y else _ON_RAIL_PX,
            shapes=(*((BEST,) if point.is_best else ()), ended, *beyond),
        )
        marks.append(mark)
    return plot, sorted(marks, key=lambda mark: (mark.point.is_best, mark.point.on_front))


def _title(mark: _Mark, labels: tuple[str, str], is_dense: bool) -> str:
    """``ddp, micro batch 4: 9,412 (9,370 to 9,455); 43.1; measured``, with units."""
    point = mark.point
    known = [(i, unit) for i, unit in zip((mark.x, mark.y), labels, strict=True) if i]
    if is_dense:
        words = [figure(interval.value) for interval, _ in reversed(known)]
    else:
        words = [f"{range_words(interval)} {unit}" for interval, unit in reversed(known)]
    words += [_ENDED[point.kind]] if point.kind in _ENDED else []
    words.append(point.provenance)
    return f"{cut(short_words(point.words), 60 if is_dense else 90)}: {'; '.join(words)}"


def _keys(names: Sequence[str], prefix: str, *, has_front: bool) -> list[tuple[Markup, str]]:
    out = "chart-is-out"
    words = {
        BEST: ("chart-is-best", "the answer"),
        OOM: (out, _ENDED[PointKind.OOM]),
        FAILED: (out, _ENDED[PointKind.OTHER]),
        BEYOND: (out, "beyond this axis"),
    }
    keys = []
    for name in names:
        class_, said = words.get(name, ("chart-is-other", str(name)))
        x = 0 if name == BEYOND else 9
        keys.append((symbol_key(f"{prefix}-{name}", class_, x=x), said))
    if has_front:
        keys.append((line_key("chart-front-line"), "Pareto front"))
    keys.append((area_key("chart-beyond"), "over the limit"))
    return keys


# -- best so far ------------------------------------------------------------------------------


def progress(ended: Sequence[BestSoFar], *, per: str, prefix: str = "progress") -> Markup:
    """Each ended probe as a mark, those without a speed as crosses on the axis, the best as a line.

    ``per`` is the word for a rank; ids of elements start with ``prefix``, unique in a page.
    """
    y_label = f"tokens/s per {per}"
    last = max((one.number for one in ended), default=1)
    best = next((one.best for one in reversed(ended) if one.best is not None), None)
    found = [interval_of(one.tokens_per_s_per_gpu) for one in ended]
    speeds = [one.best for one in ended if one.best is not None]
    speeds += [end for speed in found if speed for end in reach(speed)]
    x = Scale(low=0.5, high=last + 0.5)
    plot = Plot(x=x, y=scale_for(speeds), height=_PROGRESS_PX)
    is_titled = len(ended) <= _DENSE
    failed = sum(one.tokens_per_s_per_gpu.value is None for one in ended)
    keys = [(str(Provenance.MEASURED), _OTHER, "a probe")] if failed < len(ended) else []
    keys += [(OOM, _OUT, "ended without a speed")] if failed else []
    content = [symbols(prefix, [key[0] for key in keys], size=1.0 if is_titled else 0.6)]
    if speeds:
        content.append(y_axis(plot, count=6))
    else:
        empty = "no probe has a speed yet" if ended else "no probe has ended yet"
        content.append(nothing(empty, _PROGRESS_PX))
    # Whole numbers of probes, the first and the last among them where they have room.
    ticks = {tick for tick in x.ticks(6) if tick == int(tick) and tick >= 1} | {1.0}
    ticks |= {float(last)} if x.at(last) - x.at(max(ticks)) > 0.16 else set()
    content += [
        x_axis(x, _PROGRESS_PX, ticks=sorted(ticks)),
        label(y_label, 0, -14, class_="chart-words chart-from-edge"),
        label("probe", "100%", _PROGRESS_PX, dy="3em", text_anchor="end"),
    ]
    if is_titled:
        crosses = [
            (x.at(one.number), plot.down(s.low), x.at(one.number), plot.down(s.high))
            for one, s in zip(ended, found, strict=True)
            if s and s.low < s.high
        ]
        content.append(whiskers(crosses, _PROGRESS_PX))
    if best is not None:
        steps: list[tuple[float, float]] = []
        before: float | None = None
        for one in ended:
            if one.best is not None and one.best != before:
                steps.append((x.at(one.number), plot.down(one.best)))
                before = one.best
        content.append(layer(_PROGRESS_PX, staircase(steps, 1.0, "chart-best-line")))
    # A group for each kind: those that were the best lie over the others.
    groups: dict[str, list[Markup]] = {_OUT: [], _OTHER: [], _BEST: []}
    for one in ended:
        value = one.tokens_per_s_per_gpu.value
        kind = _OUT if value is None else _BEST if value == one.best else _OTHER
        groups[kind].append(_mark(one, plot, prefix, is_titled=is_titled))
    content += [element("g", *marks, class_=kind) for kind, marks in groups.items() if marks]
    if best is not None:
        place = {"dx": 6, "dy": ".35em", "class_": "chart-end"}
        content.append(text(figure(best), "100%", plot.down(best), **place))
    said = [f"{len(ended)} probes ended" if ended else "No probe has ended yet"]
    said += [f"{failed} of them without a speed"] if failed else []
    said += [f"the best makes {figure(best)} {y_label}"] if best is not None else []
    drawn = plot_svg(prefix, _PROGRESS, "; ".join(said) + ".", _PROGRESS_PX, content)
    shown = [(symbol_key(f"{prefix}-{name}", class_), words) for name, class_, words in keys]
    shown += [(line_key("chart-best-line"), "best so far")] if best is not None else []
    return chart("progress", drawn, legend(shown))


def _mark(one: BestSoFar, plot: Plot, prefix: str, *, is_titled: bool) -> Markup:
    value = one.tokens_per_s_per_gpu.value
    down = plot.height if value is None else plot.down(value)
    found = str(one.outcome).replace("_", " ") if value is None else figure(value)
    words = f"{one.number}: {cut(short_words(one.words), 90)}: {found}"
    title = (element("title", words),) if is_titled else ()
    shape = OOM if value is None else Provenance.MEASURED
    x, y = percent(plot.x.at(one.number)), number(round(down, 1))
    return use(f"{prefix}-{shape}", x, y, *title)
