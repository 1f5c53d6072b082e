"""What each knob does: small charts of one kind, one for each knob, on the same scales."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from api.pages.charts import symbols
from api.pages.charts.data import Effect, EffectValue
from api.pages.charts.frame import (
    definitions,
    legend,
    line_key,
    symbol_key,
    tick_texts,
    whiskers,
)
from api.pages.charts.scales import Scale, scale_for
from api.pages.charts.svg import element, percent, text, use
from api.pages.charts.words import (
    TEXT_PX,
    column,
    figure,
    range_words,
    short_tick_words,
    shortened,
    width_px,
)
from tuner.quantity import Provenance

_ROW_PX = 26.0
_NOTE_PX = 16.0
"""What a note below a row's numbers adds to its height."""
_LEFT_EM = 9.6
"""Room for a value's words, left of the plot; ``charts.css`` leaves as much."""
_SPEED_EM = 5.0
"""From the plot's right end to the right end of the speeds; ``charts.css`` leaves room for both."""
_MEMORY_EM = 3.6
"""Width of the column of memory, and of the line under the largest."""
_GAP_EM = 1.0
_NARROW_EM = 25.0
_PLOT_EM = 8.0
"""Widths of a panel and of its plot in the narrowest window."""
_LEAST_PLOT_EM = 4.8
"""Width of a plot where several panels are side by side, at least: as ``charts.css`` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What all panels have in common."""

    prefix: str
    """What element ids start with."""
    speed: Scale
    """From the slowest to the fastest of all values."""
    ticks: tuple[float, ...]
    """Of the speed: one to four."""
    most_memory: float
    """The largest of all, in the unit of the effects; above 0."""
    labels: tuple[str, str]
    """Of speed and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A value and its place in its panel."""

    value: EffectValue
    """What is shown."""
    memory: str
    """Its memory in words."""
    top: float
    """Pixels from the panel's top."""

    @property
    def middle(self) -> float:
        """Where its mark and its numbers lie."""
        return self.top + _ROW_PX / 2

    @property
    def end(self) -> float:
        """Where the next row begins."""
        return self.top + _ROW_PX + (_NOTE_PX if self.value.note and self.value.speed else 0.0)


def small_multiples(
    effects: Sequence[Effect],
    *,
    speed_label: str,
    memory_label: str,
    title: str,
    prefix: str = "knobs",
) -> Markup:
    """One panel for each knob: a row for each value, with its speed and its memory.

    Args:
        effects: The knobs, in order.
        speed_label: What the speed is, with its unit.
        memory_label: What the memory is, with its unit.
        title: The chart's name.
        prefix: What element ids start with; unique in a page.
    """
    values = [value for effect in effects for value in effect.values]
    speed = scale_for([v.speed.value for v in values if v.speed])
    shared = _Shared(
        prefix=prefix,
        speed=speed,
        ticks=_ticks(speed) if any(v.speed for v in values) else (),
        most_memory=max((v.memory for v in values if v.memory is not None), default=0.0) or 1.0,
        labels=(speed_label, memory_label),
    )
    panels = [_panel(shared, number, effect) for number, effect in enumerate(effects, start=1)]
    empty = element("p", "No knob has been tried yet.", class_="chart-nothing")
    grid = element("div", *panels, class_="chart-panels") if panels else empty
    return element(
        "div",
        _legend(shared, values),
        grid,
        class_="chart chart-knobs",
        role="group",
        aria_label=title,
    )


def _ticks(speed: Scale) -> tuple[float, ...]:
    """About three; fewer where their labels would touch in the narrowest plot."""

    def fit(ticks: tuple[float, ...]) -> bool:
        places = [speed.at(tick) * _LEAST_PLOT_EM * TEXT_PX for tick in ticks]
        widths = [width_px(label) for label in short_tick_words(ticks)]
        ends = [place + width / 2 for place, width in zip(places, widths, strict=True)]
        starts = [place - width / 2 for place, width in zip(places, widths, strict=True)]
        return all(end + TEXT_PX / 2 <= start for end, start in zip(ends, starts[1:], strict=False))

    return speed.fitting(3, fit)


def _shapes(values: Sequence[EffectValue]) -> list[str]:
    return [p for p in Provenance if any(v.speed and v.provenance == p for v in values)]


def _legend(shared: _Shared, values: Sequence[EffectValue]) -> Markup:
    """Keys of all panels; the symbols are defined here, once."""
    shapes = _shapes(values)
    if not shapes and all(value.memory is None for value in values):
        return Markup()
    speed, memory = shared.labels
    keys = [
        (symbol_key(f"{shared.prefix}-{shape}", "chart-is-other"), f"{speed}, {shape}")
        for shape in shapes
    ]
    keys.append((line_key("chart-memory-line"), memory))
    drawn = definitions([symbols.symbol(shared.prefix, name) for name in shapes])
    holder = element("svg", drawn, width=0, height=0, class_="chart-defs", aria_hidden="true")
    return holder + legend(keys)


def _panel(shared: _Shared, number: int, effect: Effect) -> Markup:
    rows = _rows(effect)
    height = rows[-1].end if rows else _ROW_PX
    name = f"{shared.prefix}-{number}"
    knob = shortened(effect.knob, _NARROW_EM * TEXT_PX)
    return element(
        "svg",
        element("title", effect.knob, id=f"{name}-title"),
        element("desc", _description(shared, effect), id=f"{name}-desc"),
        text(knob, f"-{_LEFT_EM}em", -10, class_="chart-name"),
        tick_texts(shared.speed, shared.ticks, height),
        _whiskers(shared, rows, height),
        *(_drawn(shared, row) for row in rows),
        class_="chart-plot chart-panel",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc",
        width="100%",
        height=height,
        overflow="visible",
    )


def _rows(effect: Effect) -> list[_Row]:
    written = iter(column([v.memory for v in effect.values if v.memory is not None]))
    rows: list[_Row] = []
    for value in effect.values:
        memory = next(written) if value.memory is not None else ""
        rows.append(_Row(value=value, memory=memory, top=rows[-1].end if rows else 0.0))
    return rows


def _drawn(shared: _Shared, row: _Row) -> Markup:
    words = shortened(row.value.value, (_LEFT_EM - 1) * TEXT_PX)
    place = {"dy": ".35em", "text_anchor": "end", "class_": "chart-value"}
    content = (
        text(words, "-1em", row.middle, **place),
        _speed(shared, row),
        _memory(shared, row),
        _note(row),
    )
    return element("g", *content, class_="chart-is-best" if row.value.is_best else "chart-is-other")


def _speed(shared: _Shared, row: _Row) -> Markup:
    speed = row.value.speed
    if speed is None:
        return Markup()
    mark = use(
        f"{shared.prefix}-{row.value.provenance}", percent(shared.speed.at(speed.value)), row.middle
    )
    return mark + _beside(_SPEED_EM, row.middle, figure(speed.value))


def _memory(shared: _Shared, row: _Row) -> Markup:
    """The number, over a line that is as long as it is large."""
    if row.value.memory is None:
        return Markup()
    end, y = _SPEED_EM + _GAP_EM + _MEMORY_EM, row.middle + 9
    start = end - _MEMORY_EM * max(row.value.memory, 0.0) / shared.most_memory
    line = element(
        "line", x1=f"{start:.2f}em", x2=f"{end:g}em", y1=y, y2=y, class_="chart-memory-line"
    )
    moved = element("svg", line, x="100%", overflow="visible")
    return moved + _beside(end, row.middle, row.memory)


def _note(row: _Row) -> Markup:
    """A remark below the numbers, or in the place of those that are missing."""
    value = row.value
    words = value.note or ("" if value.speed else "unknown")
    is_beside = value.speed is None and value.memory is not None
    right = _SPEED_EM if is_beside else _SPEED_EM + _GAP_EM + _MEMORY_EM
    room = (_PLOT_EM + right) * TEXT_PX
    y = row.end - _NOTE_PX / 2 - 1 if value.speed else row.middle
    return _beside(right, y, shortened(words, room), "chart-note") if words else Markup()


def _beside(right_em: float, y: float, words: str, class_: str = "chart-figure") -> Markup:
    """Words that end so far right of the plot."""
    place = {"dx": f"{right_em:g}em", "dy": ".35em", "text_anchor": "end", "class_": class_}
    return text(words, "100%", y, **place)


def _whiskers(shared: _Shared, rows: Sequence[_Row], height: float) -> Markup:
    speeds = [(row.middle, row.value.speed) for row in rows if row.value.speed]
    at = shared.speed.at
    return whiskers([(at(s.low), y, at(s.high), y) for y, s in speeds if s.low < s.high], height)


def _description(shared: _Shared, effect: Effect) -> str:
    return "; ".join(_said(shared, value) for value in effect.values) + "."


def _said(shared: _Shared, value: EffectValue) -> str:
    """``full_shard: 9,412 tokens/s per GPU, 43.1 GiB, measured, the answer``."""
    speed, memory = shared.labels
    known = [f"{range_words(value.speed)} {speed}"] if value.speed else ["speed unknown"]
    known += [f"{figure(value.memory)} {memory}"] if value.memory is not None else []
    known += [str(value.provenance)] if value.speed else []
    known += [value.note] if value.note else []
    return f"{value.value}: {', '.join(known + (['the answer'] if value.is_best else []))}"
