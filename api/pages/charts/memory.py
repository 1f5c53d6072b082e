"""Memory by category, against the limit."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from markupsafe import Markup

from api.pages.charts.frame import area_key, chart, key, label, nothing, plot_svg, x_axis
from api.pages.charts.scales import Scale, column, cut, figure
from api.pages.charts.svg import element, line, percent, text
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
    """As the legend has it."""
    value: float
    """Its size in the bar's unit; parts of 0 or less are left out."""
    tone: int = 0
    """Its colour, from 1, so that a category looks the same in every bar; 0: by its position."""


def memory_bar(
    sizes_bytes: Mapping[str, float], *, label: str, study: Study, prefix: str
) -> Markup:
    """Memory by category, against a study's limit.

    Args:
        sizes_bytes: by the names of categories.
        label: what it is the memory of.
        study: whose limit.
        prefix: of ids; unique in a page.
    """
    terms, cluster = study.terms, study.question.cluster
    limit = terms.limit_bytes(cluster)
    unit, divisor = size_unit(sum(sizes_bytes.values()))
    spare = cluster.gpu.memory_bytes - limit if terms.memory_limit_bytes is None else 0
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

    Parts are told apart by place and letter, too, not by colour alone. All numbers are in ``unit``.

    Args:
        parts: in the order in which they are stacked.
        title: what the bar shows, as ``Peak memory of a GPU``.
        unit: such as ``GiB``.
        limit: the place of the limit; above 0.
        limit_label: words at its line.
        headroom: what lies between the limit and the device's capacity; 0 if nothing does.
        prefix: what element ids start with; unique in a page.
    """
    assert limit > 0, limit
    assert headroom >= 0, headroom
    parts = [part for part in parts if part.value > 0]
    total = sum(part.value for part in parts)
    scale = Scale(low=0.0, high=max(total, limit + headroom))
    at, end = scale.at(limit), scale.at(limit + headroom)
    hatched = f"url(#{prefix}-hatch)"
    content = [_hatch(prefix), _box(0.0, at, "chart-room")]
    if headroom:
        content.append(_box(at, end, "chart-headroom", fill=hatched))
    content += _stack(parts, scale) or [nothing("nothing known yet", _HEIGHT_PX)]
    if total > limit:
        content.append(line(percent(at), -3, percent(scale.at(total)), -3, "chart-over"))
    content += [
        line(percent(at), -8, percent(at), _AXIS_PX, "chart-limit"),
        label(limit_label, percent(at), -13, text_anchor="end" if at > 0.5 else "start"),
        x_axis(scale, _AXIS_PX, is_flush=True),
    ]
    rows = [(_letter_key(at, part), part.name, part.value) for at, part in enumerate(parts)]
    rest = [
        (element("span", "", class_="chart-key"), "together", total),
        (area_key("chart-room"), "free until the limit", limit - total),
        (area_key("chart-over-area"), "over the limit", total - limit),
        (area_key("chart-headroom", hatched), "headroom beyond the limit", headroom),
    ]
    rows += [row for row in rest if row[2] > 0]
    named = ", ".join(f"{part.name} {figure(part.value)}" for part in parts)
    of_limit = f"of {figure(limit)} {unit}"
    said = f"{figure(total)} {of_limit}: {named}." if parts else f"Nothing known, {of_limit}."
    plot = plot_svg(prefix, title, said, _AXIS_PX, content)
    return chart("memory", plot, _list(rows, unit) if parts else Markup())


def _tone(part: Part, position: int) -> str:
    return f"chart-tone-{(part.tone or position + 1) % _MOST_TONES or _MOST_TONES}"


def _letter(position: int, x: object, y: float) -> Markup:
    letter = chr(ord("A") + position) if position < 26 else ""
    return text(letter, x, y, dy=".35em", text_anchor="middle", class_="chart-letter")


def _letter_key(position: int, part: Part) -> Markup:
    box = element("rect", width=24, height=16, class_=f"chart-part {_tone(part, position)}")
    return key(24, box, _letter(position, 12, 8))


def _hatch(prefix: str) -> Markup:
    drawn = element("path", d="M-1 1L1-1M0 6L6 0M5 7L7 5", class_="chart-hatch")
    size = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
    return element("defs", element("pattern", drawn, id=f"{prefix}-hatch", **size))


def _box(start: float, end: float, class_: str, fill: str | None = None) -> Markup:
    place = {"x": percent(start), "y": 0, "width": percent(end - start), "height": _HEIGHT_PX}
    return element("rect", **place, class_=class_, fill=fill)


def _stack(parts: Sequence[Part], scale: Scale) -> list[Markup]:
    ends = [scale.at(end) for end in accumulate((part.value for part in parts), initial=0.0)]
    drawn = []
    for position, part in enumerate(parts):
        start, end = ends[position], ends[position + 1]
        drawn.append(_box(start, end, f"chart-part {_tone(part, position)}"))
        if end - start >= _LETTERED:
            drawn.append(_letter(position, percent((start + end) / 2), _HEIGHT_PX / 2))
    return drawn


def _list(rows: Sequence[tuple[Markup, str, float]], unit: str) -> Markup:
    """The parts with their sizes, their sum, and what is left: the legend, and the numbers."""
    items = []
    for (drawn, name, _), words in zip(rows, column([row[2] for row in rows]), strict=True):
        short = cut(name, _NAME_CHARACTERS)
        items.append(
            element(
                "li",
                drawn,
                # A name may be anything; the whole of a long one is in its tooltip.
                element("bdi", short, title=None if short == name else name),
                element("span", f"{words} {unit}", class_="chart-figure"),
                class_="chart-total" if name == "together" else None,
            )
        )
    return element("ul", *items, class_="chart-parts")
