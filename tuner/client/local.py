"""Answers a question here, showing the caller how it goes; the caller may stop it."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.client.advance import advance_from_cache, conclude, is_answered
from tuner.client.answered import PlainLines, Progress
from tuner.client.place import Placed
from tuner.client.values import Say
from tuner.client.worker_process import NoSignals, Signals, Worker, worker_argv
from tuner.core.measurement import Fidelity
from tuner.core.study import ProbeState, Study, StudyState
from tuner.core.words import probe_word
from tuner.errors import ProbeError, StoppedError
from tuner.explain.english import ran_text
from tuner.explain.known import check_limits
from tuner.explain.probed import days_of
from tuner.results.points import question_text
from tuner.store import Store
from tuner.text import count_text, moment_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who waits for an answer."""

    note: Say
    """Shows a line, outside of any progress."""
    signals: type[Signals] = NoSignals
    """Watches for requests to the caller to end. Those of a Python program stay its own: Ctrl-C is
    a ``KeyboardInterrupt`` there, and in threads and notebooks nothing may be changed about them.
    """
    live: Callable[[Study], Progress] | None = None
    """Makes the display of a study while it is answered; by default it is lines."""

    def progress_of(self, study: Study) -> Progress:
        return PlainLines(study, self.note) if self.live is None else self.live(study)


# Between two looks at the database: often enough for people, and nothing beside a probe.
POLL_S = 0.25
# Time and name that the worker's log puts before a message.
LOG_PREFIX = re.compile(r"^\S+ \S+ worker: ")


def follow(store: Store, study: Study, caller: Caller, argv: Sequence[str]) -> Study:
    """Run the worker ``argv`` beside this process, and show what it finds as it comes in.

    The worker finds the store's address in its environment, which only this user can read, for a
    password may be in it. The study is returned as the worker left it.

    Raises:
        ProbeError: the worker could not go on; with its last words.
        StoppedError: a signal asked this process to end. The worker is gone then, its probe handed
            back, and the study waits to be continued.
        KeyboardInterrupt: the same, of a caller whose signals are Python's own.
    """
    environment, progress = {"TUNER_DB": store.url}, caller.progress_of(study)
    events = store.events(study.id)
    seen, study = events[-1].id if events else 0, store.study(study.id)

    def read() -> Study:
        """The study, read again only when something happened to it."""
        nonlocal seen, study
        if events := store.events(study.id, after=seen):
            seen, study = events[-1].id, store.study(study.id)
        return study

    with caller.signals() as signals, Worker(argv, environment) as worker, progress:
        try:
            watch(read, progress, lambda: worker.poll() is not None or bool(signals.noted))
        except KeyboardInterrupt:
            worker.stop(signals)
            raise
        if signals.noted:
            progress.note("stopping; once more to force it")
            worker.stop(signals)
            done = sum(probe.state is ProbeState.DONE for probe in read().probes)
            kept = count_text(done, probe_word(study.limits.fidelity))
            kept = f"study {study.id} keeps its {kept}"
            raise StoppedError(signals.noted[0], f"{kept}, and the same command continues it")
        progress.show(read())
        if code := worker.poll():
            raise ProbeError(failure_text(code, worker.last_words()))
    return study


def watch(read: Callable[[], Study], progress: Progress, is_over: Callable[[], bool]) -> None:
    """Show a study as it comes in, until there is nothing more to wait for.

    ``read`` gives the same object while nothing has happened.
    """
    while not is_over():
        progress.show(read())
        time.sleep(POLL_S)


def failure_text(code: int, words: str) -> str:
    """The reason that a worker logged last, or its exit code or signal with its last words."""
    said = LOG_PREFIX.sub("", words)
    if code == 1 and said != words:  # it could not go on, and says why in a line of its log
        return said
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the worker {how}{f': {said}' if said else ''}"


def answer_here(store: Store, placed: Placed, caller: Caller, labels: Mapping[str, str]) -> Study:
    """The question's study, with all probes that are worth it within these limits."""
    stored = store.find(placed.question)
    if stored is not None and is_answered(stored, placed.limits):
        store.label(stored.id, labels)
        caller.note(status_text(stored, answered=True))
        noun = probe_word(placed.limits.fidelity)
        caller.note(f"for more {noun}s, ask with another --max-probes or --budget")
        return stored
    study = store.ask(placed.question, placed.limits, labels)
    is_predicted = study.limits.fidelity is Fidelity.PREDICTED
    closed = conclude(store, advance_from_cache(store, study) if is_predicted else study)
    if closed is not None:
        caller.note(status_text(closed, answered=True))
        return closed
    caller.note(status_text(study, answered=False))
    study = follow(store, study, caller, worker_argv(study.id, placed.probing))
    check_limits(study, placed.limits)
    return study


def status_text(study: Study, *, answered: bool) -> str:
    """Says which study this is, and how much of it is there already."""
    fidelity = study.limits.fidelity
    done = sum(p.state is ProbeState.DONE for p in study.at(fidelity).probes)
    what = f"study {study.id}: {question_text(study.question)}"
    kept = count_text(done, probe_word(fidelity))
    since = f"{kept} since {moment_text(study.created_at)} UTC"
    if answered:
        of_stored = f"from what is stored, {since}" if done else "by arithmetic"
        stored = f"{what}\nanswered {of_stored}: {study.reason}"
        when = (
            ""
            if fidelity is Fidelity.PREDICTED
            else ran_text(days_of(study.at(fidelity)), study.question.framework.versions)
        )
        return f"{stored}\n{fidelity} {when}" if when else stored
    lines = [what, *([f"continues from {since}"] if done else [])]
    if study.state is StudyState.RUNNING:
        lines.append("another command is at it, and this one joins in: its limits hold")
    return "\n".join(lines)
