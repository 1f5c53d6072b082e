"""Mean regret against probes, as an SVG: a panel for each table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

from plot import BLUE, ENTRY, GREEN, ORANGE, PURPLE, YELLOW, document, text
from search_lines import KEPT

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 460, 340, 66, 44, 56, 84
"""Pixels: a panel, and the room around and between panels."""
FLOOR = 0.001
"""The least regret that is drawn: no regret at all is drawn there."""
TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
GREY, BROWN, BLACK = "#777777", "#8C6D46", "#000000"
DASHED = "6 4"
SHOWN = {
    KEPT[True]: (BLUE, ""),
    KEPT[False]: (BLUE, DASHED),
    "ours, nothing learned": (GREEN, DASHED),
    "BoTorch, cost model as mean": (GREEN, ""),
    "least model parallelism first": (ORANGE, ""),
    "largest micro-batch first": (YELLOW, ""),
    "random": (GREY, ""),
    "grid": (GREY, DASHED),
    "Optuna TPE": (PURPLE, ""),
    "Optuna GP, helped": (PURPLE, DASHED),
    "DeepSpeed model-based": (BROWN, ""),
    "DeepSpeed grid": (BROWN, DASHED),
    "DeepSpeed random": (BLACK, "2 4"),
}
"""Searches that are drawn, in the order of the legend: color and dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One table's."""

    title: str
    curves: Mapping[str, Sequence[float]]
    """Mean regret after 1, 2, ... probes, by search."""
    left: float  # pixels from the picture's left

    def x(self, probes: int) -> float:
        count = max(len(curve) for curve in self.curves.values())
        return self.left + WIDTH * (probes - 1) / max(count - 1, 1)


def y(regret: float) -> float:
    """Pixels from the top; the axis is logarithmic."""
    share = log10(max(regret, FLOOR) / FLOOR) / log10(1 / FLOOR)
    return TOP + HEIGHT * (1 - share)


def picture(result: Mapping[str, Any]) -> str:
    tables = list(dict.fromkeys(row["table"] for row in result["curves"]))
    panels = [
        Panel(
            title=f"{name}: mean regret after so many probes",
            curves={r["search"]: r["mean"] for r in result["curves"]
                    if r["table"] == name and r["search"] in SHOWN},
            left=LEFT + place * (WIDTH + GAP),
        )
        for place, name in enumerate(tables)
    ]  # fmt: skip
    return svg(panels)


def svg(panels: Sequence[Panel]) -> str:
    shown = [name for name in SHOWN if any(name in panel.curves for panel in panels)]
    width = LEFT + len(panels) * (WIDTH + GAP) - GAP + 24
    rows = (len(shown) + 1) // 2
    height = TOP + HEIGHT + BOTTOM + ENTRY * rows
    body = [line for panel in panels for line in _panel(panel)]
    legend = [line for place, name in enumerate(shown) for line in _entry(place, rows, name)]
    return document(width, height, [*body, *legend])


def _panel(panel: Panel) -> Iterable[str]:
    middle = panel.left + WIDTH / 2
    yield text(middle, TOP - 16, panel.title, 'font-size="15" font-weight="bold"')
    for tick in TICKS:
        yield (
            f'<line x1="{panel.left}" y1="{y(tick):.1f}" x2="{panel.left + WIDTH}"'
            f' y2="{y(tick):.1f}" stroke="#e6e6e6"/>'
        )
        yield text(panel.left - 8, y(tick) + 4, f"{100 * tick:g}%", 'text-anchor="end"')
    count = max(len(curve) for curve in panel.curves.values())
    for probes in range(1, count + 1):
        yield text(panel.x(probes), TOP + HEIGHT + 18, str(probes))
    yield text(middle, TOP + HEIGHT + 38, "probes (failed ones count)")
    yield (
        f'<rect x="{panel.left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none"'
        ' stroke="#444444"/>'
    )
    for name, curve in panel.curves.items():
        points = " ".join(f"{panel.x(k):.1f},{y(r):.1f}" for k, r in enumerate(curve, start=1))
        yield f'<polyline points="{points}" fill="none" {_style(name)}/>'


def _entry(place: int, rows: int, name: str) -> Iterable[str]:
    """One line of the legend, in two columns."""
    left = LEFT + (place // rows) * (WIDTH + GAP)
    top = TOP + HEIGHT + BOTTOM + ENTRY * (place % rows)
    yield f'<polyline points="{left},{top - 4} {left + 34},{top - 4}" fill="none" {_style(name)}/>'
    yield text(left + 42, top, name, 'text-anchor="start"')


def _style(name: str) -> str:
    color, dashes = SHOWN[name]
    width = 3 if name in KEPT.values() else 1.6
    return f'stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes or "none"}"'
