"""Best so far against probes: how the search got to its answer."""

import itertools
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from api.pages.charts import symbols
from api.pages.charts.data import Step
from api.pages.charts.frame import (
    Plot,
    chart,
    definitions,
    label,
    legend,
    line_key,
    nothing,
    symbol_key,
    whiskers,
    x_axis,
    y_axis,
)
from api.pages.charts.scales import Scale, reach, scale_for
from api.pages.charts.svg import element, layer, number, path, percent, text
from api.pages.charts.words import cut, figure
from tuner.quantity import Provenance

_HEIGHT_PX = 200.0
_TITLED = 120
"""With more probes than this, marks are smaller and have no words of their own."""


def progress(
    steps: Sequence[Step], *, y_label: str, title: str, prefix: str = "progress"
) -> Markup:
    """Each ended probe as a mark, those without a speed as crosses on the axis, the best as a line.

    Args:
        steps: The probes, in the order of their numbers.
        y_label: What the speed is, with its unit.
        title: The chart's name, for those who do not see it.
        prefix: What element ids start with; unique in a page.
    """
    last = max((step.number for step in steps), default=1)
    speeds = [speed for step in steps for speed in _speeds(step)]
    x = Scale(low=0.5, high=last + 0.5)
    plot = Plot(x=x, y=scale_for(speeds), height=_HEIGHT_PX)
    size = 1.0 if len(steps) <= _TITLED else 0.6
    shapes = _shapes(steps)
    content = (
        definitions([symbols.symbol(prefix, name, size=size) for name in shapes]),
        y_axis(plot, count=6) if speeds else nothing(_nothing(steps), _HEIGHT_PX),
        x_axis(x, _HEIGHT_PX, ticks=_whole_ticks(x, last)),
        label(y_label, 0, -14, class_="chart-words chart-from-edge"),
        label("probe", "100%", _HEIGHT_PX, dy="3em", text_anchor="end"),
        whiskers(list(_whiskers(steps, plot)), _HEIGHT_PX) if size == 1 else Markup(),
        _line(steps, plot),
        *_marks(steps, plot, prefix, titled=size == 1),
        _end(steps, plot),
    )
    below = legend(_keys(steps, prefix, shapes))
    words = (title, _description(steps, y_label))
    return chart("progress", prefix, words, _HEIGHT_PX, content, below=below)


def _nothing(steps: Sequence[Step]) -> str:
    return "no probe has a speed yet" if steps else "no probe has ended yet"


def _speeds(step: Step) -> Iterator[float]:
    """What the axis must show of a probe."""
    if step.best is not None:
        yield step.best
    if step.value is not None:
        low = step.value if step.low is None else step.low
        high = step.value if step.high is None else step.high
        yield from reach(step.value, low, high)


def _shapes(steps: Sequence[Step]) -> tuple[str, ...]:
    timed = any(step.value is not None for step in steps)
    failed = any(step.value is None for step in steps)
    return (*([str(Provenance.MEASURED)] if timed else []), *([symbols.OOM] if failed else []))


def _whole_ticks(x: Scale, last: int) -> tuple[float, ...]:
    """Probe numbers: whole ones, the first and the last among them where they have room."""
    wanted = {t for t in x.ticks(6) if t == int(t) and t >= 1} | {1.0}
    far = max(wanted, default=1.0)
    return tuple(sorted(wanted | ({float(last)} if x.at(last) - x.at(far) > 0.16 else set())))


def _line(steps: Sequence[Step], plot: Plot) -> Markup:
    """The best so far: level from probe to probe, a step up where one is better."""
    known = [(step.number, step.best) for step in steps if step.best is not None]
    if not known:
        return Markup()
    corners = [(plot.x.at(known[0][0]), plot.down(known[0][1]))]
    for (_, before), (at, best) in itertools.pairwise(known):
        if best != before:
            across = plot.x.at(at)
            corners += [(across, corners[-1][1]), (across, plot.down(best))]
    return layer(plot.height, path([*corners, (1.0, corners[-1][1])], "chart-best-line"))


def _end(steps: Sequence[Step], plot: Plot) -> Markup:
    """The best of all, as a number at the end of its line."""
    best = next((step.best for step in reversed(steps) if step.best is not None), None)
    if best is None:
        return Markup()
    return text(figure(best), "100%", plot.down(best), dx=6, dy=".35em", class_="chart-end")


def _marks(steps: Sequence[Step], plot: Plot, prefix: str, *, titled: bool) -> Iterator[Markup]:
    """All marks, a group for each kind: those that were the best lie over the others."""
    for kind in ("chart-is-out", "chart-is-other", "chart-is-best"):
        these = [step for step in steps if _kind(step) == kind]
        if these:
            marks = (_mark(step, plot, prefix, titled=titled) for step in these)
            yield element("g", *marks, class_=kind)


def _kind(step: Step) -> str:
    if step.value is None:
        return "chart-is-out"
    return "chart-is-best" if step.value == step.best else "chart-is-other"


def _mark(step: Step, plot: Plot, prefix: str, *, titled: bool) -> Markup:
    failed = step.value is None
    down = plot.height if step.value is None else plot.down(step.value)
    said = figure(step.value) if step.value is not None else step.outcome
    words = f"{step.number}: {cut(step.label, 90)}: {said}"
    title = (element("title", words),) if titled else ()
    return element(
        "use",
        *title,
        href=f"#{prefix}-{symbols.OOM if failed else Provenance.MEASURED}",
        x=percent(plot.x.at(step.number)),
        y=number(round(down, 1)),
    )


def _whiskers(steps: Sequence[Step], plot: Plot) -> Iterator[tuple[float, float, float, float]]:
    for step in steps:
        if step.low is not None and step.high is not None and step.low < step.high:
            across = plot.x.at(step.number)
            yield across, plot.down(step.low), across, plot.down(step.high)


def _keys(steps: Sequence[Step], prefix: str, shapes: Sequence[str]) -> list[tuple[Markup, str]]:
    words = {
        symbols.OOM: ("chart-is-out", "ended without a speed"),
        Provenance.MEASURED: ("chart-is-other", "a probe"),
    }
    keys = [(symbol_key(f"{prefix}-{name}", words[name][0]), words[name][1]) for name in shapes]
    if any(step.best is not None for step in steps):
        keys.append((line_key("chart-best-line"), "best so far"))
    return keys


def _description(steps: Sequence[Step], y_label: str) -> str:
    failed = sum(step.value is None for step in steps)
    best = next((step.best for step in reversed(steps) if step.best is not None), None)
    said = [f"{len(steps)} probes ended" if steps else "No probe has ended yet"]
    said += [f"{failed} of them without a speed"] if failed else []
    said += [f"the best makes {figure(best)} {y_label}"] if best is not None else []
    return "; ".join(said) + "."
