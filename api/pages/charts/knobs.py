"""The effect of each knob: small charts of one kind, one for each knob, on the same scales."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from api.pages.charts.scales import (
    TEXT_PX,
    Interval,
    Scale,
    column,
    figure,
    interval_of,
    range_words,
    scale_for,
    short_tick_words,
    shortened,
    width_px,
)
from api.pages.charts.svg import (
    element,
    legend,
    line,
    line_key,
    percent,
    plot_svg,
    symbol_key,
    symbols,
    text,
    use,
    whiskers,
)
from tuner.core.evaluation import GIB
from tuner.core.quantity import Provenance
from tuner.results import KnobEffect
from tuner.text import size_unit

_ROW_PX = 26.0
# What a note below a row's numbers adds to its height.
_NOTE_PX = 16.0
# Room for a value's words left of the plot, from the plot's right end to that of the speeds, and
# for the column of memory with the line under it: ``charts.css`` leaves as much.
_LEFT_EM = 9.6
_SPEED_EM = 5.0
_MEMORY_EM = 3.6
_GAP_EM = 1.0
# Widths of a panel and of its plot in the narrowest window, and of a plot beside others at least.
_NARROW_EM = 25.0
_PLOT_EM = 8.0
_LEAST_PLOT_EM = 4.8
_TITLE = "The best settings that are known with each value of a knob"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panels:
    """The scales and words that all panels share."""

    prefix: str
    speed: Scale
    ticks: tuple[float, ...]
    """Of the speed: one to four."""
    gib: float
    """How many of the unit of memory a GiB is."""
    most_memory: float
    """The largest of all, in that unit; above 0."""
    speed_label: str
    memory_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A value and its place in its panel."""

    shown: str
    speed: Interval | None
    memory: float | None
    memory_words: str
    note: str
    """What to add, or why there are no numbers."""
    provenance: Provenance
    is_best: bool
    top: float

    @property
    def end(self) -> float:
        return self.top + _ROW_PX + (_NOTE_PX if self.note and self.speed else 0.0)


def small_multiples(effects: Sequence[KnobEffect], *, per: str, prefix: str = "knobs") -> Markup:
    """One panel for each knob: a row for each value, with its speed and its memory.

    ``per`` is the word for a rank; ids of elements start with ``prefix``, unique in a page.
    """
    values = [value for effect in effects for value in effect.values]
    speeds = [found.value for v in values if (found := interval_of(v.tokens_per_s_per_gpu))]
    most_gib = max((v.memory_gib.value or 0.0 for v in values), default=1.0)
    unit, divisor = size_unit(most_gib * GIB)
    scale = scale_for(speeds)

    def fit(ticks: tuple[float, ...]) -> bool:
        at = [scale.at(tick) * _LEAST_PLOT_EM * TEXT_PX for tick in ticks]
        half = [width_px(short_tick_words(tick)) / 2 for tick in ticks]
        ends = list(zip(at, half, strict=True))
        return all(a + h + TEXT_PX / 2 <= b - g for (a, h), (b, g) in pairwise(ends))

    panels = _Panels(
        prefix=prefix,
        speed=scale,
        ticks=scale.fitting(3, fit) if speeds else (),
        gib=GIB / divisor,
        most_memory=most_gib * GIB / divisor or 1.0,
        speed_label=f"tokens/s per {per}",
        memory_label=f"memory, {unit}",
    )
    drawn = [_panel(panels, number, effect) for number, effect in enumerate(effects, start=1)]
    empty = element("p", "No knob has been tried yet.", class_="chart-nothing")
    grid = element("div", *drawn, class_="chart-panels") if drawn else empty
    named = {"role": "group", "aria_label": _TITLE}
    timed = {v.provenance for v in values if interval_of(v.tokens_per_s_per_gpu)}
    shapes = [provenance for provenance in Provenance if provenance in timed]
    keys = Markup()
    if shapes or any(interval_of(v.memory_gib) for v in values):
        # The symbols are defined here, once, for all panels.
        hidden = {"width": 0, "height": 0, "class_": "chart-defs", "aria_hidden": "true"}
        words = [(f"{prefix}-{shape}", f"{panels.speed_label}, {shape}") for shape in shapes]
        drawn_keys = [(symbol_key(name, "chart-is-other"), said) for name, said in words]
        drawn_keys.append((line_key("chart-memory-line"), panels.memory_label))
        keys = element("svg", symbols(prefix, shapes), **hidden) + legend(drawn_keys)
    return element("div", keys, grid, class_="chart chart-knobs", **named)


def _panel(panels: _Panels, number: int, effect: KnobEffect) -> Markup:
    memory = [interval_of(v.memory_gib, panels.gib) for v in effect.values]
    written = iter(column([found.value for found in memory if found]))
    rows: list[_Row] = []
    for value, needed in zip(effect.values, memory, strict=True):
        rows.append(
            _Row(
                shown=value.shown,
                speed=interval_of(value.tokens_per_s_per_gpu),
                memory=needed.value if needed else None,
                memory_words=next(written) if needed else "",
                note="does not fit" if value.fits is False else value.note.partition(":")[0],
                provenance=value.provenance,
                is_best=value.is_best,
                top=rows[-1].end if rows else 0.0,
            )
        )
    height = rows[-1].end if rows else _ROW_PX
    knob = effect.knob.replace("_", " ")
    at = panels.speed.at
    content = [
        text(shortened(knob, _NARROW_EM * TEXT_PX), f"-{_LEFT_EM}em", -10, class_="chart-name")
    ]
    for tick in panels.ticks:
        x = percent(at(tick))
        place = {"dy": "1.2em", "text_anchor": "middle", "class_": "chart-tick"}
        content.append(line(x, 0, x, height, "chart-grid"))
        content.append(text(short_tick_words(tick), x, height, **place))
    speeds = [(row.top + _ROW_PX / 2, row.speed) for row in rows if row.speed]
    crossed = [(at(s.low), y, at(s.high), y) for y, s in speeds if s.low < s.high]
    content.append(whiskers(crossed, height))
    said = []
    for row in rows:
        content.append(_drawn(panels, row))
        known = ["speed unknown"]
        if row.speed:
            known = [f"{range_words(row.speed)} {panels.speed_label}"]
        known += [f"{figure(row.memory)} {panels.memory_label}"] if row.memory is not None else []
        known += [str(row.provenance)] if row.speed else []
        known += [row.note] if row.note else []
        known += ["the answer"] if row.is_best else []
        said.append(f"{row.shown}: {', '.join(known)}")
    name = f"{panels.prefix}-{number}"
    text_ = "; ".join(said) + "."
    return plot_svg(name, knob, text_, height, content, class_="chart-plot chart-panel")


def _drawn(panels: _Panels, row: _Row) -> Markup:
    middle = row.top + _ROW_PX / 2

    def beside(right_em: float, y: float, words: str, class_: str = "chart-figure") -> Markup:
        """Words that end so far right of the plot."""
        place = {"dx": f"{right_em:g}em", "dy": ".35em", "text_anchor": "end", "class_": class_}
        return text(words, "100%", y, **place)

    words = shortened(row.shown, (_LEFT_EM - 1) * TEXT_PX)
    place = {"dy": ".35em", "text_anchor": "end", "class_": "chart-value"}
    content = [text(words, "-1em", middle, **place)]
    if row.speed:
        x = percent(panels.speed.at(row.speed.value))
        content.append(use(f"{panels.prefix}-{row.provenance}", x, middle))
        content.append(beside(_SPEED_EM, middle, figure(row.speed.value)))
    end = _SPEED_EM + _GAP_EM + _MEMORY_EM
    if row.memory is not None:
        # The number stands over a line that is as long as it is large.
        start, y = end - _MEMORY_EM * max(row.memory, 0.0) / panels.most_memory, middle + 9
        below = line(f"{start:.2f}em", y, f"{end:g}em", y, "chart-memory-line")
        content.append(element("svg", below, x="100%", overflow="visible"))
        content.append(beside(end, middle, row.memory_words))
    if note := row.note or ("" if row.speed else "unknown"):
        # A remark stands below the numbers, or in the place of those that are missing.
        right = end if row.speed or row.memory is None else _SPEED_EM
        y = row.end - _NOTE_PX / 2 - 1 if row.speed else middle
        short = shortened(note, (_PLOT_EM + right) * TEXT_PX)
        content.append(beside(right, y, short, "chart-note"))
    return element("g", *content, class_="chart-is-best" if row.is_best else "chart-is-other")
