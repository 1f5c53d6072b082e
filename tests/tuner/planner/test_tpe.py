import logging
import subprocess
import sys
from typing import Any

import pytest

from tuner.planner.tpe import Trial, suggest
from tuner.settings import Checkpointing, Sharding

KNOBS: dict[str, list[Any]] = {
    "sharding": [Sharding.DDP, Sharding.FULL_SHARD],
    "micro_batch_size": [1, 2, 3, 6, 12],
    "sync_each_batch": [False, True],
    "activation_checkpointing": [Checkpointing.FULL, Checkpointing.NONE],
}


def trial(micro: int, seconds: float, overshoot: float = -0.5, sync: bool = True) -> Trial:
    knobs = {
        "sharding": Sharding.DDP,
        "micro_batch_size": micro,
        "sync_each_batch": sync,
        "activation_checkpointing": Checkpointing.NONE,
    }
    return Trial(knobs=knobs, seconds=seconds, overshoot=overshoot)


def test_it_suggests_values_of_the_knobs() -> None:
    found = suggest(KNOBS, [trial(1, 2.0), trial(12, 1.0)], seed=3)
    assert found.keys() == KNOBS.keys()
    assert all(found[knob] in values for knob, values in KNOBS.items())
    assert all(type(found[k]) is type(KNOBS[k][0]) for k in KNOBS)


def test_one_seed_gives_one_suggestion_and_others_give_others() -> None:
    history = [trial(1, 2.0), trial(12, 1.0)]
    assert suggest(KNOBS, history, seed=5) == suggest(KNOBS, history, seed=5)
    assert len({str(suggest(KNOBS, history, seed=n)) for n in range(8)}) > 1
    assert suggest(KNOBS, [], seed=1).keys() == KNOBS.keys()


def average(history: list[Trial]) -> float:
    found = [suggest(KNOBS, history, seed=n)["micro_batch_size"] for n in range(12)]
    return sum(found) / len(found)


def test_it_goes_where_it_was_fast_and_away_from_what_did_not_fit() -> None:
    sizes = (1, 2, 3, 6, 12)
    faster = [trial(n, 13.0 - n, sync=sync) for n in sizes for sync in (True, False)]
    too_large = [
        trial(n, 13.0 - n, overshoot=n / 3 - 1, sync=sync) for n in sizes for sync in (True, False)
    ]
    assert average(faster) > 6
    assert average(too_large) < 5


def test_it_is_quiet(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    with caplog.at_level(logging.DEBUG):
        suggest(KNOBS, [trial(1, 2.0)], seed=0)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""


def test_optuna_is_imported_when_it_is_needed_and_never_torch() -> None:
    code = (
        "import sys, tuner.planner\n"
        "assert not {'optuna', 'torch', 'numpy'} & sys.modules.keys()\n"
        "from tuner.planner.tpe import suggest, Trial\n"
        "suggest({'a': [1, 2]}, [Trial(knobs={'a': 1}, seconds=1.0, overshoot=0.1)], seed=0)\n"
        "assert 'optuna' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
