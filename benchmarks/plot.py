"""Predicted against measured, as an SVG: square panels with logarithmic axes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

SIDE, LEFT, TOP, BOTTOM, GAP = 400, 74, 44, 62, 92
"""Pixels: a panel's side, and the room around and between panels."""
ENTRY = 18
"""Pixels of a line of the legend, which is below the panel."""
BLUE, ORANGE, GREEN, PURPLE, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
"""Of Okabe and Ito's palette, which color-blind readers tell apart."""
OFF = 1.1
"""The dashed lines: this factor above and below."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one source."""

    name: str  # for the legend; the number of points is added
    color: str  # such as `#0072B2`
    points: Sequence[tuple[float, float]] = ()  # measured and predicted
    radius: float = 3.0  # pixels of a point

    @property
    def opacity(self) -> float:
        """Many points show how dense they are; few are drawn to be seen."""
        return 0.55 if len(self.points) > 100 else 0.9


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One square: measured to the right, predicted upwards, on the same scale."""

    title: str
    unit: str
    series: Sequence[Series]

    @property
    def limits(self) -> tuple[float, float]:
        """Ends of both axes: all values, and a little room."""
        values = [v for one in self.series for p in one.points for v in p]
        return min(values) / 1.25, max(values) * 1.25


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to pixels of one panel."""

    low: float
    high: float
    left: float

    def x(self, value: float) -> float:
        return self.left + SIDE * self._share(value)

    def y(self, value: float) -> float:
        return TOP + SIDE * (1 - self._share(value))

    def _share(self, value: float) -> float:
        return log10(value / self.low) / log10(self.high / self.low)


def svg(panels: Sequence[Panel]) -> str:
    width = LEFT + len(panels) * (SIDE + GAP) - GAP + 24
    height = TOP + SIDE + BOTTOM + ENTRY * max(len(panel.series) for panel in panels)
    body = [line for i, one in enumerate(panels) for line in _panel(one, LEFT + i * (SIDE + GAP))]
    return document(width, height, body)


def _panel(panel: Panel, left: int) -> Iterable[str]:
    low, high = panel.limits
    scale = Scale(low=low, high=high, left=left)
    yield text(left + SIDE / 2, TOP - 16, panel.title, 'font-size="15" font-weight="bold"')
    yield from _grid(scale)
    yield from _diagonals(scale)
    yield (
        f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#444444"/>'
    )
    for one in panel.series:
        yield from _marks(scale, one)
    yield from _legend(scale, panel.series)
    yield text(left + SIDE / 2, TOP + SIDE + 42, f"measured, {panel.unit}")
    yield text(left + SIDE - 10, TOP + SIDE - 10, "dashed: 10% off", 'text-anchor="end"')
    middle = TOP + SIDE / 2
    turned = f'transform="rotate(-90 {left - 52} {middle})"'
    yield text(left - 52, middle, f"predicted, {panel.unit}", turned)


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade between two values."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    values = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def _grid(scale: Scale) -> Iterable[str]:
    bottom = TOP + SIDE
    for value in ticks(scale.low, scale.high):
        x, y = scale.x(value), scale.y(value)
        yield line(x, TOP, x, bottom, 'stroke="#e6e6e6"')
        yield line(scale.left, y, scale.left + SIDE, y, 'stroke="#e6e6e6"')
        yield text(x, bottom + 18, _short(value))
        yield text(scale.left - 8, y + 4, _short(value), 'text-anchor="end"')


def _diagonals(scale: Scale) -> Iterable[str]:
    low, high = scale.low, scale.high
    ends = ((low, low, high, high), (low, low * OFF, high / OFF, high),
            (low * OFF, low, high, high / OFF))  # fmt: skip
    for (x1, y1, x2, y2), dash in zip(ends, ("", "4 4", "4 4"), strict=True):
        style = f'stroke="#888888" stroke-dasharray="{dash}"' if dash else 'stroke="#888888"'
        yield line(scale.x(x1), scale.y(y1), scale.x(x2), scale.y(y2), style)


def _marks(scale: Scale, series: Series) -> Iterable[str]:
    for measured, predicted in series.points:
        x, y = scale.x(measured), scale.y(predicted)
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{series.radius}" fill="{series.color}"'
            f' fill-opacity="{series.opacity}" stroke="white" stroke-width="0.5"/>'
        )


def _legend(scale: Scale, series: Sequence[Series]) -> Iterable[str]:
    for i, one in enumerate(series):
        y = TOP + SIDE + BOTTOM + i * ENTRY
        yield f'<circle cx="{scale.left + 6}" cy="{y - 4}" r="4.5" fill="{one.color}"/>'
        yield text(scale.left + 18, y, f"{one.name} ({len(one.points)})", 'text-anchor="start"')


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def document(width: int, height: int, body: Iterable[str]) -> str:
    """A whole picture, on white."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *body,
            "</svg>\n",
        )
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def text(x: float, y: float, words: str, style: str = "") -> str:
    """A line of text, in the middle if its style does not say otherwise."""
    anchor = "" if "text-anchor" in style else ' text-anchor="middle"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor} {style}>{escape(words)}</text>'
