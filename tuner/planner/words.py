"""Settings and numbers as people read them."""

from collections.abc import Iterable

from tuner.settings import Settings

GIB = 2**30

_ALWAYS = ("sharding", "micro_batch_size", "gradient_accumulation_steps")
_DEFAULTS = Settings().as_dict()


def describe(settings: Settings) -> str:
    """``knob=value,...`` of what matters: batch sizes, sharding, and knobs off their default."""
    return ",".join(
        part
        for part, (knob, value) in zip(
            str(settings).split(","), settings.as_dict().items(), strict=True
        )
        if knob in _ALWAYS or value != _DEFAULTS[knob]
    )


def gib_text(bytes_: float) -> str:
    """Bytes in GiB, to three digits."""
    return f"{_digits(bytes_ / GIB)} GiB"


def seconds_text(seconds: float) -> str:
    """Seconds, to three digits."""
    return f"{_digits(seconds)} s"


def percent_text(ratio: float) -> str:
    """How much above 1 a ratio is; ``0.4%`` below one percent."""
    percent = abs(ratio - 1) * 100
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def probes_text(ids: Iterable[int]) -> str:
    """``#3`` or ``#3, #9``."""
    return ", ".join(f"#{number}" for number in ids)


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text
