import pytest


@pytest.fixture
def sweep(benchmark):
    return benchmark("sweep")


def test_every_second_workload_is_held_back(sweep) -> None:
    halves = {}
    for run in sweep.nanotron_runs():
        halves.setdefault((run.model, run.gpus), set()).add(run.fitted_on)
    assert all(len(half) == 1 for half in halves.values())
    for (model, gpus), half in halves.items():
        other = "8B" if model == "1B" else "1B"
        assert halves.get((model, 2 * gpus), half ^ {True, False}) != half
        assert halves.get((other, gpus), half ^ {True, False}) != half


def test_failed_runs_have_no_figures_and_others_have_a_speed(sweep) -> None:
    runs = sweep.nanotron_runs()
    assert len(runs) == 1641
    assert {run.memory_gib for run in runs if not run.ok} == {None}
    assert {run.step_time_s for run in runs if not run.ok} == {None}
    assert all(run.tokens_per_s > 0 for run in runs if run.ok)


def test_a_speed_is_the_one_of_the_table(sweep) -> None:
    run = next(run for run in sweep.nanotron_runs() if run.ok)
    with (sweep.DATA / "nanotron_sweep_h100.csv").open() as file:
        rows = list(sweep.csv.DictReader(file))
    row = next(row for row in rows if row["outcome"] == "ok")
    assert run.tokens_per_s == pytest.approx(float(row["tokens_per_s_per_gpu"]))


def test_vtrains_batches_are_what_its_settings_make(sweep) -> None:
    for run in sweep.vtrain_runs():
        settings = run.settings
        micro = settings.micro_batch_size * settings.gradient_accumulation_steps
        assert run.workload.global_batch_size == micro * settings.data_parallel_size(run.gpus)
