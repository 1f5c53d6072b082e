"""Charts' elements as text: shapes, axes, legends. The one place where markup is made, and escaped.

Positions across are percentages of the plot and sizes are pixels, so that one SVG reads well at
360 px and at 2560 px; ``static/charts.css`` has the margins and the colours.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from api.pages.charts.scales import Scale, shortened, tick_words, width_px
from tuner.core.quantity import Provenance

# What no XML document may hold, lone surrogates among it.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
OOM = "oom"
FAILED = "failed"
BEST = "best"
BEYOND = "beyond"
# Paths around the origin, about 9 pixels wide, filled where something ran and hollow where it did
# not, and the class that paints them.
_SHAPES: Mapping[str, tuple[str, str]] = {
    Provenance.MEASURED: ("M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z", "chart-solid"),
    Provenance.EMULATED: ("M-4-4H4V4H-4Z", "chart-solid"),
    Provenance.TRANSFERRED: ("M0-5L5 4H-5Z", "chart-hollow"),
    Provenance.PREDICTED: ("M0-5.2L5.2 0L0 5.2L-5.2 0Z", "chart-hollow"),
    Provenance.UNKNOWN: ("M-4-4H4V4H-4Z", "chart-hollow"),
    OOM: ("M-4-4L4 4M4-4L-4 4", "chart-cross"),
    FAILED: ("M-5 0H5M0-5V5", "chart-plus"),
    BEYOND: ("M8-3.5L11.5 0L8 3.5", "chart-cross"),
    BEST: ("M-9 0a9 9 0 1 0 18 0a9 9 0 1 0-18 0Z", "chart-ring"),
}
# Width of a plot in a window of 360 px: labels that keep apart there do so everywhere.
NARROW_PX = 250.0
_GAP_PX = 14.0
# How far a label may reach beyond the right end of its axis; ``charts.css`` leaves more.
_OVERHANG_PX = 14.0
_TICK_PX = 5.0


# -- elements ---------------------------------------------------------------------------------


def element(name: str, *children: object, **attributes: object) -> Markup:
    """``<name attribute="value">children</name>``, or ``<name/>`` where no children are given.

    Children and values are escaped unless they are markup already. ``class_`` stands for
    ``class``, other underscores for hyphens; attributes of ``None`` are left out, floats are
    rounded to hundredths. HTML elements need a child, if only an empty one.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_shown(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{written}/>")  # noqa: S704 - escaped above
    content = "".join(map(_shown, children))
    return Markup(f"<{name}{written}>{content}</{name}>")  # noqa: S704 - escaped above


def _shown(value: object) -> str:
    """A value as it stands in markup, with what XML forbids replaced by U+FFFD."""
    if isinstance(value, float):
        return number(value)
    words = str(value)
    return words if isinstance(value, Markup) else str(escape(_NOT_XML.sub("\ufffd", words)))


def number(value: float) -> str:
    """A coordinate, rounded to hundredths: ``12.5``."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def percent(fraction: float) -> str:
    """A position across a plot: ``34.25%``."""
    return f"{number(100 * fraction)}%"


def text(words: str, x: object, y: object, **attributes: object) -> Markup:
    return element("text", words, x=x, y=y, **attributes)


def label(words: str, x: object, y: object, **attributes: object) -> Markup:
    """The name of an axis or a line, cut to what a narrow window holds."""
    return text(shortened(words, NARROW_PX), x, y, **{"class_": "chart-words", **attributes})


def nothing(words: str, height: float) -> Markup:
    """The words of a plot that has nothing to show."""
    place = {"dy": ".35em", "text_anchor": "middle", "class_": "chart-nothing"}
    return text(words, "50%", height / 2, **place)


def line(x1: object, y1: float, x2: object, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=class_)


def symbols(
    prefix: str, names: Iterable[str], *, size: float = 1.0, target_px: float = 0.0
) -> Markup:
    """Definitions of the shapes that :func:`use` draws as ``{prefix}-{name}``.

    A name is a provenance, or one above; ``size`` is relative to 9 pixels, ``target_px`` the
    radius of an invisible disc around it that can be pointed at.
    """
    drawn = []
    for name in names:
        d, class_ = _SHAPES[name]
        scaled = None if size == 1 else f"scale({size:g})"
        shape = element("path", d=d, class_=class_, transform=scaled)
        target = element("circle", r=target_px, class_="chart-target") if target_px else Markup()
        drawn.append(element("g", target, shape, id=f"{prefix}-{name}"))
    return element("defs", *drawn) if drawn else Markup()


def use(shape: str, x: object, y: object, *children: Markup) -> Markup:
    return element("use", *children, href=f"#{shape}", x=x, y=y)


# -- plots ------------------------------------------------------------------------------------


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


def chart(name: str, *drawn: Markup) -> Markup:
    return element("div", *drawn, class_=f"chart chart-{name}")


def layer(height: float, *children: Markup) -> Markup:
    """Paths whose x runs from 0 to 1000 over the plot's width, and whose y is in pixels."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 1000 {number(height)}",
        preserveAspectRatio="none",
        width="100%",
        height=height,
        class_="chart-layer",
    )


def staircase(points: Iterable[tuple[float, float]], end: float, class_: str) -> Markup:
    """A line of a :func:`layer` that is level from point to point, and then to ``end``: fractions
    across, pixels down.
    """
    corners: list[tuple[float, float]] = []
    for across, down in points:
        if corners:
            corners.append((across, corners[-1][1]))
        corners.append((across, down))
    corners.append((max(end, corners[-1][0]), corners[-1][1]))
    d = "L".join(f"{number(1000 * x)} {number(y)}" for x, y in corners)
    return element("path", d=f"M{d}", class_=class_)


def whiskers(segments: Iterable[tuple[float, float, float, float]], height: float) -> Markup:
    """Thin lines as one path: each from x, y to x, y, in fractions across and pixels down."""
    d = "".join(
        f"M{1000 * x1:.0f} {y1:.1f}L{1000 * x2:.0f} {y2:.1f}" for x1, y1, x2, y2 in segments
    )
    return layer(height, element("path", d=d, class_="chart-whisker")) if d else Markup()


# -- axes -------------------------------------------------------------------------------------


def x_axis(
    scale: Scale, y: float, *, ticks: Sequence[float] = (), is_flush: bool = False
) -> Markup:
    """A line with ticks below a plot, at ``y`` pixels; as many labels as a narrow window holds.

    ``is_flush`` keeps labels within the plot where nothing is left and right of it.
    """

    def anchor(tick: float) -> str:
        half, at = width_px(tick_words(tick)) / 2 / NARROW_PX, scale.at(tick)
        if is_flush and at < half:
            return "start"
        return "end" if is_flush and at > 1 - half else "middle"

    def ends_px(tick: float) -> tuple[float, float]:
        width = width_px(tick_words(tick))
        before = {"start": 0.0, "middle": width / 2, "end": width}[anchor(tick)]
        return NARROW_PX * scale.at(tick) - before, NARROW_PX * scale.at(tick) - before + width

    def fit(some: Sequence[float]) -> bool:
        ends = [ends_px(tick) for tick in some]
        keep_apart = all(right[0] - left[1] >= _GAP_PX for left, right in pairwise(ends))
        return keep_apart and (not ends or ends[-1][1] <= NARROW_PX + _OVERHANG_PX)

    drawn = [line(0, y, "100%", y, "chart-axis")]
    for tick in tuple(ticks) or scale.fitting(6, fit):
        x = percent(scale.at(tick))
        place = {"dy": "1.5em", "text_anchor": anchor(tick), "class_": "chart-tick"}
        drawn += [line(x, y, x, y + _TICK_PX, "chart-axis"), text(tick_words(tick), x, y, **place)]
    return element("g", *drawn, class_="chart-x")


def y_axis(plot: Plot, *, count: int = 7) -> Markup:
    """Faint lines across the plot with their numbers at the left."""
    drawn = []
    place = {"dy": ".35em", "text_anchor": "end", "class_": "chart-tick"}
    for tick in plot.y.ticks(count):
        y = plot.down(tick)
        drawn += [line(0, y, "100%", y, "chart-grid"), text(tick_words(tick), -8, y, **place)]
    return element("g", *drawn, class_="chart-y")


# -- legends ----------------------------------------------------------------------------------


def legend(items: Sequence[tuple[Markup, str]]) -> Markup:
    """Keys and their words, as an HTML list that wraps; nothing where there are no items."""
    entries = (element("li", key, element("span", words)) for key, words in items)
    return element("ul", *entries, class_="chart-legend") if items else Markup()


def key(width: int, *drawing: Markup) -> Markup:
    return element("svg", *drawing, class_="chart-key", width=width, height=16, aria_hidden="true")


def symbol_key(symbol: str, class_: str | None = None, *, x: float = 9) -> Markup:
    return element("span", key(18, use(symbol, x, 8)), class_=class_)


def line_key(class_: str) -> Markup:
    return key(24, line(1, 8.5, 23, 8.5, class_))


def area_key(class_: str, fill: str | None = None) -> Markup:
    return key(24, element("rect", x=1, y=1, width=22, height=14, class_=class_, fill=fill))
