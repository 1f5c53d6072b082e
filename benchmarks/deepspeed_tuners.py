"""DeepSpeed's three tuners by their published rules, on the candidates of a replay.

deepspeed/autotuning/tuner at edaa722 (Apache 2.0): ``BaseTuner.tune`` with its defaults of
``constants.py`` (at most 50 trials, an end after 5 without a better one), and a batch of one, for a
trial here takes the whole cluster (``Autotuner.tune_space``: nodes x GPUs / those of a trial).

DeepSpeed's own list of experiments knows no tensor or pipeline parallelism, and compares different
global batches; here each tuner is given the workload's candidates, in the order of its autotuner:
by stage of ZeRO, then by the other knobs from their smallest value.
"""

from collections.abc import Callable, Iterator

import numpy as np
from replay import Replay
from search_rivals import grid_order

from tuner.search.trials import Result, Trial

TRIALS = 50
"""``tuner_num_trials``."""
EARLY_STOPPING = 5
"""``tuner_early_stopping``."""
EXPLORED = 0.2
"""``random_exploration_ratio``."""
XGBOOST = {
    "max_depth": 3, "gamma": 0.0001, "min_child_weight": 1, "subsample": 1.0, "eta": 0.3,
    "lambda": 1.0, "alpha": 0, "objective": "rank:pairwise", "verbosity": 0, "nthread": 1,
}  # fmt: skip
"""``XGBoostCostModel("rank")``, on one thread."""
Next = Callable[[], int | None]


def grid(replay: Replay, seed: int) -> None:
    """``GridSearchTuner``: in the order of the list."""
    _tune(replay, iter(_listed(replay)), lambda trial: None)


def at_random(replay: Replay, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(_listed(replay))
    _tune(replay, iter(order.tolist()), lambda trial: None)


def model_based(replay: Replay, seed: int) -> None:
    """``ModelBasedTuner``: XGBoost ranks the list anew after each trial."""
    tuner = _ModelBased(replay, seed)
    _tune(replay, tuner, tuner.update)


def patient_model_based(replay: Replay, seed: int) -> None:
    """The same without the early end."""
    tuner = _ModelBased(replay, seed)
    _tune(replay, tuner, tuner.update, early_stopping=10**6)


def _listed(replay: Replay) -> list[int]:
    settings = replay.case.prior.settings
    return sorted(range(len(settings)), key=lambda i: grid_order(settings[i]))


def _tune(
    replay: Replay,
    batches: Iterator[int],
    update: Callable[[Trial], None],
    early_stopping: int = EARLY_STOPPING,
) -> None:
    """``BaseTuner.tune``; as long as nothing has run, it does not end early."""
    best, best_at = None, 0
    for number, index in enumerate(batches):
        trial = replay.probe(index)
        if best is None or (trial.seconds and trial.seconds < best):
            best, best_at = trial.seconds, number
        update(trial)
        count = number + 1
        if not replay.going or count >= min(TRIALS, best_at + early_stopping):
            return


class _ModelBased:
    """``ModelBasedTuner`` line by line, with what follows from its own slips.

    Its two first trials are marked as visited when they are drawn: the list's first, which is
    therefore never run, and a random one. Of its random exploration nothing is left but for the
    first batch, for the index it would replace is not among those visited.
    """

    def __init__(self, replay: Replay, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._listed = _listed(replay)
        self._features = np.array([_numbers(replay, i) for i in self._listed], dtype=np.float32)
        self._visited: set[int] = set()
        self._trials: list[int] = []
        for _ in range(min(2, len(self._listed))):
            drawn = 0
            while drawn in self._visited:
                drawn = int(self._random.integers(len(self._listed)))
            self._trials.append(drawn)
            self._visited.add(drawn)
        self._rows: list[int] = []
        self._speeds: list[float] = []

    def __iter__(self) -> "_ModelBased":
        return self

    def __next__(self) -> int:
        """``next_batch`` of one."""
        if len(self._visited) >= len(self._listed):
            raise StopIteration
        place = next((t for t in self._trials if t not in self._visited), self._trials[-1])
        if self._random.random() < EXPLORED:
            while place in self._visited:
                place = int(self._random.integers(len(self._listed)))
        self._visited.add(place)
        self._rows.append(place)
        return self._listed[place]

    def update(self, trial: Trial) -> None:
        """Fit XGBoost to all that ran and failed, the latter at a speed of 0; rank the list."""
        import xgboost

        ran = trial.result is Result.RAN and trial.seconds
        self._speeds.append(1 / trial.seconds if ran and trial.seconds else 0.0)
        speeds = np.array(self._speeds, dtype=np.float32)
        order = self._random.permutation(len(speeds))
        rows = self._features[np.array(self._rows)[order]]
        seen = xgboost.DMatrix(rows, (speeds / max(float(speeds.max()), 1e-9))[order])
        found = xgboost.train(XGBOOST, seen).predict(xgboost.DMatrix(self._features))
        self._trials = np.argsort(found)[::-1].tolist()


def _numbers(replay: Replay, index: int) -> tuple[float, ...]:
    """A configuration's numbers: what ``flatten`` leaves of it."""
    s = replay.case.prior.settings[index]
    stage = float(s.sharding.value == "zero1")
    return (s.micro_batch_size, s.gradient_accumulation_steps, stage, s.tp_size, s.pp_size)
