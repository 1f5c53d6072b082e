"""The tables of ``docs/knobs.md``: figures of its pictures, each with its 80% interval."""

from collections.abc import Mapping
from typing import Any

from markdown import between, table

Row = Mapping[str, Any]


def filled(text: str, result: Row) -> str:
    """The page's text with all tables anew.

    Raises:
        ValueError: a marker is missing, or there twice.
    """
    for knob in dict.fromkeys(row["knob"] for row in result["steps"]):
        rows = [row for row in result["steps"] if row["knob"] == knob]
        head = (f"`{knob}`", "allocated, GiB", "fits", "tokens/s per GPU")
        text = between(text, knob, table(head, [(f"`{r['value']}`", *_figures(r)) for r in rows]))
    head = ("micro-batch", "accumulation", "`activation_checkpointing`",
            "allocated, GiB", "fits", "tokens/s per GPU")  # fmt: skip
    # Without synchronisation every row differs by the same amount, which the page says once.
    rows = [row for row in result["rows"] if row["sync_each_batch"]]
    return between(text, "micro_batch_size", table(head, [_trade(row) for row in rows]))


def _trade(row: Row) -> tuple[str, ...]:
    knobs = (row["micro_batch_size"], row["gradient_accumulation_steps"])
    return (*map(str, knobs), row["activation_checkpointing"], *_figures(row))


def _figures(row: Row) -> tuple[str, str, str]:
    gib = [row[f"allocated_{end}_gib"] for end in ("value", "low", "high")]
    speed = [row[f"tokens_per_s_per_gpu_{end}"] for end in ("value", "low", "high")]
    return (
        "{:.1f} ({:.1f} to {:.1f})".format(*gib),
        "yes" if row["fits"] else f"no, of {row['limit_gib']:.1f}",
        "{:,} ({:,} to {:,})".format(*speed),
    )
