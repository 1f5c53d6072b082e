"""Settings and numbers as people read them."""

from collections.abc import Iterable

from tuner.settings import Settings

_ALWAYS = ("sharding", "micro_batch_size", "gradient_accumulation_steps")
_BATCH = ("micro_batch_size", "gradient_accumulation_steps")
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


def describe_class(settings: Settings) -> str:
    """As :func:`describe`, of the settings of any batch sizes: without these."""
    parts = describe(settings).split(",")
    return ",".join(part for part in parts if part.partition("=")[0] not in _BATCH)


def seconds_text(seconds: float) -> str:
    """Seconds, to three digits."""
    return f"{_digits(seconds)} s"


def change_text(ratio: float) -> str:
    """What a ratio of times means: ``25% longer`` of 1.25, ``20% shorter`` of 0.8."""
    percent = abs(ratio - 1) * 100
    digits = f"{percent:.1f}" if percent < 9.95 else f"{percent:.0f}"
    return f"{digits}% {'longer' if ratio >= 1 else 'shorter'}"


def probes_text(ids: Iterable[int]) -> str:
    """``#3`` or ``#3, #9``."""
    return ", ".join(f"#{number}" for number in ids)


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text
