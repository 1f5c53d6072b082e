"""What charts have in common: the frame around a plot, its axes and its legend."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from api.pages.charts.scales import Scale
from api.pages.charts.svg import element, joined, layer, percent, text, use
from api.pages.charts.words import short_tick_words, shortened, tick_words, width_px

NARROW_PX = 250.0
"""Width of a plot in a window of 360 px: labels that keep apart there do so everywhere."""
_GAP_PX = 14.0
"""Room between the labels of an axis, at least."""
_OVERHANG_PX = 14.0
"""How far a label may reach beyond the right end of its axis: ``charts.css`` leaves more."""
_TICK_PX = 5.0
"""Length of a tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Two scales and the height that they are drawn at."""

    x: Scale
    """The scale across."""
    y: Scale
    """The scale upwards."""
    height: float
    """The plot's height, in pixels."""

    def down(self, value: float) -> float:
        """Pixels from the top at which a number of the upward scale lies."""
        return self.height * (1 - self.y.at(value))


def chart(
    name: str,
    prefix: str,
    words: tuple[str, str],
    height: float,
    content: Sequence[Markup],
    *,
    role: str = "img",
    below: Markup | None = None,
) -> Markup:
    """The whole chart: ``words`` are its title and description, ``below`` its legend.

    ``height`` is that of the plot in pixels; the style sheet adds the margins that hold labels.
    """
    title, description = words
    plot = element(
        "svg",
        element("title", title, id=f"{prefix}-title"),
        element("desc", description, id=f"{prefix}-desc"),
        *content,
        class_="chart-plot",
        role=role,
        aria_labelledby=f"{prefix}-title",
        aria_describedby=f"{prefix}-desc",
        width="100%",
        height=height,
        overflow="visible",
    )
    return element("div", plot, below or "", class_=f"chart chart-{name}")


def x_axis(
    scale: Scale, y: float, *, ticks: Sequence[float] = (), is_flush: bool = False
) -> Markup:
    """A line with ticks below a plot, at ``y`` pixels; as many labels as a narrow window holds.

    ``is_flush`` keeps labels within the plot where nothing is left and right of it.
    """
    chosen = tuple(ticks) or scale.fitting(6, lambda some: _fit(scale, some, is_flush=is_flush))
    labels = zip(chosen, tick_words(chosen), strict=True)
    return element(
        "g",
        element("line", x1=0, x2="100%", y1=y, y2=y, class_="chart-axis"),
        *(_x_tick(scale.at(tick), y, words, is_flush=is_flush) for tick, words in labels),
        class_="chart-x",
    )


def tick_texts(scale: Scale, ticks: Sequence[float], height: float) -> Markup:
    """Faint lines up a plot with their numbers, written short, below it: for small charts."""
    return joined(
        _grid_tick(percent(scale.at(tick)), height, words)
        for tick, words in zip(ticks, short_tick_words(ticks), strict=True)
    )


def y_axis(plot: Plot, *, count: int = 7) -> Markup:
    """Faint lines across the plot with their numbers at the left."""
    ticks = plot.y.ticks(count)
    return element(
        "g",
        *(
            _y_tick(plot.down(tick), words)
            for tick, words in zip(ticks, tick_words(ticks), strict=True)
        ),
        class_="chart-y",
    )


def label(words: str, x: object, y: object, **attributes: object) -> Markup:
    """The name of an axis or a line, cut to what a narrow window holds."""
    short = shortened(words, NARROW_PX)
    return text(short, x, y, **{"class_": "chart-words", **attributes})


def legend(items: Sequence[tuple[Markup, str]]) -> Markup:
    """Keys and their words, as an HTML list that wraps; nothing where there are no items."""
    if not items:
        return Markup()
    entries = (element("li", key, element("span", words)) for key, words in items)
    return element("ul", *entries, class_="chart-legend")


def symbol_key(symbol: str, class_: str | None = None, *, x: float = 9) -> Markup:
    """A legend's key: a symbol of the chart, with the class of its marks' group."""
    return element("span", _key(use(symbol, x, 8), 18), class_=class_)


def line_key(class_: str) -> Markup:
    """A legend's key: a line of the chart."""
    return _key(element("line", x1=1, x2=23, y1=8.5, y2=8.5, class_=class_), 24)


def area_key(class_: str, fill: str | None = None) -> Markup:
    """A legend's key: an area of the chart."""
    return _key(element("rect", x=1, y=1, width=22, height=14, class_=class_, fill=fill), 24)


def no_key() -> Markup:
    """The room of a key."""
    return element("span", "", class_="chart-key")


def whiskers(segments: Sequence[tuple[float, float, float, float]], height: float) -> Markup:
    """Thin lines as one path: each from x, y to x, y, in fractions across and pixels down."""
    d = "".join(
        f"M{1000 * x1:.0f} {y1:.1f}L{1000 * x2:.0f} {y2:.1f}" for x1, y1, x2, y2 in segments
    )
    return layer(height, element("path", d=d, class_="chart-whisker")) if d else Markup()


def nothing(words: str, height: float) -> Markup:
    """What a plot says when it has nothing to show."""
    place = {"dy": ".35em", "text_anchor": "middle", "class_": "chart-nothing"}
    return text(words, "50%", height / 2, **place)


def definitions(symbols: Sequence[Markup]) -> Markup:
    """Symbols that :func:`~api.pages.charts.svg.use` draws."""
    return element("defs", joined(symbols)) if symbols else Markup()


def _key(drawing: Markup, width: int) -> Markup:
    return element("svg", drawing, class_="chart-key", width=width, height=16, aria_hidden="true")


def _fit(scale: Scale, ticks: Sequence[float], *, is_flush: bool) -> bool:
    """Whether the labels of ticks keep apart in a narrow window, and within the chart."""
    labels = zip(ticks, tick_words(ticks), strict=True)
    ends = [_ends_px(scale.at(tick), words, is_flush=is_flush) for tick, words in labels]
    keep_apart = all(right[0] - left[1] >= _GAP_PX for left, right in pairwise(ends))
    return keep_apart and (not ends or ends[-1][1] <= NARROW_PX + _OVERHANG_PX)


def _ends_px(at: float, words: str, *, is_flush: bool) -> tuple[float, float]:
    """Where a label begins and ends in a narrow window."""
    width = width_px(words)
    before = {"start": 0.0, "middle": width / 2, "end": width}[_anchor(at, words, is_flush)]
    return NARROW_PX * at - before, NARROW_PX * at - before + width


def _anchor(at: float, words: str, is_flush: bool) -> str:
    """Which part of a label stands at its tick: the middle where it stays within the plot."""
    half = width_px(words) / 2 / NARROW_PX
    if is_flush and at < half:
        return "start"
    return "end" if is_flush and at > 1 - half else "middle"


def _x_tick(at: float, y: float, words: str, *, is_flush: bool) -> Markup:
    x = percent(at)
    anchor = _anchor(at, words, is_flush)
    mark = element("line", x1=x, x2=x, y1=y, y2=y + _TICK_PX, class_="chart-axis")
    return mark + text(words, x, y, dy="1.5em", text_anchor=anchor, class_="chart-tick")


def _grid_tick(x: str, height: float, words: str) -> Markup:
    line = element("line", x1=x, x2=x, y1=0, y2=height, class_="chart-grid")
    return line + text(words, x, height, dy="1.2em", text_anchor="middle", class_="chart-tick")


def _y_tick(y: float, words: str) -> Markup:
    line = element("line", x1=0, x2="100%", y1=y, y2=y, class_="chart-grid")
    return line + text(words, -8, y, dy=".35em", text_anchor="end", class_="chart-tick")
