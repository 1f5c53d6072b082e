"""Elements as text: the one place where markup is made, and so where it is escaped."""

import re
from collections.abc import Iterable
from functools import cache

from markupsafe import Markup, escape

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may hold, lone surrogates among them."""
_PLAIN = re.compile(r"[^&<>'\"\x00-\x1f\x7f-\U0010ffff]*")
"""Text that stands for itself, as nearly all of a chart's does."""


def shown(text: object) -> str:
    """Text for an element or an attribute: escaped, with what XML forbids replaced by U+FFFD."""
    words = str(text)
    if isinstance(text, Markup) or _PLAIN.fullmatch(words):
        return words
    return str(escape(_NOT_XML.sub("\ufffd", words)))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """``<name attribute="value">children</name>``, or ``<name/>`` where no children are given.

    Children and values are escaped unless they are markup already. ``class_`` stands for
    ``class``, other underscores for hyphens; attributes of ``None`` are left out, floats are
    rounded to hundredths. HTML elements need a child, if only an empty one.
    """
    written = "".join(
        f' {_spelled(key)}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{written}/>")  # noqa: S704 - escaped above
    content = "".join(map(shown, children))
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


def use(symbol: str, x: object, y: object) -> Markup:
    """A defined symbol at a place."""
    return element("use", href=f"#{symbol}", x=x, y=y)


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


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """A line through points of a :func:`layer`: fractions across, pixels down."""
    d = "L".join(f"{number(1000 * x)} {number(y)}" for x, y in points)
    return element("path", d=f"M{d}" if d else "", class_=class_)


@cache
def _spelled(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else shown(value)
