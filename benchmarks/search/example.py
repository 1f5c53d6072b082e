"""A tuner to begin with: the largest micro-batch first, less of it after a failure."""

from collections.abc import Sequence

from game import Outcome, Workload


class LargestFirst:
    """Tries candidates by model parallelism, from little to much, and then by micro-batch."""

    def __init__(self, workload: Workload, history: Sequence[object], seed: int) -> None:
        settings = workload.candidates
        places = range(len(settings))
        self._left = sorted(places, key=lambda n: -int(settings[n]["micro_batch_size"]))
        self._left.sort(key=lambda n: int(settings[n]["tp"]) * int(settings[n]["pp"]))
        self._settings = settings

    def ask(self) -> int:
        """The first that is left."""
        return self._left.pop(0)

    def tell(self, candidate: int, outcome: Outcome | None) -> None:
        """After a failure the same micro-batch or a larger one comes last."""
        if outcome is None:
            size = int(self._settings[candidate]["micro_batch_size"])
            self._left.sort(key=lambda n: int(self._settings[n]["micro_batch_size"]) >= size)
