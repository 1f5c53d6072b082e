from tuner.planner.words import change_text, describe, probes_text, seconds_text
from tuner.settings import Settings, parse_settings


def test_settings_are_described_by_what_matters_and_can_be_read_back() -> None:
    assert describe(Settings()) == "sharding=ddp,micro_batch_size=1,gradient_accumulation_steps=1"
    settings = parse_settings("sharding=full_shard,tp_size=2,sync_each_batch=false")
    assert parse_settings(describe(settings)) == settings
    assert "tp_size=2" in describe(settings)
    assert "cpu_offload" not in describe(settings)


def test_small_numbers_have_no_exponent() -> None:
    assert seconds_text(0.0000123) == "0.000012 s"
    assert seconds_text(999.9) == "1000 s"


def test_changes_of_time_and_probes() -> None:
    assert change_text(1.004) == "0.4% longer"
    assert change_text(1.25) == "25% longer"
    assert change_text(2.0) == "100% longer"
    assert change_text(0.8) == "20% shorter"
    assert probes_text([3, 9]) == "#3, #9"
