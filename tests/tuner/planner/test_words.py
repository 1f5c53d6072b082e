import pytest

from tuner.planner.words import describe, gib_text, percent_text, probes_text, seconds_text
from tuner.settings import Settings, parse_settings


def test_settings_are_described_by_what_matters_and_can_be_read_back() -> None:
    assert describe(Settings()) == "sharding=ddp,micro_batch_size=1,gradient_accumulation_steps=1"
    settings = parse_settings("sharding=full_shard,tp_size=2,sync_each_batch=false")
    assert parse_settings(describe(settings)) == settings
    assert "tp_size=2" in describe(settings)
    assert "cpu_offload" not in describe(settings)


@pytest.mark.parametrize(
    ("gib", "text"),
    [(0, "0 GiB"), (1, "1 GiB"), (0.12345, "0.123 GiB"), (79.96, "80 GiB"), (2048, "2048 GiB")],
)
def test_memory(gib: float, text: str) -> None:
    assert gib_text(gib * 2**30) == text


def test_small_numbers_have_no_exponent() -> None:
    assert seconds_text(0.0000123) == "0.000012 s"
    assert seconds_text(999.9) == "1000 s"


def test_percent_and_probes() -> None:
    assert percent_text(1.004) == "0.4%"
    assert percent_text(1.25) == "25%"
    assert percent_text(2.0) == "100%"
    assert probes_text([3, 9]) == "#3, #9"
