"""Best so far against probes: how the search got to its answer."""

from collections.abc import Sequence

from markupsafe import Markup

from api.pages.charts.scales import (
    Scale,
    cut,
    figure,
    interval_of,
    reach,
    scale_for,
    short_words,
)
from api.pages.charts.svg import (
    OOM,
    Plot,
    chart,
    element,
    label,
    layer,
    legend,
    line_key,
    nothing,
    number,
    percent,
    plot_svg,
    staircase,
    symbol_key,
    symbols,
    text,
    use,
    whiskers,
    x_axis,
    y_axis,
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

    ``per`` is the word for a rank; ids of elements start with ``prefix``, unique in a page.
    """
    y_label = f"tokens/s per {per}"
    last = max((one.number for one in ended), default=1)
    best = next((one.best for one in reversed(ended) if one.best is not None), None)
    found = [interval_of(one.tokens_per_s_per_gpu) for one in ended]
    speeds = [one.best for one in ended if one.best is not None]
    speeds += [end for speed in found if speed for end in reach(speed)]
    x = Scale(low=0.5, high=last + 0.5)
    plot = Plot(x=x, y=scale_for(speeds), height=_HEIGHT_PX)
    is_titled = len(ended) <= _TITLED
    failed = sum(one.tokens_per_s_per_gpu.value is None for one in ended)
    keys = [(str(Provenance.MEASURED), _OTHER, "a probe")] if failed < len(ended) else []
    keys += [(OOM, _OUT, "ended without a speed")] if failed else []
    content = [symbols(prefix, [key[0] for key in keys], size=1.0 if is_titled else 0.6)]
    if speeds:
        content.append(y_axis(plot, count=6))
    else:
        empty = "no probe has a speed yet" if ended else "no probe has ended yet"
        content.append(nothing(empty, _HEIGHT_PX))
    # Whole numbers of probes, the first and the last among them where they have room.
    ticks = {tick for tick in x.ticks(6) if tick == int(tick) and tick >= 1} | {1.0}
    ticks |= {float(last)} if x.at(last) - x.at(max(ticks)) > 0.16 else set()
    content += [
        x_axis(x, _HEIGHT_PX, ticks=sorted(ticks)),
        label(y_label, 0, -14, class_="chart-words chart-from-edge"),
        label("probe", "100%", _HEIGHT_PX, dy="3em", text_anchor="end"),
    ]
    if is_titled:
        crosses = [
            (x.at(one.number), plot.down(s.low), x.at(one.number), plot.down(s.high))
            for one, s in zip(ended, found, strict=True)
            if s and s.low < s.high
        ]
        content.append(whiskers(crosses, _HEIGHT_PX))
    if best is not None:
        steps: list[tuple[float, float]] = []
        before: float | None = None
        for one in ended:
            if one.best is not None and one.best != before:
                steps.append((x.at(one.number), plot.down(one.best)))
                before = one.best
        content.append(layer(_HEIGHT_PX, staircase(steps, 1.0, "chart-best-line")))
    # A group for each kind: those that were the best lie over the others.
    groups: dict[str, list[Markup]] = {_OUT: [], _OTHER: [], _BEST: []}
    for one in ended:
        value = one.tokens_per_s_per_gpu.value
        kind = _OUT if value is None else _BEST if value == one.best else _OTHER
        groups[kind].append(_mark(one, plot, prefix, is_titled=is_titled))
    content += [element("g", *marks, class_=kind) for kind, marks in groups.items() if marks]
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


def _mark(one: BestSoFar, plot: Plot, prefix: str, *, is_titled: bool) -> Markup:
    value = one.tokens_per_s_per_gpu.value
    down = plot.height if value is None else plot.down(value)
    found = str(one.outcome).replace("_", " ") if value is None else figure(value)
    words = f"{one.number}: {cut(short_words(one.words), 90)}: {found}"
    title = (element("title", words),) if is_titled else ()
    shape = OOM if value is None else Provenance.MEASURED
    x, y = percent(plot.x.at(one.number)), number(round(down, 1))
    return use(f"{prefix}-{shape}", x, y, *title)
