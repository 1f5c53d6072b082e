"""Where a study stands: what runs, since when, and how much of its budget is spent."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.planner.spending import Cost, cost_of_asking, probes_of_asking
from tuner.planner.words import describe
from tuner.store import Event
from tuner.store.records import EventKind
from tuner.study import OPEN, Probe, ProbeState, Study, StudyState
from tuner.units import count_text, duration_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One thing that an asking may spend."""

    spent: float
    """How much of it is gone, in its own unit."""
    most: float
    """How much there was."""
    words: str
    """Both, as people read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A probe that is being run."""

    id: int
    """Its number."""
    words: str
    """Its settings."""
    since: str
    """When it began, UTC in ISO 8601; empty when that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a study stands."""

    state: StudyState
    """As the store says."""
    is_open: bool
    """Whether more will come."""
    reason: str
    """Why it stands there."""
    began: str
    """When it was asked, UTC in ISO 8601."""
    ended: str
    """When it came to its end; empty while it is open, or when that is not known."""
    budgets: tuple[Budget, ...]
    """What the asking may spend, probes first."""
    running: tuple[Running, ...]
    """What is being probed now."""
    said: str
    """All of it in one sentence, for those who hear the page."""


def status_of(study: Study, events: Sequence[Event]) -> Status:
    """Where a study stands.

    Args:
        study: as it was read.
        events: its latest ones, oldest first; they tell when things began.
    """
    is_open = study.state in OPEN
    budgets = _budgets(study)
    running = tuple(_running(study, events)) if is_open else ()
    return Status(
        state=study.state,
        is_open=is_open,
        reason=study.reason,
        began=study.asked_at,
        ended="" if is_open else _ended(study, events),
        budgets=budgets,
        running=running,
        said=_said(study, budgets[0], running),
    )


def _budgets(study: Study) -> tuple[Budget, ...]:
    terms, spent = study.terms, cost_of_asking(study)
    done = sum(probe.state is ProbeState.DONE for probe in probes_of_asking(study))
    # A probe that another worker was running when it was asked may come on top.
    most = max(done, terms.max_probes)
    probes = Budget(spent=done, most=most, words=f"{done} of {count_text(most, 'probe')}")
    return (probes, *_time_budgets(study, spent))


def _time_budgets(study: Study, spent: Cost) -> tuple[Budget, ...]:
    terms = study.terms
    given = (("", spent.wall_s, terms.wall_s), (" of devices", spent.device_s, terms.device_s))
    return tuple(
        Budget(
            spent=min(gone, most),
            most=most,
            words=f"{duration_text(gone)} of {duration_text(most)}{of_what}",
        )
        for of_what, gone, most in given
        if most is not None
    )


def _running(study: Study, events: Sequence[Event]) -> list[Running]:
    began = {
        event.data["probe"]: event.at
        for event in events
        if event.kind is EventKind.PROBE and event.data.get("state") == ProbeState.RUNNING
    }
    return [
        Running(
            id=probe.id,
            words=describe(probe.request.settings).replace(",", ", "),
            since=began.get(probe.id, ""),
        )
        for probe in study.probes
        if probe.state is ProbeState.RUNNING
    ]


def _ended(study: Study, events: Sequence[Event]) -> str:
    moves = [event.at for event in events if event.kind is EventKind.STUDY]
    return moves[-1] if moves else ""


def _said(study: Study, probes: Budget, running: Sequence[Running]) -> str:
    if study.state not in OPEN:
        why = f": {study.reason}" if study.reason else ""
        return f"{str(study.state).capitalize()}{why}. {probes.words}."
    if running:
        numbers = ", ".join(f"#{one.id}" for one in running)
        return f"Probe {numbers} is running; {probes.words} done."
    return f"{_waits(study, probes)}; {probes.words} done."


def _waits(study: Study, probes: Budget) -> str:
    if study.state is StudyState.QUEUED:
        return "Waiting for a worker"
    queued: list[Probe] = [one for one in study.probes if one.state is ProbeState.QUEUED]
    if queued:
        return f"Probe #{queued[0].id} waits for its devices"
    # The finalists' small twins are trained after the last probe.
    spent = probes.spent >= probes.most
    return "Checking the finalists" if spent else "Choosing what to try next"
