"""Run a worker for a study, and follow the study in the database until the worker ends."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tuner.asking.caller import Caller
from tuner.asking.progress import Progress
from tuner.asking.worker import Worker
from tuner.errors import ProbeError, StoppedError
from tuner.store import Store
from tuner.study import ProbeState, Study

POLL_S = 0.25
"""Between two looks at the database: often enough for people, and nothing beside a probe."""
LOG_PREFIX = re.compile(r"^\S+ \S+ worker: ")
"""Time and name that the worker's log puts before a message."""


def follow(store: Store, study: Study, caller: Caller, argv: Sequence[str]) -> Study:
    """Run the worker ``argv`` beside this process, and show what it finds as it comes in.

    Args:
        store: where the study is.
        study: the study as it stands.
        caller: is shown it, and may stop it.
        argv: command of the worker. It finds the store's address in its environment, which only
            this user can read, for a password may be in it.

    Returns:
        The study as the worker left it.

    Raises:
        ProbeError: the worker could not go on; with its last words.
        StoppedError: a signal asked this process to end. The worker is gone then, its probe handed
            back, and the study waits to be continued.
        KeyboardInterrupt: the same, of a caller whose signals are Python's own.
    """
    environment, progress = {"TUNER_DB": store.url}, caller.progress_of(study)
    with caller.signals() as signals, Worker(argv, environment) as worker, progress:
        reader = _Reader(store, study.id)
        try:
            watch(reader, progress, lambda: worker.poll() is not None or bool(signals.noted))
        except KeyboardInterrupt:
            worker.stop(signals)
            raise
        if signals.noted:
            progress.note("stopping; once more to force it")
            worker.stop(signals)
            raise StoppedError(signals.noted[0], _kept(reader.read()))
        study = reader.read()
        progress.show(study)
        if code := worker.poll():
            raise ProbeError(failure_text(code, worker.last_words()))
    return study


class Reader(Protocol):
    """Where a study's progress is read from."""

    def read(self) -> Study:
        """The study as it is now; the same object while nothing has happened."""


def watch(reader: Reader, progress: Progress, is_over: Callable[[], bool]) -> None:
    """Show a study as it comes in, until there is nothing more to wait for."""
    while not is_over():
        progress.show(reader.read())
        time.sleep(POLL_S)


class _Reader:
    """Reads a study again only when something happened to it."""

    def __init__(self, store: Store, study_id: str) -> None:
        self._store = store
        events = store.events(study_id)
        self._seen = events[-1].id if events else 0
        self._study = store.study(study_id)

    def read(self) -> Study:
        """The study as it is now."""
        if events := self._store.events(self._study.id, after=self._seen):
            self._seen = events[-1].id
            self._study = self._store.study(self._study.id)
        return self._study


def _kept(study: Study) -> str:
    done = sum(probe.state is ProbeState.DONE for probe in study.probes)
    probes = f"{done} probe{'' if done == 1 else 's'}"
    return f"study {study.id} keeps its {probes}, and the same command continues it"


def failure_text(code: int, words: str) -> str:
    """How a worker failed: its exit code or signal, and its last words."""
    said = LOG_PREFIX.sub("", words)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the worker {how}{f': {said}' if said else ''}"
