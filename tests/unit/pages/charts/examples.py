"""Charts to test, and what tests read out of their markup."""

from xml.etree import ElementTree

from api.pages.charts import progress, scatter, small_multiples
from api.pages.charts.memory import Part, stacked_bar
from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.results import BestSoFar, KnobEffect, KnobValue, Point, PointKind

HOSTILE = '</title><script>alert("x")</script>&\u202ekcab \' مرحبا 🧑‍💻 ]]> \x00\ud800' + "x" * 200
"""Markup, quotes, other directions, emoji, what XML forbids, and no end."""

NAMES = ("parameters", "optimizer state", "activations", "logits and loss", "temporaries")


def about(value, share=0.02):
    if value is None:
        return UNKNOWN
    ends = {"low": value * (1 - share), "high": value * (1 + share)}
    return Quantity(value=value, provenance=Provenance.MEASURED, **ends)


def point(number, memory, speed, **changes):
    values: dict[str, object] = {
        "settings": Settings(),
        "words": f"full_shard,micro batch {number}",
        "memory_gib": about(memory, 0.01),
        "allocated_gib": UNKNOWN,
        "tokens_per_s_per_gpu": about(speed),
        "step_time_s": UNKNOWN,
        "kind": PointKind.FITS,
        "provenance": Provenance.MEASURED,
        "probes": (number,),
        "outcome": Outcome.OK,
        "on_front": False,
        "is_best": False,
        "overshoot_gib": None,
        "detail": "",
    }
    return Point(**{**values, **changes})  # type: ignore[arg-type]


POINTS = (
    point(0, 22.4, 5210, on_front=True),
    point(1, 58.2, 9412, on_front=True, is_best=True),
    point(2, 44.7, 8630, on_front=True, provenance=Provenance.EMULATED),
    point(3, 63.0, 8900, provenance=Provenance.PREDICTED),
    point(4, 70.0, 9100, provenance=Provenance.TRANSFERRED),
    point(5, 85.0, 9900, provenance=Provenance.PREDICTED, kind=PointKind.OVER_LIMIT),
    point(6, 82.0, None, kind=PointKind.OOM),
    point(7, None, None, kind=PointKind.OOM),
    point(8, 500.0, None, kind=PointKind.OOM),
    point(9, 30.0, None, kind=PointKind.OTHER),
    point(10, None, None, kind=PointKind.OTHER),
)


def path_of(found):
    return f"?probe={found.probes[0]}"


def scattered(points, path=path_of, **changes):
    values: dict[str, object] = {"limit_bytes": 76 * GIB, "per": "GPU", **changes}
    return scatter(points, path, **values)  # type: ignore[arg-type]


def bar(*sizes, **changes):
    parts = [Part(name, size) for name, size in zip(NAMES, sizes, strict=False)]
    values: dict[str, object] = {
        "parts": parts,
        "title": "Peak memory of a GPU",
        "unit": "GiB",
        "limit": 76.0,
        "limit_label": "limit 76.0 GiB",
        "headroom": 4.0,
        **changes,
    }
    return stacked_bar(**values)  # type: ignore[arg-type]


def ended(*speeds, **changes):
    found: list[BestSoFar] = []
    best: float | None = None
    for number, speed in enumerate(speeds, start=1):
        best = max((s for s in (best, speed) if s is not None), default=None)
        values: dict[str, object] = {
            "number": number,
            "probe_id": number,
            "settings": Settings(),
            "words": f"full_shard,micro batch {number}",
            "fidelity": Fidelity.MEASURED,
            "outcome": Outcome.OOM if speed is None else Outcome.OK,
            "fits": None,
            "tokens_per_s_per_gpu": about(speed),
            "best": best,
            "is_best": False,
            "wall_s": 0.0,
            "device_s": 0.0,
        }
        found.append(BestSoFar(**{**values, **changes}))  # type: ignore[arg-type]
    return tuple(found)


def value(shown, speed, memory=None, **changes):
    values: dict[str, object] = {
        "value": shown,
        "shown": shown,
        "settings": None,
        "tokens_per_s_per_gpu": about(speed),
        "memory_gib": about(memory, 0.0),
        "relative": None,
        "provenance": Provenance.MEASURED,
        "probes": (),
        "fits": None,
        "is_best": False,
        "differs": (),
        "note": "",
    }
    return KnobValue(**{**values, **changes})  # type: ignore[arg-type]


def effect(*values, knob="knob"):
    return KnobEffect(knob=knob, values=values)


EFFECTS = (
    effect(
        value("ddp", None, note="out of memory"),
        value("shard_grad_op", 8900, 61.2),
        value("full_shard", 9412, 58.2, is_best=True),
        knob="sharding",
    ),
    effect(
        value("2", 7420, 31.0),
        value("4", 9412, 58.2, is_best=True),
        value("8", 9600, 88.1, note="over the limit", provenance=Provenance.PREDICTED),
        knob="micro_batch_size",
    ),
)


def everything():
    return {
        "memory": bar(3.7, 14.9, 21.4, 9.8, 0.05),
        "scatter": scattered(POINTS),
        "progress": progress(ended(6400, 6100, 9150, None, 9375, 7000), per="GPU"),
        "knobs": small_multiples(EFFECTS, per="GPU"),
    }


def hostile():
    names = {"title": HOSTILE, "unit": HOSTILE, "limit_label": HOSTILE, "prefix": HOSTILE}
    marks = (point(1, 40, 5000, is_best=True, words=HOSTILE),)
    more = {"per": HOSTILE, "prefix": HOSTILE}
    one = value(HOSTILE, 5.0, 1.0, note=HOSTILE)
    return {
        "memory": bar(parts=[Part(HOSTILE, 1.0)], **names),
        "scatter": scattered(marks, lambda _: "/" + HOSTILE, **more),
        "progress": progress(ended(1.0, words=HOSTILE), **more),
        "knobs": small_multiples((effect(one, knob=HOSTILE),), **more),
    }


def parsed(markup):
    return ElementTree.fromstring(str(markup).encode())


def with_class(root, name):
    return (e for e in root.iter() if name in (e.get("class") or "").split())


def share(place):
    assert place.endswith("%"), place
    return float(place[:-1]) / 100


def coordinates(line):
    return [
        float(n)
        for n in "".join(c if c in ".0123456789" else " " for c in line.get("d", "")).split()
    ]
