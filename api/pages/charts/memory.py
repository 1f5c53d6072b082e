"""Memory by category, against the limit."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import fsum
from typing import NamedTuple

from markupsafe import Markup

from api.pages.charts.scales import Scale, column, cut, figure
from api.pages.charts.svg import (
    area_key,
    chart,
    element,
    key,
    label,
    line,
    nothing,
    percent,
    plot_svg,
    text,
    x_axis,
)
from tuner.core.measurement import Category
from tuner.core.study import Study
from tuner.text import size_text, size_unit

# What a device needs beside tensors: its context, and communicators.
OUTSIDE = "outside the allocator"
# What is held between steps first, then what comes and goes.
_ORDER = (
    "parameters",
    "gradients",
    "gradients_sharded",
    "gradients_unsharded",
    "optimizer",
    "optimizer_state",
    *Category,
)
# Colours of categories, the same in every bar.
_TONES = {
    "parameters": 1,
    "gradients": 2,
    "gradients_sharded": 2,
    "gradients_unsharded": 3,
    "optimizer": 4,
    "optimizer_state": 4,
    "activations": 5,
    "activations_and_temporaries": 5,
    "gathered_parameters": 6,
    "logits_and_loss": 7,
    "ddp_buckets": 3,
    "library_workspaces": 8,
    "unsplit_blocks": 8,
    "temporaries": 9,
    OUTSIDE: 9,
}
_HEIGHT_PX = 34.0
_AXIS_PX = _HEIGHT_PX + 15
# As many colours as ``charts.css`` has for parts.
_MOST_TONES = 9
_NAME_CHARACTERS = 60
# Parts of at least this share of the axis have their letter on them: it has room there.
_LETTERED = 0.06


class Part(NamedTuple):
    """One category of a bar."""

    name: str
    value: float
    """Its size in the bar's unit; parts of 0 or less are left out."""
    tone: int = 0
    """Its colour, from 1, so that a category looks the same in every bar; 0: by its position."""


def memory_bar(
    sizes_bytes: Mapping[str, float], *, label: str, study: Study, prefix: str
) -> Markup:
    """Memory by the names of categories, against a study's limit; ``label`` says of what."""
    limits, cluster = study.limits, study.question.cluster
    limit = limits.limit_bytes(cluster)
    unit, divisor = size_unit(sum(sizes_bytes.values()))
    spare = cluster.gpu.memory_bytes - limit if limits.memory_limit_bytes is None else 0
    names = sorted(sizes_bytes, key=lambda n: _ORDER.index(n) if n in _ORDER else len(_ORDER))
    return stacked_bar(
        [Part(n.replace("_", " "), sizes_bytes[n] / divisor, _TONES.get(n, 9)) for n in names],
        title=label,
        unit=unit,
        limit=limit / divisor,
        limit_label=f"limit {size_text(limit)}",
        headroom=max(0, spare) / divisor,
        prefix=prefix,
    )


def stacked_bar(
    parts: Sequence[Part],
    *,
    title: str,
    unit: str,
    limit: float,
    limit_label: str,
    headroom: float,
    prefix: str = "memory",
) -> Markup:
    """A stacked bar with its limit and headroom, and a list of its parts with their sizes.

    Parts are told apart by place and letter, too, not by colour alone. ``limit``, above 0, and
    ``headroom``, what lies between it and the device's capacity, are in ``unit``.
    """
    assert limit > 0, limit
    assert headroom >= 0, headroom
    parts = [part for part in parts if part.value > 0]
    total = fsum(part.value for part in parts)  # the same with every Python: 3.12 changed sum
    scale = Scale(low=0.0, high=max(total, limit + headroom))
    at, end = scale.at(limit), scale.at(limit + headroom)
    pattern = {"id": f"{prefix}-hatch", "width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
    hatch = element("path", d="M-1 1L1-1M0 6L6 0M5 7L7 5", class_="chart-hatch")
    hatched = f"url(#{prefix}-hatch)"
    content = [element("defs", element("pattern", hatch, **pattern)), _box(0.0, at, "chart-room")]
    if headroom:
        content.append(_box(at, end, "chart-headroom", fill=hatched))
    keys, start = [], 0.0
    for n, (part, until) in enumerate(zip(parts, accumulate(p.value for p in parts), strict=True)):
        class_ = f"chart-part chart-tone-{(part.tone or n + 1) % _MOST_TONES or _MOST_TONES}"
        stop = scale.at(until)
        content.append(_box(start, stop, class_))
        if stop - start >= _LETTERED:
            content.append(_letter(n, percent((start + stop) / 2), _HEIGHT_PX / 2))
        box = element("rect", width=24, height=16, class_=class_)
        keys.append((key(24, box, _letter(n, 12, 8)), part.name, part.value))
        start = stop
    if not parts:
        content.append(nothing("nothing known yet", _HEIGHT_PX))
    if total > limit:
        content.append(line(percent(at), -3, percent(scale.at(total)), -3, "chart-over"))
    content += [
        line(percent(at), -8, percent(at), _AXIS_PX, "chart-limit"),
        label(limit_label, percent(at), -13, text_anchor="end" if at > 0.5 else "start"),
        x_axis(scale, _AXIS_PX, is_flush=True),
    ]
    rest = [
        (element("span", "", class_="chart-key"), "together", total),
        (area_key("chart-room"), "free until the limit", limit - total),
        (area_key("chart-over-area"), "over the limit", total - limit),
        (area_key("chart-headroom", hatched), "headroom beyond the limit", headroom),
    ]
    named = ", ".join(f"{part.name} {figure(part.value)}" for part in parts)
    of_limit = f"of {figure(limit)} {unit}"
    said = f"{figure(total)} {of_limit}: {named}." if parts else f"Nothing known, {of_limit}."
    plot = plot_svg(prefix, title, said, _AXIS_PX, content)
    if not parts:
        return chart("memory", plot, Markup())
    # The parts with their sizes, their sum, and what is left: the legend, and the numbers.
    rows = [*keys, *(row for row in rest if row[2] > 0)]
    items = []
    for (drawn, name, _), words in zip(rows, column([row[2] for row in rows]), strict=True):
        # A name may be anything; the whole of a long one is in its tooltip.
        short = cut(name, _NAME_CHARACTERS)
        shown = element("bdi", short, title=None if short == name else name)
        size = element("span", f"{words} {unit}", class_="chart-figure")
        kind = "chart-total" if name == "together" else None
        items.append(element("li", drawn, shown, size, class_=kind))
    return chart("memory", plot, element("ul", *items, class_="chart-parts"))


def _letter(position: int, x: object, y: float) -> Markup:
    letter = chr(ord("A") + position) if position < 26 else ""
    return text(letter, x, y, dy=".35em", text_anchor="middle", class_="chart-letter")


def _box(start: float, end: float, class_: str, fill: str | None = None) -> Markup:
    place = {"x": percent(start), "y": 0, "width": percent(end - start), "height": _HEIGHT_PX}
    return element("rect", **place, class_=class_, fill=fill)
