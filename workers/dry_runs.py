"""Dry runs of a worker: one process that makes them, kept warm, and given up when asked to."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from threading import Thread
from types import TracebackType
from typing import Any, Self

from tuner.dryrun import DryRun, DryRunner, DryRunPlan
from tuner.errors import ProbeError


class StoppedError(Exception):
    """A dry run was given up before its end; the text says why."""


class DryRuns:
    """The process that dry-runs, as a context: started when first wanted, ended with it."""

    def __init__(self, runner: Callable[[], DryRunner] = DryRunner) -> None:
        self._make_runner = runner
        self._runner: DryRunner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def start(self) -> None:
        """Start the process, if it is not there yet; returns at once.

        Raises:
            ProbeError: it cannot be started.
        """
        if self._runner is None:
            self._runner = self._make_runner().__enter__()

    def make(self, plan: DryRunPlan, why_stop: Callable[[], str]) -> DryRun:
        """Make the dry runs of one class, all depths in one asking: they run side by side.

        Args:
            plan: what to ask for.
            why_stop: asked again and again meanwhile, and waits a little; why to give up, or an
                empty text.

        Returns:
            The record, with its ``error`` when something was wrong; ``Crashed`` when the process
            itself died.

        Raises:
            StoppedError: it was given up; the process is gone then.
            ProbeError: the process cannot be started.
        """
        self.start()
        assert self._runner is not None
        asking = _Asking(self._runner, plan)
        asking.start()
        while asking.is_alive():
            if why := why_stop():
                self._end()
                raise StoppedError(why)
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        return DryRun.from_answers(plan, asking.answers_or_crash(), moment)

    def _end(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.__exit__(None, None, None)


class _Asking(Thread):
    """Waits for the answers, so that the worker can look after its stop request and its lease."""

    def __init__(self, runner: DryRunner, plan: DryRunPlan) -> None:
        super().__init__(daemon=True, name="dry-runs")
        self._runner, self._plan = runner, plan
        self._answers: list[dict[str, Any]] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Ask; what is raised is for the thread that looks at the answers."""
        try:
            self._answers = list(self._runner.ask(self._plan.requests))
        except BaseException as error:  # noqa: BLE001  (raised again in answers_or_crash)
            self._error = error

    def answers_or_crash(self) -> Iterable[dict[str, Any]]:
        """The answers. A process that died under a request is that request's crash."""
        if isinstance(self._error, ProbeError):
            crash = {"type": "Crashed", "message": str(self._error)}
            return [{"id": request["id"], "error": crash} for request in self._plan.requests]
        if self._error is not None:
            raise self._error
        return self._answers
