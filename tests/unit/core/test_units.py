import pytest

from tuner import text as units
from tuner.core.words import speed_text
from tuner.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("1h30m", 5400), (" 2M ", 120)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert units.read_duration("budget", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5m", "10 minutes", "m", "1d", "nan", "9999999h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^budget: got "):
        units.read_duration("budget", text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * 2**30),
        ("0.5 gib", 2**29),
        ("500MiB", 500 * 2**20),
        ("80GB", 80 * 10**9),
        ("1048576", 2**20),
        ("12b", 12),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert units.read_size("memory_limit", text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "-1GiB", "4 GiB left", "4g", "inf", "2048TiB", "1e9", "80"]
)
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^memory_limit: got "):
        units.read_size("memory_limit", text)


@pytest.mark.parametrize("text", ["1", "0.05", "0", "0.999"])
def test_shares_end_below_one(text: str) -> None:
    if text == "1":
        with pytest.raises(UsageError, match=r"^headroom: got '1'; "):
            units.read_share("headroom", text)
    else:
        assert units.read_share("headroom", text) == float(text)


@pytest.mark.parametrize("text", ["", "0", "-3", "1.5", "ten", "1_000", "9" * 10])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^max_probes: got .*; must be a positive whole number"):
        units.read_whole("max_probes", text)


@pytest.mark.parametrize("text", ["0", "-1", "1e400", "nan"])
def test_other_seconds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^max_gpu_seconds: got "):
        units.read_seconds("max_gpu_seconds", text)
    assert units.read_seconds("max_gpu_seconds", "0.5") == 0.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.84, "0.8 s"), (9.96, "10 s"), (59.6, "1:00 min"), (65, "1:05 min"), (3725, "1:02:05 h")],
)
def test_durations_are_shown(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


def test_numbers_keep_three_digits() -> None:
    assert [speed_text(v) for v in (None, 3.456, 99.94, 1243.4)] == [
        "-",
        "3.46",
        "99.9",
        "1,243",
    ]
    assert [units.time_text(v) for v in (None, 0.0123, 1.5, 123.4)] == [
        "-",
        "0.0123",
        "1.50",
        "123",
    ]


def test_moments_and_counts_are_shown() -> None:
    assert units.moment_text("2026-11-21T06:30:12+00:00") == "2026-11-21 06:30"
    assert units.moment_text("") == "-"
    assert (units.count_text(1, "probe"), units.count_text(2, "probe")) == ("1 probe", "2 probes")
