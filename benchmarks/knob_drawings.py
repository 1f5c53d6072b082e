"""The pictures of ``docs/knobs.md``: memory over a step, and micro-batch sizes against speed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from math import log2
from typing import Any

from common import ROOT
from drawing import document, line, stairs, ticks, words
from plot import BLUE, GREEN, ORANGE, PURPLE, YELLOW

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT, LEFT, TOP, GAP, BELOW = 400, 300, 74, 66, 28, 80
"""Pixels: a panel, and the room around and between panels."""
ENTRY, COLUMNS = 20, 4
"""Pixels of a line of the legend, and its columns."""
SKY, GREY, LEMON = "#56B4E9", "#999999", "#F0E442"
SHORT = 48
"""The loss and the optimizer, of one moment each, have at least this part of the width: so that
they can be seen."""
SHOWN: Mapping[str, tuple[str, str]] = {
    "parameters": ("parameters", BLUE),
    "optimizer_state": ("optimizer state", SKY),
    "gradients_sharded": ("gradients, sharded", GREEN),
    "gradients_unsharded": ("gradients, whole", ORANGE),
    "gathered_parameters": ("gathered parameters", PURPLE),
    "activations": ("activations", YELLOW),
    "logits_and_loss": ("logits and loss", LEMON),
    "temporaries": ("temporaries", GREY),
}
"""What memory is for, from the bottom up: its name in the legend, and its color, of Okabe and Ito's
palette."""
LINES = {
    ("none", True): (BLUE, "", "every micro-batch synchronised"),
    ("none", False): (BLUE, "6 4", "the last one only"),
    ("full", True): (ORANGE, "", "every one, activation checkpointing"),
    ("full", False): (ORANGE, "6 4", "the last one only, activation checkpointing"),
}
"""By ``activation_checkpointing`` and ``sync_each_batch``: color, dashes, and words."""

Row = Mapping[str, Any]


def picture_of_steps(rows: Sequence[Row]) -> str:
    """Memory over an optimizer step, a panel for each value of a knob."""
    knob, limit = rows[0]["knob"], rows[0]["limit_gib"]
    highest = max(limit, *(_total(moment) for row in rows for moment in row["moments"]))
    used = [key for key in SHOWN if _most(rows, key) > 0.005 * highest]
    width = LEFT + len(rows) * (WIDTH + GAP)
    legend = -(-len(used) // COLUMNS)
    body: list[str] = []
    for i, row in enumerate(rows):
        body += _step_panel(row, LEFT + i * (WIDTH + GAP), 1.12 * highest, axis=i == 0)
    body += _legend([SHOWN[key] for key in used], TOP + HEIGHT + BELOW, width - LEFT)
    body.append(words(LEFT, 22, _said(rows[0]), anchor="start", more='font-weight="bold"'))
    return document(
        width,
        TOP + HEIGHT + BELOW + legend * ENTRY,
        f"Memory over one optimizer step with {knob} on and off",
        _in_words(rows),
        body,
    )


def _said(row: Row) -> str:
    question = f"{row['model']} on {row['cluster']}, sequence {row['sequence_length']:,}"
    return (
        f"{question}, micro-batch {row['micro_batch_size']}, {row['settings'].replace(',', ', ')}"
    )


def _in_words(rows: Sequence[Row]) -> str:
    panels = [
        f"With {row['knob']}={row['value']} the step peaks at"
        f" {max(map(_total, row['moments'])):.1f} GiB, in"
        f" {max(row['moments'], key=_total)['phase']}, mostly"
        f" {_parts(max(row['moments'], key=_total))}."
        for row in rows
    ]
    return " ".join([_said(rows[0]) + ".", *panels, f"{rows[0]['limit_gib']:.1f} GiB may be used."])


def _parts(moment: Row) -> str:
    parts = sorted(moment["gib"].items(), key=lambda part: -part[1])[:3]
    return ", ".join(f"{SHOWN[key][0]} ({gib:.1f} GiB)" for key, gib in parts)


def _total(moment: Row) -> float:
    return float(sum(moment["gib"].values()))


def _most(rows: Sequence[Row], key: str) -> float:
    return max(moment["gib"].get(key, 0.0) for row in rows for moment in row["moments"])


def _step_panel(row: Row, left: float, top_gib: float, *, axis: bool) -> Iterator[str]:
    """One value's step: areas by what memory is for, one on the other."""
    moments = row["moments"]
    lefts = _lefts(moments, left)

    def y(gib: float) -> float:
        return TOP + HEIGHT * (1 - gib / top_gib)

    yield words(left + WIDTH / 2, TOP - 14, f"{row['knob']}={row['value']}")
    for tick in ticks(top_gib):
        yield line(left, y(tick), left + WIDTH, y(tick))
        if axis:
            yield words(left - 8, y(tick) + 4, f"{tick:g}", anchor="end", kind="soft")
    feet = [0.0] * len(moments)
    for key, (_, color) in SHOWN.items():
        tops = [
            foot + moment["gib"].get(key, 0.0) for foot, moment in zip(feet, moments, strict=True)
        ]
        if tops != feet:
            path = stairs(lefts, left + WIDTH, [y(v) for v in tops], [y(v) for v in feet])
            yield f'<path d="{path}" fill="{color}"/>'
        feet = tops
    yield from _phases(moments, lefts, left + WIDTH)
    yield from _limit(row["limit_gib"], left, y(row["limit_gib"]))
    yield from _peak(moments, lefts, y)
    if axis:
        middle = TOP + HEIGHT / 2
        turned = f'transform="rotate(-90 {left - 52} {middle})"'
        yield words(left - 52, middle, "GiB on one GPU", more=turned)


def _lefts(moments: Sequence[Row], left: float) -> list[float]:
    """Where each moment starts, in pixels: layers are equally wide."""
    short = max(1.0, len(moments) / SHORT)
    widths = [short if moment["phase"] in ("loss", "optimizer") else 1.0 for moment in moments]
    return [left + WIDTH * done / sum(widths) for done in accumulate([0.0, *widths[:-1]])]


def _phases(moments: Sequence[Row], lefts: Sequence[float], right: float) -> Iterator[str]:
    """Names of the phases below the panel, each with its micro-batch; too narrow ones have none."""
    bottom = TOP + HEIGHT
    yield line(lefts[0], bottom, right, bottom, kind="edge")
    count = 1 + max(moment["micro_batch"] for moment in moments)
    ends = [*lefts, right]
    place = 0
    for (number, phase), group in groupby(moments, key=lambda m: (m["micro_batch"], m["phase"])):
        start, place = place, place + len(list(group))
        yield line(ends[place], bottom, ends[place], bottom + 6, kind="edge")
        middle = (ends[start] + ends[place]) / 2
        if ends[place] - ends[start] > 48:
            yield words(middle, bottom + 18, phase, kind="soft")
            if count > 1:
                yield words(middle, bottom + 34, f"micro-batch {number + 1}", kind="soft")
        elif phase == "optimizer":
            below = 52 if count > 1 else 18
            yield words(right, bottom + below, phase, kind="soft", anchor="end")


def _limit(gib: float, left: float, y: float) -> Iterator[str]:
    yield line(
        left, y, left + WIDTH, y, kind="limit", more='stroke-width="2" stroke-dasharray="6 4"'
    )
    text = f"limit {gib:.1f} GiB"
    yield words(left + 6, y - 6, text, anchor="start", kind="alarm")


def _peak(moments: Sequence[Row], lefts: Sequence[float], y: Any) -> Iterator[str]:
    """The highest moment, with its figure."""
    place = max(range(len(moments)), key=lambda i: _total(moments[i]))
    gib = _total(moments[place])
    right = lefts[0] + WIDTH
    x = min(max(lefts[place], lefts[0] + 40), right - 40)
    yield words(x, y(gib) - 8, f"{gib:.1f} GiB", more='font-weight="bold"')


def _legend(entries: Sequence[tuple[str, str]], top: float, width: float) -> Iterator[str]:
    for i, (name, color) in enumerate(entries):
        x, y = LEFT + (i % COLUMNS) * width / COLUMNS, top + (i // COLUMNS) * ENTRY
        yield f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{color}"/>'
        yield words(x + 18, y, name, anchor="start")


def picture_of_trade(rows: Sequence[Row]) -> str:
    """Memory to the right, speed upwards; a line for each kind of settings."""
    scale = _Scale(rows)
    body = [
        words(LEFT, 22, "llama-3.1-8b on 8 H100, global batch 128, full_shard", anchor="start",
              more='font-weight="bold"'),
        words(LEFT, 42, "Numbers are micro-batch sizes; speeds are predicted", anchor="start",
              kind="soft"),
        *_axes(scale),
    ]  # fmt: skip
    for key, (color, dashes, _) in LINES.items():
        body += _trade_line(scale, [row for row in rows if _kind(row) == key], color, dashes)
    top = scale.bottom + BELOW
    for i, (color, dashes, name) in enumerate(LINES.values()):
        style = f'stroke="{color}" stroke-width="2.5" stroke-dasharray="{dashes or "none"}"'
        x, y = LEFT + (i % 2) * 300, top + (i // 2) * ENTRY
        body.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 34}" y2="{y - 4}" {style}/>')
        body.append(words(x + 42, y, name, anchor="start"))
    return document(
        LEFT + _Scale.WIDTH + 28,
        int(top) + 2 * ENTRY,
        "Micro-batch sizes of one global batch: memory against speed",
        _trade_words(rows),
        body,
    )


class _Scale:
    """From GiB and tokens/s to pixels. Memory is logarithmic: it doubles with the micro-batch."""

    WIDTH = 700
    bottom = TOP + HEIGHT

    def __init__(self, rows: Sequence[Row]) -> None:
        values = [row["allocated_value_gib"] for row in rows]
        self.low, self.high = min(values) / 1.2, max(values) * 1.2
        self.most = 1.12 * max(row["tokens_per_s_per_gpu_value"] for row in rows)
        self.limit = rows[0]["limit_gib"]

    def x(self, gib: float) -> float:
        share = log2(gib / self.low) / log2(self.high / self.low)
        return LEFT + self.WIDTH * share

    def y(self, tokens_per_s: float) -> float:
        return TOP + HEIGHT * (1 - tokens_per_s / self.most)


def _axes(scale: _Scale) -> Iterator[str]:
    right = LEFT + scale.WIDTH
    for tick in ticks(scale.most):
        yield line(LEFT, scale.y(tick), right, scale.y(tick))
        yield words(LEFT - 8, scale.y(tick) + 4, f"{tick:,.0f}", anchor="end", kind="soft")
    for gib in (16, 32, 64, 128, 256, 512):
        if scale.low <= gib <= scale.high:
            yield line(scale.x(gib), scale.bottom, scale.x(gib), scale.bottom + 6, kind="edge")
            yield words(scale.x(gib), scale.bottom + 18, f"{gib:g}", kind="soft")
    yield line(LEFT, scale.bottom, right, scale.bottom, kind="edge")
    yield words(LEFT + scale.WIDTH / 2, scale.bottom + 36, "GiB allocated on one GPU, at the peak")
    turned = f'transform="rotate(-90 16 {TOP + HEIGHT / 2})"'
    yield words(16, TOP + HEIGHT / 2, "tokens/s per GPU", more=turned)
    x = scale.x(scale.limit)
    yield line(
        x, TOP, x, scale.bottom, kind="limit", more='stroke-width="2" stroke-dasharray="6 4"'
    )
    text = f"limit {scale.limit:.1f} GiB: what is beyond does not fit"
    yield words(x + 6, scale.bottom - 10, text, anchor="start", kind="alarm")


def _kind(row: Row) -> tuple[str, bool]:
    return row["activation_checkpointing"], row["sync_each_batch"]


def _trade_line(scale: _Scale, rows: Iterable[Row], color: str, dashes: str) -> Iterator[str]:
    points = [
        (scale.x(row["allocated_value_gib"]), scale.y(row["tokens_per_s_per_gpu_value"]), row)
        for row in rows
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    style = f'stroke="{color}" stroke-width="2.5" stroke-dasharray="{dashes or "none"}"'
    yield f'<polyline points="{path}" fill="none" {style}/>'
    for x, y, row in points:
        fill = color if row["fits"] else "none"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{color}"/>'
        place = y + 20 if dashes else y - 9
        yield words(x, place, str(row["micro_batch_size"]), kind="soft")


def _trade_words(rows: Sequence[Row]) -> str:
    said = []
    for key, (_, _, name) in LINES.items():
        of = [row for row in rows if _kind(row) == key]
        ends = (of[0], of[-1])
        said.append(
            f"{name}: "
            + " to ".join(
                f"micro-batch {row['micro_batch_size']}, {row['allocated_value_gib']:.1f} GiB,"
                f" {row['tokens_per_s_per_gpu_value']:,} tokens/s per GPU"
                for row in ends
            )
        )
    return f"{'; '.join(said)}. {rows[0]['limit_gib']:.1f} GiB may be used; filled points fit."
