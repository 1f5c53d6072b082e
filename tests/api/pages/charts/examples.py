"""Charts to test, and what tests read out of their markup."""

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup

from api.pages.charts import (
    Bar,
    Effect,
    EffectValue,
    Interval,
    Mark,
    MarkKind,
    Part,
    Step,
    memory_bar,
    progress,
    scatter,
    small_multiples,
)
from tuner.quantity import Provenance

HOSTILE = '</title><script>alert("x")</script>&\u202ekcab \' مرحبا 🧑‍💻 ]]> \x00\ud800' + "x" * 200
"""Markup, quotes, other directions, emoji, what XML forbids, and no end."""

NAMES = ("parameters", "optimizer state", "activations", "logits and loss", "temporaries")


def about(value: float, share: float = 0.02) -> Interval:
    """A number with an interval of a share to each side."""
    return Interval(value=value, low=value * (1 - share), high=value * (1 + share))


def mark(number: int, memory: float | None, speed: float | None, **changes: object) -> Mark:
    """A measured settings that fits."""
    values: dict[str, object] = {
        "id": f"s{number}",
        "href": f"/studies/0123456789ab/probes/{number}",
        "label": f"full_shard, micro batch {number}",
        "x": None if memory is None else about(memory, 0.01),
        "y": None if speed is None else about(speed),
        "kind": MarkKind.FITS,
        "provenance": Provenance.MEASURED,
        "on_front": False,
        "is_best": False,
    }
    return Mark(**{**values, **changes})  # type: ignore[arg-type]


MARKS = (
    mark(1, 22.4, 5210, on_front=True),
    mark(2, 58.2, 9412, on_front=True, is_best=True),
    mark(3, 44.7, 8630, on_front=True, provenance=Provenance.EMULATED),
    mark(4, 63.0, 8900, provenance=Provenance.PREDICTED),
    mark(5, 70.0, 9100, provenance=Provenance.TRANSFERRED),
    mark(6, 85.0, 9900, provenance=Provenance.PREDICTED, kind=MarkKind.OVER_LIMIT),
    mark(7, 82.0, None, kind=MarkKind.OOM),
    mark(8, None, None, kind=MarkKind.OOM),
    mark(9, 500.0, None, kind=MarkKind.OOM),
    mark(10, 30.0, None, kind=MarkKind.OTHER),
    mark(11, None, None, kind=MarkKind.OTHER),
)


def scattered(marks: tuple[Mark, ...], **changes: object) -> Markup:
    """A scatter of GiB and tokens/s with a limit of 76 GiB."""
    values = {
        "limit": 76.0,
        "x_label": "allocated, GiB",
        "y_label": "tokens/s per GPU",
        "title": "Memory and speed",
    }
    return scatter(marks, **{**values, **changes})  # type: ignore[arg-type]


def bar(*sizes: float, **changes: object) -> Bar:
    """Sizes in GiB against 76 GiB of 80."""
    values: dict[str, object] = {
        "label": "Peak memory of a GPU",
        "unit": "GiB",
        "limit": 76.0,
        "limit_label": "limit 76.0 GiB",
        "headroom": 4.0,
        "parts": tuple(Part(name=n, value=v) for n, v in zip(NAMES, sizes, strict=False)),
    }
    return Bar(**{**values, **changes})  # type: ignore[arg-type]


def steps(*speeds: float | None) -> tuple[Step, ...]:
    """Probes with these speeds, in order."""
    found: list[Step] = []
    best: float | None = None
    for number, speed in enumerate(speeds, start=1):
        best = max((s for s in (best, speed) if s is not None), default=None)
        step = Step(
            number=number,
            value=speed,
            low=None if speed is None else speed * 0.98,
            high=None if speed is None else speed * 1.02,
            best=best,
            outcome="oom" if speed is None else "ok",
            label=f"full_shard, micro batch {number}",
        )
        found.append(step)
    return tuple(found)


def effect_value(
    value: str, speed: float | None, memory: float | None = None, **changes: object
) -> EffectValue:
    """One value of a knob, measured."""
    values: dict[str, object] = {
        "value": value,
        "speed": None if speed is None else about(speed),
        "memory": memory,
        "is_best": False,
        "note": "",
    }
    return EffectValue(**{**values, **changes})  # type: ignore[arg-type]


EFFECTS = (
    Effect(
        knob="sharding",
        values=(
            effect_value("ddp", None, note="out of memory"),
            effect_value("shard_grad_op", 8900, 61.2),
            effect_value("full_shard", 9412, 58.2, is_best=True),
        ),
    ),
    Effect(
        knob="micro_batch_size",
        values=(
            effect_value("2", 7420, 31.0),
            effect_value("4", 9412, 58.2, is_best=True),
            effect_value("8", 9600, 88.1, note="over the limit", provenance=Provenance.PREDICTED),
        ),
    ),
)


def knobs(effects: tuple[Effect, ...], **changes: object) -> Markup:
    """Their small multiples."""
    values = {
        "speed_label": "tokens/s per GPU",
        "memory_label": "memory, GiB",
        "title": "What each knob does",
    }
    return small_multiples(effects, **{**values, **changes})  # type: ignore[arg-type]


def everything() -> dict[str, Markup]:
    """One chart of each kind, by its name."""
    return {
        "memory": memory_bar(bar(3.7, 14.9, 21.4, 9.8, 0.05, interval=about(49.85, 0.05))),
        "scatter": scattered(MARKS),
        "progress": progress(
            steps(6400, 6100, 9150, None, 9375, 7000), y_label="tokens/s per GPU", title="Search"
        ),
        "knobs": knobs(EFFECTS),
    }


def hostile() -> dict[str, Markup]:
    """The same of words that nobody should trust."""
    bad = {"id": HOSTILE, "label": HOSTILE, "href": "/" + HOSTILE}
    part = Part(name=HOSTILE, value=1.0)
    step = Step(number=1, value=1, low=1, high=1, best=1, outcome=HOSTILE, label=HOSTILE)
    value = effect_value(HOSTILE, 5.0, 1.0, note=HOSTILE)
    names = {"label": HOSTILE, "unit": HOSTILE, "limit_label": HOSTILE}
    labels = {"x_label": HOSTILE, "y_label": HOSTILE, "title": HOSTILE}
    return {
        "memory": memory_bar(bar(parts=(part,), **names), prefix=HOSTILE),
        "scatter": scattered((mark(1, 40, 5000, is_best=True, **bad),), **labels, prefix=HOSTILE),
        "progress": progress((step,), y_label=HOSTILE, title=HOSTILE, prefix=HOSTILE),
        "knobs": knobs(
            (Effect(knob=HOSTILE, values=(value,)),),
            speed_label=HOSTILE,
            memory_label=HOSTILE,
            title=HOSTILE,
            prefix=HOSTILE,
        ),
    }


def parsed(markup: Markup) -> Element:
    """Its elements; raises where it is not well-formed."""
    return ElementTree.fromstring(str(markup).encode())


def with_class(root: Element, name: str) -> Iterator[Element]:
    """Elements of a class."""
    return (e for e in root.iter() if name in (e.get("class") or "").split())


def words(root: Element, class_: str) -> list[str]:
    """The words of the elements of a class."""
    return ["".join(e.itertext()) for e in with_class(root, class_)]


def share(place: str) -> float:
    """``34.5%`` as 0.345; what is not a percentage is wrong."""
    assert place.endswith("%"), place
    return float(place[:-1]) / 100
