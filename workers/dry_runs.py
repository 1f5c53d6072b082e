"""Dry runs of a worker: one process makes them, is kept warm, and is given up when asked to."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from tuner.dryrun import DryRun, DryRunner, DryRunPlan
from tuner.errors import ProbeError


class DryRuns:
    """The process that dry-runs, as a context: started when first wanted, ended with it.

    It makes the dry runs of one layout after another, for any thread.
    """

    def __init__(self, runner: Callable[[], DryRunner] = DryRunner) -> None:
        self._make_runner = runner
        self._runner: DryRunner | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start(self) -> None:
        """Starts the process, if it is not there yet; returns at once."""
        with self._lock:
            if self._runner is None:
                self._runner = self._make_runner().__enter__()

    def make(self, plan: DryRunPlan, why_stop: Callable[[], str]) -> DryRun:
        """Makes the dry runs of one layout, all depths in one request: they run side by side.

        The record has an ``error`` when something was wrong; ``Crashed`` when the process itself
        died.
        """
        with self._lock:
            self.start()
            assert self._runner is not None
            try:
                answers = list(self._runner.ask(plan.requests, why_stop))
            except ProbeError as error:  # a process that died under a request is its crash
                crash = {"type": "Crashed", "message": str(error)}
                answers = [{"id": request["id"], "error": crash} for request in plan.requests]
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        return DryRun.from_answers(plan, answers, moment)

    def end(self) -> None:
        """Ends the process, if it is there; it can be started again."""
        with self._lock:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.__exit__(None, None, None)
