"""Shapes of marks: filled where something ran, hollow where it did not."""

from collections.abc import Mapping

from markupsafe import Markup

from api.pages.charts.svg import element
from tuner.quantity import Provenance

OOM = "oom"
FAILED = "failed"
BEST = "best"
BEYOND = "beyond"

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
"""Paths around the origin, about 9 pixels wide, and the class that paints them."""


def symbol(prefix: str, name: str, *, size: float = 1.0, target_px: float = 0.0) -> Markup:
    """A shape that :func:`~api.pages.charts.svg.use` draws as ``{prefix}-{name}``.

    Args:
        prefix: The chart's.
        name: A provenance, or one of the names above.
        size: Relative to 9 pixels.
        target_px: Radius of an invisible disc around it that can be pointed at; 0: none.
    """
    d, class_ = _SHAPES[name]
    scaled = None if size == 1 else f"scale({size:g})"
    shape = element("path", d=d, class_=class_, transform=scaled)
    target = element("circle", r=target_px, class_="chart-target") if target_px else Markup()
    return element("g", target, shape, id=f"{prefix}-{name}")
