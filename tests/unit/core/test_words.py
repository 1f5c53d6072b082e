from tuner.core.configuration import Settings, parse_settings
from tuner.core.words import (
    change_range_text,
    change_text,
    describe,
    probes_text,
    rough_duration_text,
    seconds_text,
)


def test_settings_are_described_by_what_matters_and_can_be_read_back():
    assert describe(Settings()) == "sharding=ddp,micro_batch_size=1,gradient_accumulation_steps=1"
    settings = parse_settings("sharding=full_shard,tp_size=2,sync_each_batch=false")
    assert parse_settings(describe(settings)) == settings
    assert "tp_size=2" in describe(settings)
    assert "cpu_offload" not in describe(settings)


def test_small_numbers_have_no_exponent():
    assert seconds_text(0.0000123) == "0.000012 s"
    assert seconds_text(999.9) == "1000 s"


def test_changes_of_time_and_probes():
    assert change_text(1.004) == "0.4% longer"
    assert change_text(1.25) == "25% longer"
    assert change_text(2.0) == "100% longer"
    assert change_text(0.8) == "20% shorter"
    assert probes_text([3, 9]) == "#3, #9"


def test_ranges_of_changes():
    assert change_range_text(1.2, 1.3) == "20% to 30% longer"
    assert change_range_text(0.7, 0.8) == "20% to 30% shorter"
    assert change_range_text(0.99, 1.02) == "1.0% shorter to 2.0% longer"


def test_durations():
    assert [rough_duration_text(s) for s in (2, 40, 89, 95, 5000, 86_400, 432_000)] == [
        "2.0 s",
        "40 s",
        "89 s",
        "1.6 min",
        "83 min",
        "24 h",
        "5.0 days",
    ]
