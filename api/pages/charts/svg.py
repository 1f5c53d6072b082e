"""Elements as text: the one place where markup is made, and so where it is escaped."""

import re
from collections.abc import Iterable, Mapping

from markupsafe import Markup, escape

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


def joined(elements: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup().join(elements)


def number(value: float) -> str:
    """A coordinate, rounded to hundredths: ``12.5``."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def percent(fraction: float) -> str:
    """A position across a plot: ``34.25%``."""
    return f"{number(100 * fraction)}%"


def text(words: str, x: object, y: object, **attributes: object) -> Markup:
    """Words at a place."""
    return element("text", words, x=x, y=y, **attributes)


def line(x1: object, y1: float, x2: object, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=class_)


def symbol(prefix: str, name: str, *, size: float = 1.0, target_px: float = 0.0) -> Markup:
    """A shape that :func:`use` draws as ``{prefix}-{name}``.

    Args:
        prefix: the chart's.
        name: a provenance, or one of the names above.
        size: relative to 9 pixels.
        target_px: radius of an invisible disc around it that can be pointed at; 0: none.
    """
    d, class_ = _SHAPES[name]
    scaled = None if size == 1 else f"scale({size:g})"
    shape = element("path", d=d, class_=class_, transform=scaled)
    target = element("circle", r=target_px, class_="chart-target") if target_px else Markup()
    return element("g", target, shape, id=f"{prefix}-{name}")


def use(shape: str, x: object, y: object, *children: Markup) -> Markup:
    """A defined symbol at a place."""
    return element("use", *children, href=f"#{shape}", x=x, y=y)


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


def _shown(value: object) -> str:
    """A value as it stands in markup, with what XML forbids replaced by U+FFFD."""
    if isinstance(value, float):
        return number(value)
    words = str(value)
    return words if isinstance(value, Markup) else str(escape(_NOT_XML.sub("\ufffd", words)))
