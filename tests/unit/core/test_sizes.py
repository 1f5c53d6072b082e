import pytest

from tuner.text import size_text


@pytest.mark.parametrize(
    ("gib", "text"),
    [
        (0, "0.00 KiB"),
        (1, "1.00 GiB"),
        (0.12345, "126 MiB"),
        (0.00012345, "129 KiB"),
        (79.96, "80.0 GiB"),
        (2048, "2048 GiB"),
    ],
)
def test_sizes_are_shown_with_three_digits(gib: float, text: str) -> None:
    assert size_text(gib * 2**30) == text
