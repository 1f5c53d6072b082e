"""DeepSpeed's tuners by their published rules."""

from importlib.util import find_spec

import numpy as np
import pytest

from tuner.cost.constants import default_costs

pytestmark = pytest.mark.long

NEEDS_XGBOOST = pytest.mark.skipif(find_spec("xgboost") is None, reason="needs the extra bench")


@pytest.fixture
def tuners(benchmark):
    return benchmark("deepspeed_tuners")


@pytest.fixture
def replay(benchmark):
    module, sweep = benchmark("replay"), benchmark("sweep")
    rows = [run for run in sweep.nanotron_runs() if run.name == "1B, 32 GPUs"]
    case = module.case_of("1B, 32 GPUs", rows, default_costs(), rules=True)
    return lambda length=1000: module.Replay(case, length)


def seconds(replay) -> list[float | None]:
    return [trial.seconds for trial in replay.trials]


def test_the_grid_is_zero_stages_first(tuners, replay) -> None:
    one = replay(4)
    tuners.grid(one, 0)
    settings = [one.case.prior.settings[trial.index] for trial in one.trials]
    assert {str(s.sharding) for s in settings} == {"ddp"}
    assert settings == sorted(settings, key=lambda s: (s.tp_size, s.pp_size, s.micro_batch_size))


@pytest.mark.parametrize("seed", range(5))
def test_a_tuner_ends_after_five_without_a_better_one(tuners, replay, seed) -> None:
    one = replay()
    tuners.at_random(one, seed)
    found = seconds(one)
    best = min(range(len(found)), key=lambda i: found[i] or np.inf)
    assert len(found) == min(best + tuners.EARLY_STOPPING, tuners.TRIALS)


@NEEDS_XGBOOST
def test_the_model_based_tuner_never_runs_the_first_of_its_list(tuners, replay) -> None:
    one = replay()
    tuners._tune(one, tuner := tuners._ModelBased(one, 0), tuner.update, early_stopping=10**6)
    first = tuners._listed(one)[0]
    assert first not in {trial.index for trial in one.trials}
    assert len(one.trials) == tuners.TRIALS
