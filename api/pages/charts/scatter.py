"""Memory against speed: one mark for each configuration, the Pareto front, the limit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from api.pages.charts.frame import (
    Plot,
    area_key,
    chart,
    label,
    legend,
    line_key,
    nothing,
    plot_svg,
    symbol_key,
    whiskers,
    x_axis,
    y_axis,
)
from api.pages.charts.scales import (
    Interval,
    cut,
    figure,
    interval_of,
    range_words,
    reach,
    scale_for,
)
from api.pages.charts.svg import (
    BEST,
    BEYOND,
    FAILED,
    OOM,
    element,
    layer,
    line,
    number,
    percent,
    staircase,
    symbol,
    text,
    use,
)
from tuner.core.evaluation import GIB
from tuner.core.quantity import Provenance
from tuner.results import Point, PointKind
from tuner.text import size_unit

_HEIGHT_PX = 300.0
# Height of the rail below the plot that holds what has no speed, and where its marks lie.
_RAIL_PX = 34.0
_ON_RAIL_PX = _HEIGHT_PX + _RAIL_PX * 0.55
# The axis ends at this share of the limit at most; marks beyond it are put at the edge.
_BEYOND = 1.3
# From this many marks on they are smaller, and only front and answer have whiskers.
_DENSE = 120
_ENDED: Mapping[PointKind, str] = {
    PointKind.OOM: "out of memory",
    PointKind.OVER_LIMIT: "over the limit",
    PointKind.OTHER: "ended otherwise",
}


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
    is_beyond: bool
    """Whether its memory is beyond the right end of the axis."""

    @property
    def shape(self) -> str:
        """A symbol's name."""
        if self.point.kind is PointKind.OOM:
            return OOM
        return FAILED if self.point.kind is PointKind.OTHER else self.point.provenance


def scatter(
    points: Sequence[Point],
    path: Callable[[Point], str],
    *,
    limit_bytes: float,
    per: str,
    prefix: str = "points",
) -> Markup:
    """Configurations as marks that are links, by memory and speed.

    Args:
        points: the configurations, the most important ones first.
        path: where a click on one leads: within this site.
        limit_bytes: the memory that one may need; above 0.
        per: what a rank is to its user.
        prefix: what element ids start with; unique in a page.
    """
    unit, divisor = size_unit(max((p.memory_gib.value or 0.0 for p in points), default=1.0) * GIB)
    x_label, y_label, limit = f"memory, {unit}", f"tokens/s per {per}", limit_bytes / divisor
    plot, marks = _placed(points, limit, GIB / divisor)
    has_rail = any(mark.y is None for mark in marks)
    is_dense = len(marks) >= _DENSE
    bottom = plot.height + (_RAIL_PX if has_rail else 0.0)
    at = plot.x.at(limit)
    names = _names(marks)
    size, target = (0.7, 7.0) if is_dense else (1.0, 12.0)
    symbols = [symbol(prefix, name, size=size, target_px=target) for name in names]
    room = {"x": percent(at), "y": 0, "width": percent(1 - at), "height": bottom}
    content = [
        element("defs", *symbols) if symbols else Markup(),
        element("rect", **room, class_="chart-beyond"),
    ]
    if any(mark.y for mark in marks):
        content.append(y_axis(plot))
    else:
        empty = "nothing ran to its end yet" if marks else "nothing to show yet"
        content.append(nothing(empty, _HEIGHT_PX))
    if has_rail:
        content.append(line(0, plot.height, "100%", plot.height, "chart-grid"))
        place = {"dy": ".35em", "text_anchor": "end", "class_": "chart-tick"}
        content.append(text("no speed", -3, _ON_RAIL_PX, **place))
    content += [
        x_axis(plot.x, bottom),
        label(x_label, "100%", bottom, dy="3em", text_anchor="end"),
        label(y_label, 0, -38, class_="chart-words chart-from-edge"),
        line(percent(at), -10, percent(at), bottom, "chart-limit"),
        label(f"limit {figure(limit)}", percent(at), -18, text_anchor="end"),
        _front(marks, at, bottom),
        whiskers([one for mark in marks for one in _cross(plot, mark, is_dense)], bottom),
    ]
    groups: dict[str, list[Markup]] = {}
    for mark in marks:
        title = _title(mark, (x_label, y_label), is_dense)
        link = _link(mark, path(mark.point), title, prefix)
        groups.setdefault(_group(mark.point), []).append(link)
    content += [element("g", *links, class_=class_) for class_, links in groups.items()]
    content.append(_best_speed(marks))
    title = "Memory against speed of the settings that were tried or predicted"
    said = _description(marks, len(points) - len(marks), y_label)
    drawn = plot_svg(prefix, title, said, bottom, content, role="group")
    return chart("scatter", drawn, legend(_keys(names, marks, prefix)))


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
    marks = [
        _Mark(
            id=id_,
            point=point,
            x=x,
            y=y,
            across=across.at(x.value) if x else (across.at(limit) + 1) / 2,
            down=plot.down(y.value) if y else _ON_RAIL_PX,
            is_beyond=x is not None and x.value > across.high,
        )
        for id_, point, x, y in found
    ]
    return plot, sorted(marks, key=lambda mark: (mark.point.is_best, mark.point.on_front))


def _names(marks: Sequence[_Mark]) -> tuple[str, ...]:
    """Symbols that occur, in the order of the legend."""
    found = {mark.shape for mark in marks}
    if any(mark.is_beyond for mark in marks):
        found.add(BEYOND)
    best = (BEST,) if any(mark.point.is_best for mark in marks) else ()
    return (*best, *(name for name in (*Provenance, OOM, FAILED, BEYOND) if name in found))


def _front(marks: Sequence[_Mark], limit_at: float, height: float) -> Markup:
    """The most speed that is known within each memory, up to the limit."""
    front = [(m.across, m.down) for m in marks if m.point.on_front and m.x and m.y]
    if not front:
        return Markup()
    return layer(height, staircase(sorted(front), limit_at, "chart-front-line"))


def _cross(plot: Plot, mark: _Mark, is_dense: bool) -> Iterator[tuple[float, float, float, float]]:
    """The whiskers of a mark."""
    x, y = mark.x, mark.y
    if y is None or (is_dense and not mark.point.on_front and not mark.point.is_best):
        return
    if x and x.low < x.high:
        yield plot.x.at(x.low), mark.down, plot.x.at(x.high), mark.down
    if y.low < y.high:
        yield mark.across, plot.down(y.low), mark.across, plot.down(y.high)


def _group(point: Point) -> str:
    if point.is_best:
        return "chart-is-best"
    if point.on_front:
        return "chart-is-front"
    return "chart-is-other" if point.kind is PointKind.FITS else "chart-is-out"


def _link(mark: _Mark, href: str, title: str, prefix: str) -> Markup:
    assert href.startswith(("/", "#", "?")), href
    assert not href.startswith(("//", "/\\")), href
    names = [BEST] if mark.point.is_best else []
    names += [mark.shape, *([BEYOND] if mark.is_beyond else [])]
    x, y = percent(mark.across), number(round(mark.down, 1))
    shapes = (use(f"{prefix}-{name}", x, y) for name in names)
    return element("a", element("title", title), *shapes, id=f"{prefix}-{mark.id}", href=href)


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


def short_words(words: str) -> str:
    """A configuration without what follows from the rest: ``full_shard, micro_batch_size=4``."""
    sharding, *others = words.split(",")
    shown = [part for part in others if not part.startswith("gradient_accumulation_steps=")]
    return ", ".join((sharding.removeprefix("sharding="), *shown))


def _best_speed(marks: Sequence[_Mark]) -> Markup:
    """The answer's speed, up and left of its mark: nothing known is faster and smaller."""
    best = next((mark for mark in marks if mark.point.is_best and mark.y), None)
    if best is None or best.y is None:
        return Markup()
    side, anchor = (-8, "end") if best.across > 0.2 else (8, "start")
    place = {"dx": side, "text_anchor": anchor, "class_": "chart-end"}
    return text(figure(best.y.value), percent(best.across), best.down - 11, **place)


def _keys(names: Sequence[str], marks: Sequence[_Mark], prefix: str) -> list[tuple[Markup, str]]:
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
    if any(mark.point.on_front for mark in marks):
        keys.append((line_key("chart-front-line"), "Pareto front"))
    keys.append((area_key("chart-beyond"), "over the limit"))
    return keys


def _description(marks: Sequence[_Mark], left_out: int, y_label: str) -> str:
    failed = sum(mark.y is None for mark in marks)
    said = [f"{len(marks)} settings by memory and speed" if marks else "No settings yet"]
    said += [f"{failed} of them without a speed"] if failed else []
    best = next((mark.y for mark in marks if mark.point.is_best and mark.y), None)
    said += [f"the answer makes {range_words(best)} {y_label}"] if best else []
    said += [f"{left_out} more of unknown memory not shown"] if left_out else []
    return "; ".join(said) + "."
