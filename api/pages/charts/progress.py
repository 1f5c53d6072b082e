"""Best so far against probes: how the search got to its answer."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from api.pages.charts.frame import (
    Plot,
    chart,
    label,
    legend,
    line_key,
    nothing,
    plot_svg,
    symbol_key,
    whiskers,
    x_axis,
    y_axis,
)
from api.pages.charts.scales import Scale, cut, figure, interval_of, reach, scale_for
from api.pages.charts.scatter import short_words
from api.pages.charts.svg import (
    OOM,
    element,
    layer,
    number,
    percent,
    staircase,
    symbol,
    text,
    use,
)
from tuner.core.quantity import Provenance
from tuner.results import BestSoFar

_HEIGHT_PX = 200.0
# With more probes than this, marks are smaller and have no words of their own.
_TITLED = 120
_TITLE = "Speed of each probe, and the best so far"
_OTHER, _OUT, _BEST = "chart-is-other", "chart-is-out", "chart-is-best"


def progress(ended: Sequence[BestSoFar], *, per: str, prefix: str = "progress") -> Markup:
    """Each ended probe as a mark, those without a speed as crosses on the axis, the best as a line.

    Args:
        ended: the probes, in the order of their numbers.
        per: what a rank is to its user.
        prefix: what element ids start with; unique in a page.
    """
    y_label = f"tokens/s per {per}"
    last = max((one.number for one in ended), default=1)
    best = next((one.best for one in reversed(ended) if one.best is not None), None)
    speeds = [speed for one in ended for speed in _speeds(one)]
    x = Scale(low=0.5, high=last + 0.5)
    plot = Plot(x=x, y=scale_for(speeds), height=_HEIGHT_PX)
    is_titled = len(ended) <= _TITLED
    failed = sum(one.tokens_per_s_per_gpu.value is None for one in ended)
    keys = [(str(Provenance.MEASURED), _OTHER, "a probe")] if failed < len(ended) else []
    keys += [(OOM, _OUT, "ended without a speed")] if failed else []
    size = 1.0 if is_titled else 0.6
    symbols = [symbol(prefix, key[0], size=size) for key in keys]
    content = [element("defs", *symbols) if symbols else Markup()]
    if speeds:
        content.append(y_axis(plot, count=6))
    else:
        empty = "no probe has a speed yet" if ended else "no probe has ended yet"
        content.append(nothing(empty, _HEIGHT_PX))
    content += [
        x_axis(x, _HEIGHT_PX, ticks=_whole_ticks(x, last)),
        label(y_label, 0, -14, class_="chart-words chart-from-edge"),
        label("probe", "100%", _HEIGHT_PX, dy="3em", text_anchor="end"),
    ]
    if is_titled:
        content.append(whiskers(list(_whiskers(ended, plot)), _HEIGHT_PX))
    if best is not None:
        content.append(_line(ended, plot))
    # A group for each kind: those that were the best lie over the others.
    for kind in (_OUT, _OTHER, _BEST):
        if these := [one for one in ended if _kind(one) == kind]:
            marks = (_mark(one, plot, prefix, is_titled=is_titled) for one in these)
            content.append(element("g", *marks, class_=kind))
    if best is not None:
        place = {"dx": 6, "dy": ".35em", "class_": "chart-end"}
        content.append(text(figure(best), "100%", plot.down(best), **place))
    said = [f"{len(ended)} probes ended" if ended else "No probe has ended yet"]
    said += [f"{failed} of them without a speed"] if failed else []
    said += [f"the best makes {figure(best)} {y_label}"] if best is not None else []
    drawn = plot_svg(prefix, _TITLE, "; ".join(said) + ".", _HEIGHT_PX, content)
    shown = [(symbol_key(f"{prefix}-{name}", class_), words) for name, class_, words in keys]
    shown += [(line_key("chart-best-line"), "best so far")] if best is not None else []
    return chart("progress", drawn, legend(shown))


def _speeds(one: BestSoFar) -> Iterator[float]:
    """The numbers of a probe that the axis must show."""
    if one.best is not None:
        yield one.best
    if found := interval_of(one.tokens_per_s_per_gpu):
        yield from reach(found)


def _whole_ticks(x: Scale, last: int) -> tuple[float, ...]:
    """Probe numbers: whole ones, the first and the last among them where they have room."""
    wanted = {t for t in x.ticks(6) if t == int(t) and t >= 1} | {1.0}
    far = max(wanted)
    return tuple(sorted(wanted | ({float(last)} if x.at(last) - x.at(far) > 0.16 else set())))


def _line(ended: Sequence[BestSoFar], plot: Plot) -> Markup:
    """The best so far: level from probe to probe, a step where it changes."""
    steps: list[tuple[float, float]] = []
    before: float | None = None
    for one in ended:
        if one.best is not None and one.best != before:
            steps.append((plot.x.at(one.number), plot.down(one.best)))
            before = one.best
    return layer(plot.height, staircase(steps, 1.0, "chart-best-line"))


def _kind(one: BestSoFar) -> str:
    if one.tokens_per_s_per_gpu.value is None:
        return _OUT
    return _BEST if one.tokens_per_s_per_gpu.value == one.best else _OTHER


def _mark(one: BestSoFar, plot: Plot, prefix: str, *, is_titled: bool) -> Markup:
    value = one.tokens_per_s_per_gpu.value
    down = plot.height if value is None else plot.down(value)
    found = str(one.outcome).replace("_", " ") if value is None else figure(value)
    words = f"{one.number}: {cut(short_words(one.words), 90)}: {found}"
    title = (element("title", words),) if is_titled else ()
    shape = OOM if value is None else Provenance.MEASURED
    x, y = percent(plot.x.at(one.number)), number(round(down, 1))
    return use(f"{prefix}-{shape}", x, y, *title)


def _whiskers(
    ended: Sequence[BestSoFar], plot: Plot
) -> Iterator[tuple[float, float, float, float]]:
    for one in ended:
        speed = interval_of(one.tokens_per_s_per_gpu)
        if speed and speed.low < speed.high:
            across = plot.x.at(one.number)
            yield across, plot.down(speed.low), across, plot.down(speed.high)
