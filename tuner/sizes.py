"""Sizes of memory as people read them."""


def size_unit(largest_bytes: float) -> tuple[str, int]:
    """The unit in which sizes up to ``largest_bytes`` read well, and its bytes."""
    units = (("GiB", 2**30), ("MiB", 2**20))
    return next((unit for unit in units if largest_bytes >= unit[1]), ("KiB", 2**10))


def size_text(size_bytes: float) -> str:
    """``1.25 GiB``, ``612 MiB`` or ``80.0 KiB``."""
    unit, divisor = size_unit(size_bytes)
    return f"{size_number(size_bytes, divisor)} {unit}"


def size_number(size_bytes: float, divisor: int) -> str:
    """A size in units of ``divisor`` bytes; three digits below 1000."""
    size = size_bytes / divisor
    return f"{size:.0f}" if size >= 100 else f"{size:.1f}" if size >= 10 else f"{size:.2f}"
