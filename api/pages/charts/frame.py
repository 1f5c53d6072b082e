"""The parts that charts share: the frame around a plot, its axes and its legend."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from api.pages.charts.scales import Scale, shortened, tick_words, width_px
from api.pages.charts.svg import element, layer, line, percent, text, use

# Width of a plot in a window of 360 px: labels that keep apart there do so everywhere.
NARROW_PX = 250.0
_GAP_PX = 14.0
# How far a label may reach beyond the right end of its axis; ``charts.css`` leaves more.
_OVERHANG_PX = 14.0
_TICK_PX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Two scales and the height in pixels that they are drawn at."""

    x: Scale
    y: Scale
    height: float

    def down(self, value: float) -> float:
        """Pixels from the top at which a number of the upward scale lies."""
        return self.height * (1 - self.y.at(value))


def plot_svg(
    prefix: str,
    title: str,
    description: str,
    height: float,
    content: Sequence[Markup],
    *,
    role: str = "img",
    class_: str = "chart-plot",
) -> Markup:
    """A picture with its name; ``height`` in pixels, to which the style sheet adds the margins."""
    return element(
        "svg",
        element("title", title, id=f"{prefix}-title"),
        element("desc", description, id=f"{prefix}-desc"),
        *content,
        class_=class_,
        role=role,
        aria_labelledby=f"{prefix}-title",
        aria_describedby=f"{prefix}-desc",
        width="100%",
        height=height,
        overflow="visible",
    )


def chart(name: str, plot: Markup, below: Markup) -> Markup:
    """The whole chart with its legend."""
    return element("div", plot, below, class_=f"chart chart-{name}")


# -- axes -------------------------------------------------------------------------------------


def x_axis(
    scale: Scale, y: float, *, ticks: Sequence[float] = (), is_flush: bool = False
) -> Markup:
    """A line with ticks below a plot, at ``y`` pixels; as many labels as a narrow window holds.

    ``is_flush`` keeps labels within the plot where nothing is left and right of it.
    """

    def fit(some: Sequence[float]) -> bool:
        ends = [_ends_px(scale.at(tick), tick_words(tick), is_flush) for tick in some]
        keep_apart = all(right[0] - left[1] >= _GAP_PX for left, right in pairwise(ends))
        return keep_apart and (not ends or ends[-1][1] <= NARROW_PX + _OVERHANG_PX)

    drawn = [line(0, y, "100%", y, "chart-axis")]
    for tick in tuple(ticks) or scale.fitting(6, fit):
        words, x = tick_words(tick), percent(scale.at(tick))
        anchor = _anchor(scale.at(tick), words, is_flush)
        drawn.append(line(x, y, x, y + _TICK_PX, "chart-axis"))
        drawn.append(text(words, x, y, dy="1.5em", text_anchor=anchor, class_="chart-tick"))
    return element("g", *drawn, class_="chart-x")


def y_axis(plot: Plot, *, count: int = 7) -> Markup:
    """Faint lines across the plot with their numbers at the left."""
    drawn = []
    for tick in plot.y.ticks(count):
        y = plot.down(tick)
        drawn.append(line(0, y, "100%", y, "chart-grid"))
        place = {"dy": ".35em", "text_anchor": "end", "class_": "chart-tick"}
        drawn.append(text(tick_words(tick), -8, y, **place))
    return element("g", *drawn, class_="chart-y")


def _ends_px(at: float, words: str, is_flush: bool) -> tuple[float, float]:
    """The ends of a label in a narrow window."""
    width = width_px(words)
    before = {"start": 0.0, "middle": width / 2, "end": width}[_anchor(at, words, is_flush)]
    return NARROW_PX * at - before, NARROW_PX * at - before + width


def _anchor(at: float, words: str, is_flush: bool) -> str:
    """The part of a label that stands at its tick: the middle where it stays within the plot."""
    half = width_px(words) / 2 / NARROW_PX
    if is_flush and at < half:
        return "start"
    return "end" if is_flush and at > 1 - half else "middle"


def label(words: str, x: object, y: object, **attributes: object) -> Markup:
    """The name of an axis or a line, cut to what a narrow window holds."""
    short = shortened(words, NARROW_PX)
    return text(short, x, y, **{"class_": "chart-words", **attributes})


def whiskers(segments: Sequence[tuple[float, float, float, float]], height: float) -> Markup:
    """Thin lines as one path: each from x, y to x, y, in fractions across and pixels down."""
    d = "".join(
        f"M{1000 * x1:.0f} {y1:.1f}L{1000 * x2:.0f} {y2:.1f}" for x1, y1, x2, y2 in segments
    )
    return layer(height, element("path", d=d, class_="chart-whisker")) if d else Markup()


def nothing(words: str, height: float) -> Markup:
    """The words of a plot that has nothing to show."""
    place = {"dy": ".35em", "text_anchor": "middle", "class_": "chart-nothing"}
    return text(words, "50%", height / 2, **place)


# -- legends ----------------------------------------------------------------------------------


def legend(items: Sequence[tuple[Markup, str]]) -> Markup:
    """Keys and their words, as an HTML list that wraps; nothing where there are no items."""
    entries = (element("li", key, element("span", words)) for key, words in items)
    return element("ul", *entries, class_="chart-legend") if items else Markup()


def symbol_key(symbol: str, class_: str | None = None, *, x: float = 9) -> Markup:
    """A legend's key: a symbol of the chart, with the class of its marks' group."""
    return element("span", key(18, use(symbol, x, 8)), class_=class_)


def line_key(class_: str) -> Markup:
    """A legend's key: a line of the chart."""
    return key(24, line(1, 8.5, 23, 8.5, class_))


def area_key(class_: str, fill: str | None = None) -> Markup:
    """A legend's key: an area of the chart."""
    return key(24, element("rect", x=1, y=1, width=22, height=14, class_=class_, fill=fill))


def key(width: int, *drawing: Markup) -> Markup:
    """A small drawing in a legend."""
    return element("svg", *drawing, class_="chart-key", width=width, height=16, aria_hidden="true")
