"""Memory against speed: one mark for each settings, the Pareto front, the limit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

from api.pages.charts import symbols
from api.pages.charts.data import Mark, MarkKind
from api.pages.charts.frame import (
    Plot,
    area_key,
    chart,
    definitions,
    label,
    legend,
    line_key,
    nothing,
    symbol_key,
    whiskers,
    x_axis,
    y_axis,
)
from api.pages.charts.scales import reach, scale_for
from api.pages.charts.svg import element, joined, layer, number, path, percent, text, use
from api.pages.charts.words import cut, figure, range_words
from tuner.quantity import Provenance

_HEIGHT_PX = 300.0
_RAIL_PX = 34.0
"""Height of the rail below the plot that holds what has no speed."""
_BEYOND = 1.3
"""The axis ends at this share of the limit at most; marks beyond it are put at the edge."""
_DENSE = 120
"""From this many marks on they are smaller, and only front and answer have whiskers."""
_LABEL_CHARACTERS = 90
_ENDED: Mapping[MarkKind, str] = {
    MarkKind.OOM: "out of memory",
    MarkKind.OVER_LIMIT: "over the limit",
    MarkKind.OTHER: "ended otherwise",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    """What is drawn, and where."""

    prefix: str
    """What element ids start with."""
    marks: tuple[Mark, ...]
    """Those that can be placed, in the order of drawing: what matters most lies on top."""
    left_out: int
    """How many cannot be."""
    plot: Plot
    """The scales, without the rail."""
    limit: float
    """The memory that settings may use, in the unit of x."""
    labels: tuple[str, str]
    """Of the axes: x, y."""

    @property
    def is_dense(self) -> bool:
        """Whether there are so many marks that each must be small."""
        return len(self.marks) >= _DENSE

    @property
    def has_speeds(self) -> bool:
        """Whether there is anything above the rail."""
        return any(mark.y for mark in self.marks)

    @property
    def has_rail(self) -> bool:
        """Whether something has no speed."""
        return any(mark.y is None for mark in self.marks)

    @property
    def bottom(self) -> float:
        """Where the axis of memory lies, in pixels from the top."""
        return self.plot.height + (_RAIL_PX if self.has_rail else 0.0)

    def is_beyond(self, mark: Mark) -> bool:
        """Whether its memory is beyond the right end of the axis."""
        return mark.x is not None and mark.x.value > self.plot.x.high

    def place(self, mark: Mark) -> tuple[float, float]:
        """Fraction across, pixels down."""
        limit = self.plot.x.at(self.limit)
        across = self.plot.x.at(mark.x.value) if mark.x else (limit + 1) / 2
        rail = self.plot.height + _RAIL_PX * 0.55
        return across, rail if mark.y is None else self.plot.down(mark.y.value)


def scatter(
    marks: Sequence[Mark],
    *,
    limit: float,
    x_label: str,
    y_label: str,
    title: str,
    prefix: str = "points",
) -> Markup:
    """Settings as marks that are links, by memory and speed.

    Args:
        marks: The settings; see :class:`Mark` for those with unknown memory or speed.
        limit: The memory that settings may use, in the unit of ``Mark.x``; above 0.
        x_label: What x is, with its unit.
        y_label: What y is, with its unit.
        title: The chart's name, for those who do not see it.
        prefix: What element ids start with; unique in a page.
    """
    drawn = _chart(marks, limit, (x_label, y_label), prefix)
    content = (
        definitions([_symbol(drawn, name) for name in _names(drawn)]),
        _region(drawn),
        y_axis(drawn.plot) if drawn.has_speeds else nothing(_nothing(drawn), _HEIGHT_PX),
        _rail(drawn),
        x_axis(drawn.plot.x, drawn.bottom),
        _axis_labels(drawn),
        _limit(drawn),
        _front(drawn),
        _whiskers(drawn),
        *_groups(drawn),
        _best(drawn),
    )
    words = (title, _description(drawn))
    below = legend(_keys(drawn))
    return chart("scatter", prefix, words, drawn.bottom, content, role="group", below=below)


def _chart(marks: Sequence[Mark], limit: float, labels: tuple[str, str], prefix: str) -> _Chart:
    placed = [m for m in marks if m.x or m.kind is MarkKind.OOM]
    memory = [m.x.value for m in placed if m.x and m.x.value <= limit * _BEYOND]
    speed = [end for m in placed if m.y for end in reach(m.y.value, m.y.low, m.y.high)]
    x = scale_for(memory, include=(limit, limit * 1.1, *(() if memory else (0.0,))))
    plot = Plot(x=x, y=scale_for(speed), height=_HEIGHT_PX)
    return _Chart(
        prefix=prefix,
        marks=tuple(sorted(placed, key=lambda m: (m.is_best, m.on_front))),
        left_out=len(marks) - len(placed),
        plot=plot,
        limit=limit,
        labels=labels,
    )


def _shape(mark: Mark) -> str:
    if mark.kind is MarkKind.OOM:
        return symbols.OOM
    return symbols.FAILED if mark.kind is MarkKind.OTHER else mark.provenance


def _names(drawn: _Chart) -> tuple[str, ...]:
    """Symbols that occur, in the order of the legend."""
    found = {_shape(mark) for mark in drawn.marks}
    best = (symbols.BEST,) if any(mark.is_best for mark in drawn.marks) else ()
    found |= {symbols.BEYOND} if any(map(drawn.is_beyond, drawn.marks)) else set()
    ends = (symbols.OOM, symbols.FAILED, symbols.BEYOND)
    return (*best, *(n for n in (*Provenance, *ends) if n in found))


def _symbol(drawn: _Chart, name: str) -> Markup:
    size, target = (0.7, 7.0) if drawn.is_dense else (1.0, 12.0)
    return symbols.symbol(drawn.prefix, name, size=size, target_px=target)


def _nothing(drawn: _Chart) -> str:
    return "nothing ran to its end yet" if drawn.marks else "nothing to show yet"


def _region(drawn: _Chart) -> Markup:
    """The area beyond the limit."""
    at = drawn.plot.x.at(drawn.limit)
    return element(
        "rect",
        x=percent(at),
        y=0,
        width=percent(1 - at),
        height=drawn.bottom,
        class_="chart-beyond",
    )


def _limit(drawn: _Chart) -> Markup:
    x = percent(drawn.plot.x.at(drawn.limit))
    words = f"limit {figure(drawn.limit)}"
    line = element("line", x1=x, x2=x, y1=-10, y2=drawn.bottom, class_="chart-limit")
    return line + label(words, x, -18, text_anchor="end")


def _rail(drawn: _Chart) -> Markup:
    if not drawn.has_rail:
        return Markup()
    y = drawn.plot.height
    line = element("line", x1=0, x2="100%", y1=y, y2=y, class_="chart-grid")
    place = y + _RAIL_PX * 0.55
    return line + text("no speed", -3, place, dy=".35em", text_anchor="end", class_="chart-tick")


def _axis_labels(drawn: _Chart) -> Markup:
    x, y = drawn.labels
    below = label(x, "100%", drawn.bottom, dy="3em", text_anchor="end")
    return below + label(y, 0, -38, class_="chart-words chart-from-edge")


def _front(drawn: _Chart) -> Markup:
    """The most speed that is known within each memory, up to the limit."""
    marks = sorted(
        (m for m in drawn.marks if m.on_front and m.x and m.y), key=lambda m: drawn.place(m)
    )
    if not marks:
        return Markup()
    corners = [drawn.place(marks[0])]
    for mark in marks[1:]:
        across, down = drawn.place(mark)
        corners += [(across, corners[-1][1]), (across, down)]
    end = max(drawn.plot.x.at(drawn.limit), corners[-1][0])
    return layer(drawn.bottom, path([*corners, (end, corners[-1][1])], "chart-front-line"))


def _whiskers(drawn: _Chart) -> Markup:
    shown = [m for m in drawn.marks if not drawn.is_dense or m.on_front or m.is_best]
    return whiskers([line for mark in shown for line in _cross(drawn, mark)], drawn.bottom)


def _cross(drawn: _Chart, mark: Mark) -> Iterable[tuple[float, float, float, float]]:
    across, down = drawn.place(mark)
    plot = drawn.plot
    if mark.x and mark.y and mark.x.low < mark.x.high:
        yield plot.x.at(mark.x.low), down, plot.x.at(mark.x.high), down
    if mark.y and mark.y.low < mark.y.high:
        yield across, plot.down(mark.y.low), across, plot.down(mark.y.high)


def _groups(drawn: _Chart) -> Iterable[Markup]:
    """Marks by what they mean: the others, those that failed, the front, the answer."""
    groups: dict[str, list[Markup]] = {}
    for mark in drawn.marks:
        groups.setdefault(_group(mark), []).append(_link(drawn, mark))
    return (element("g", joined(links), class_=class_) for class_, links in groups.items())


def _group(mark: Mark) -> str:
    if mark.is_best:
        return "chart-is-best"
    if mark.on_front:
        return "chart-is-front"
    return "chart-is-other" if mark.kind is MarkKind.FITS else "chart-is-out"


def _best(drawn: _Chart) -> Markup:
    """The answer's speed, up and left of its mark: nothing known is faster and smaller."""
    best = next((mark for mark in drawn.marks if mark.is_best and mark.y), None)
    if best is None or best.y is None:
        return Markup()
    across, down = drawn.place(best)
    side, anchor = (-8, "end") if across > 0.2 else (8, "start")
    place = {"dx": side, "text_anchor": anchor, "class_": "chart-end"}
    return text(figure(best.y.value), percent(across), down - 11, **place)


def _link(drawn: _Chart, mark: Mark) -> Markup:
    assert mark.href.startswith(("/", "#", "?")), mark.href
    assert not mark.href.startswith(("//", "/\\")), mark.href
    across, down = drawn.place(mark)
    names = [symbols.BEST] if mark.is_best else []
    names += [_shape(mark), *([symbols.BEYOND] if drawn.is_beyond(mark) else [])]
    shapes = tuple(f"{drawn.prefix}-{name}" for name in names)
    place = percent(across), number(round(down, 1))
    return _anchor(f"{drawn.prefix}-{mark.id}", mark.href, _title(drawn, mark), shapes, *place)


# A chart is drawn again after every probe, and most of its marks stay where they are.
@lru_cache(maxsize=4096)
def _anchor(id_: str, href: str, title: str, shapes: tuple[str, ...], x: str, y: str) -> Markup:
    content = (element("title", title), *(use(shape, x, y) for shape in shapes))
    return element("a", *content, id=id_, href=href)


def _title(drawn: _Chart, mark: Mark) -> str:
    """``ddp, micro batch 4: 9,412 (9,370 to 9,455); 43.1; measured``, with units."""
    known = [(i, unit) for i, unit in zip((mark.x, mark.y), drawn.labels, strict=True) if i]
    if drawn.is_dense:
        figures = [figure(interval.value) for interval, _ in reversed(known)]
    else:
        figures = [f"{range_words(interval)} {unit}" for interval, unit in reversed(known)]
    ended = _ENDED.get(mark.kind)
    words = [*figures, *([ended] if ended else []), mark.provenance]
    named = cut(mark.label, 60 if drawn.is_dense else _LABEL_CHARACTERS)
    return f"{named}: {'; '.join(words)}"


def _keys(drawn: _Chart) -> list[tuple[Markup, str]]:
    words = {
        symbols.BEST: "the answer",
        symbols.OOM: _ENDED[MarkKind.OOM],
        symbols.FAILED: _ENDED[MarkKind.OTHER],
        symbols.BEYOND: "beyond this axis",
    }
    keys = [
        (_symbol_key(f"{drawn.prefix}-{name}", name), words.get(name, str(name)))
        for name in _names(drawn)
    ]
    if any(mark.on_front for mark in drawn.marks):
        keys.append((line_key("chart-front-line"), "Pareto front"))
    keys.append((area_key("chart-beyond"), "over the limit"))
    return keys


def _symbol_key(symbol: str, name: str) -> Markup:
    if name == symbols.BEYOND:
        return symbol_key(symbol, "chart-is-out", x=0)
    if name in (symbols.OOM, symbols.FAILED):
        return symbol_key(symbol, "chart-is-out")
    return symbol_key(symbol, "chart-is-best" if name == symbols.BEST else "chart-is-other")


def _description(drawn: _Chart) -> str:
    placed = len(drawn.marks)
    failed = sum(mark.y is None for mark in drawn.marks)
    count = f"{placed} settings by memory and speed" if placed else "No settings yet"
    said = [count] + ([f"{failed} of them without a speed"] if failed else [])
    best = next((mark for mark in drawn.marks if mark.is_best and mark.y), None)
    if best and best.y:
        said.append(f"the answer makes {range_words(best.y)} {drawn.labels[1]}")
    if drawn.left_out:
        said.append(f"{drawn.left_out} more of unknown memory not shown")
    return "; ".join(said) + "."
