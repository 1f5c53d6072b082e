from collections import Counter

import pytest


@pytest.fixture
def fit(benchmark):
    return benchmark("fit_reserved")


def test_the_catalogue_has_what_the_fit_gives(fit) -> None:
    for row in fit.rows(fit.tunings()):
        assert row["catalogue"] == round(row["fit"], 2), row["constant"]


def test_the_fit_is_of_as_many_runs_as_the_catalogue_says(fit) -> None:
    runs = fit.tunings()
    assert len(fit.usable(runs, alone=True)) == 15
    by_ranks = Counter(run.gpus for run in fit.usable(runs, alone=False))
    assert by_ranks == {2: 25, 4: 17, 8: 8}
    assert round(fit.least_outside_mib(runs)) == 940


def test_a_quantile_has_its_share_of_the_values_below(fit) -> None:
    values = [float(value) for value in range(100)]
    assert [fit.quantile(values, share) for share in (0.1, 0.5, 0.9)] == [10, 50, 90]


def test_runs_that_reserve_more_move_the_constants_of_their_ranks(fit) -> None:
    runs = [
        fit.Tuning(gpus=gpus, nvidia_smi_mib=1.5 * 20_000 + outside, allocated_bytes=20_000 * 2**20)
        for gpus, outside in ((1, 500), (2, 1000), (8, 1000))
    ]
    assert set(fit.fitted(runs).values()) == {1.5}
    more = fit.Tuning(gpus=4, nvidia_smi_mib=41_000, allocated_bytes=20_000 * 2**20)
    found = fit.fitted([*runs, more, more, more])
    assert found["reserved_fsdp1_factor"] == 2
    assert found["reserved_factor"] == 1.5


def test_full_devices_are_left_out(fit) -> None:
    full = fit.Tuning(gpus=2, nvidia_smi_mib=77_000, allocated_bytes=2**30)
    assert fit.usable([full], alone=False) == []


def test_the_catalogue_has_what_torchs_allocator_shows(fit) -> None:
    for row in fit.allocator_fits(fit.allocator_rows()):
        assert row["catalogue"] == pytest.approx(row["fit"], abs=0.006), row["constant"]


def test_settings_are_told_apart_by_sharding_and_checkpointing(fit) -> None:
    def row(sharding: str, tp_size: int, checkpointing: str, share: float) -> dict:
        return {"sharding": sharding, "tp_size": tp_size, "activation_checkpointing": checkpointing,
                "allocated_bytes": 100, "reserved_bytes": 100 * share}  # fmt: skip

    found = fit.of_class([
        row("full_shard", 1, "full", 4.0), row("full_shard", 1, "none", 1.0),
        row("full_shard", 2, "full", 2.0), row("ddp", 1, "full", 3.0),
    ])  # fmt: skip
    assert found == {"reserved_checkpointed": [4.0], "reserved_several": [1.0, 2.0, 3.0]}


def test_the_interval_of_dry_runs_holds_what_torchs_allocator_shows(fit) -> None:
    dry_run, arithmetic = fit.over_predicted(fit.allocator_rows())
    figures = fit.default_costs().memory
    for row, (low, high) in ((dry_run, figures.dry_run), (arithmetic, figures.arithmetic)):
        assert low <= row["10%"] <= row["90%"] <= high
    assert dry_run["runs"] >= 40
