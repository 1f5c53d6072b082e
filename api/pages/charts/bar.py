"""Memory by category, against the limit."""

from collections.abc import Sequence
from itertools import accumulate

from markupsafe import Markup

from api.pages.charts.data import Bar, Part
from api.pages.charts.frame import area_key, chart, label, no_key, nothing, x_axis
from api.pages.charts.scales import Scale
from api.pages.charts.svg import element, joined, percent, text
from api.pages.charts.words import column, cut, figure

_HEIGHT_PX = 34.0
_INTERVAL_PX = _HEIGHT_PX + 7
_AXIS_PX = _HEIGHT_PX + 15
"""Where the whisker and the axis lie below the bar."""
_TONES = 9
"""Colours that ``charts.css`` has for parts."""
_NAME_CHARACTERS = 60
_LETTERED = 0.06
"""Parts of at least this share of the axis have their letter on them: it has room there."""


_ListRow = tuple[Markup, str, float, str | None]
"""Key, words, size and class of a line of the list."""


def memory_bar(bar: Bar, *, prefix: str = "memory") -> Markup:
    """A stacked bar with its limit and headroom, and a list of its parts with their sizes.

    Parts are told apart by place and letter, too, not by colour alone.

    Args:
        bar: What to draw.
        prefix: What element ids start with; unique in a page.
    """
    assert bar.limit > 0, bar.limit
    assert bar.headroom >= 0, bar.headroom
    parts = [part for part in bar.parts if part.value > 0]
    total = sum(part.value for part in parts)
    most = max(total, bar.limit + bar.headroom, bar.interval.high if bar.interval else 0.0)
    scale = Scale(low=0.0, high=most)
    content = (
        _hatch(prefix),
        _limits(bar, scale, prefix),
        *_stack(parts, scale),
        Markup() if parts else nothing("nothing known yet", _HEIGHT_PX),
        _over(bar, total, scale),
        _interval(bar, scale),
        _limit(bar, scale),
        x_axis(scale, _AXIS_PX, is_flush=True),
    )
    words = (bar.label, _description(bar, parts, total))
    return chart(
        "memory",
        prefix,
        words,
        _AXIS_PX,
        content,
        below=_list(bar, parts, total, prefix),
    )


def _tone(part: Part, position: int) -> str:
    return f"chart-tone-{(part.tone or position + 1) % _TONES or _TONES}"


def _letter(position: int) -> str:
    return chr(ord("A") + position) if position < 26 else ""


def _hatch(prefix: str) -> Markup:
    line = element("path", d="M-1 1L1-1M0 6L6 0M5 7L7 5", class_="chart-hatch")
    return element(
        "defs",
        element(
            "pattern",
            line,
            id=f"{prefix}-hatch",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        ),
    )


def _limits(bar: Bar, scale: Scale, prefix: str) -> Markup:
    """The room up to the limit, and the headroom beyond it."""
    at, end = scale.at(bar.limit), scale.at(bar.limit + bar.headroom)
    room = _box(0.0, at, "chart-room")
    if not bar.headroom:
        return room
    return room + _box(at, end, "chart-headroom", fill=f"url(#{prefix}-hatch)")


def _box(start: float, end: float, class_: str, fill: str | None = None) -> Markup:
    return element(
        "rect",
        x=percent(start),
        y=0,
        width=percent(end - start),
        height=_HEIGHT_PX,
        class_=class_,
        fill=fill,
    )


def _stack(parts: Sequence[Part], scale: Scale) -> list[Markup]:
    ends = list(accumulate((part.value for part in parts), initial=0.0))
    drawn = []
    for position, part in enumerate(parts):
        start, end = scale.at(ends[position]), scale.at(ends[position + 1])
        drawn.append(_box(start, end, f"chart-part {_tone(part, position)}"))
        if end - start >= _LETTERED:
            middle = percent((start + end) / 2)
            place = {"dy": ".35em", "text_anchor": "middle", "class_": "chart-letter"}
            drawn.append(text(_letter(position), middle, _HEIGHT_PX / 2, **place))
    return drawn


def _over(bar: Bar, total: float, scale: Scale) -> Markup:
    """A line on what exceeds the limit."""
    if total <= bar.limit:
        return Markup()
    ends = {"x1": percent(scale.at(bar.limit)), "x2": percent(scale.at(total))}
    return element("line", y1=-3, y2=-3, class_="chart-over", **ends)


def _interval(bar: Bar, scale: Scale) -> Markup:
    if bar.interval is None or bar.interval.low == bar.interval.high:
        return Markup()
    low, high = percent(scale.at(bar.interval.low)), percent(scale.at(bar.interval.high))
    y = _INTERVAL_PX
    ends = (
        element("line", x1=x, x2=x, y1=y - 3, y2=y + 3, class_="chart-interval")
        for x in (low, high)
    )
    line = element("line", x1=low, x2=high, y1=y, y2=y, class_="chart-interval")
    return line + joined(ends)


def _limit(bar: Bar, scale: Scale) -> Markup:
    at = scale.at(bar.limit)
    x = percent(at)
    anchor = "end" if at > 0.5 else "start"
    line = element("line", x1=x, x2=x, y1=-8, y2=_AXIS_PX, class_="chart-limit")
    return line + label(bar.limit_label, x, -13, text_anchor=anchor)


def _list(bar: Bar, parts: Sequence[Part], total: float, prefix: str) -> Markup:
    """The parts with their sizes, their sum, and what is left: the legend, and the numbers."""
    if not parts:
        return Markup()
    free = bar.limit - total
    hatched = area_key("chart-headroom", f"url(#{prefix}-hatch)")
    rows: list[_ListRow] = [
        (_part_key(part, at), part.name, part.value, None) for at, part in enumerate(parts)
    ]
    rest = [
        (no_key(), "together", total, "chart-total"),
        (area_key("chart-room"), "free until the limit", free, None),
        (area_key("chart-over-area"), "over the limit", -free, None),
        (hatched, "headroom beyond the limit", bar.headroom, None),
    ]
    rows += [row for row in rest if row[2] > 0]
    figures = column([value for _, _, value, _ in rows])
    items = (
        element(
            "li",
            key,
            _name(name),
            element("span", f"{words} {bar.unit}", class_="chart-figure"),
            class_=class_,
        )
        for (key, name, _, class_), words in zip(rows, figures, strict=True)
    )
    return element("ul", *items, class_="chart-parts")


def _name(name: str) -> Markup:
    """A name that may be anything; the whole of a long one is in its tooltip."""
    short = cut(name, _NAME_CHARACTERS)
    return element("bdi", short, title=None if short == name else name)


def _part_key(part: Part, position: int) -> Markup:
    place = {"dy": ".35em", "text_anchor": "middle", "class_": "chart-letter"}
    return element(
        "svg",
        element("rect", width=24, height=16, class_=f"chart-part {_tone(part, position)}"),
        text(_letter(position), 12, 8, **place),
        class_="chart-key",
        width=24,
        height=16,
        aria_hidden="true",
    )


def _description(bar: Bar, parts: Sequence[Part], total: float) -> str:
    named = ", ".join(f"{part.name} {figure(part.value)}" for part in parts)
    of = f"{figure(total)} of {figure(bar.limit)} {bar.unit}"
    return f"{of}: {named}." if parts else f"Nothing known, of {figure(bar.limit)} {bar.unit}."
