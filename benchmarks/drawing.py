"""Pictures for pages that may be light or dark: SVG that says in words what it shows."""

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil

STYLE = """\
.card { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
.grid { stroke: #d1d9e0 } .edge { stroke: #59636e } .limit { stroke: #cf222e }
.alarm { fill: #cf222e }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
.grid { stroke: #3d444d } .edge { stroke: #9198a1 } .limit { stroke: #ff7b72 }
.alarm { fill: #ff7b72 }
}"""
"""The picture brings its own ground, so that words can be read on any page."""


def document(width: int, height: int, title: str, text: str, body: Iterable[str]) -> str:
    """A whole picture.

    Args:
        width, height: pixels.
        title: what it is, in a few words.
        text: what is to be seen, for those who do not see it.
        body: elements.
    """
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" font-family="sans-serif" font-size="13"'
            ' role="img" aria-labelledby="title text">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="text">{escape(text)}</desc>',
            f"<style>\n{STYLE}\n</style>",
            f'<rect class="card" width="{width}" height="{height}" rx="6"/>',
            *body,
            "</svg>\n",
        )
    )


def words(
    x: float, y: float, text: str, *, anchor: str = "middle", kind: str = "ink", more: str = ""
) -> str:
    """A line of text whose baseline is at ``y``."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}{more and " " + more}>{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, *, kind: str = "grid", more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {ends}{more and " " + more}/>'


def ticks(most: float, count: int = 5) -> list[float]:
    """Round values from 0 to at most ``most``, about ``count`` of them."""
    step = next(
        digit * 10.0**power
        for power in range(-3, 9)
        for digit in (1, 2, 2.5, 5)
        if digit * 10.0**power * count >= most
    )
    return [step * i for i in range(ceil(most / step) + 1) if step * i <= most * 1.0001]


def stairs(
    lefts: Sequence[float], right: float, tops: Sequence[float], feet: Sequence[float]
) -> str:
    """The path of an area whose top and foot are level from each left to the next one.

    Args:
        lefts: pixels at which each stretch starts.
        right: at which the last one ends.
        tops, feet: pixels from the picture's top, of each stretch.
    """
    rights = [*lefts[1:], right]
    there = _level(lefts, rights, tops)
    back = _level(rights[::-1], lefts[::-1], feet[::-1])
    return f"M{there}L{back}Z"


def _level(starts: Sequence[float], ends: Sequence[float], heights: Sequence[float]) -> str:
    """Points of a stairway; stretches of one height are one."""
    points: list[tuple[float, float]] = []
    for start, end, height in zip(starts, ends, heights, strict=True):
        if points and abs(points[-1][1] - height) < 0.05:
            points[-1] = (end, points[-1][1])
        else:
            points += [(start, height), (end, height)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
