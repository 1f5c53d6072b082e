"""A study's answer as its page shows it: the best configuration, its evidence, what to copy."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from api.answers import no_answer
from tuner.client.launch import exported
from tuner.core.answer import Candidate, Suggestion
from tuner.core.evaluation import KNOBS_PASSED, NOT_CHECKED, UNCHECKED, Guard
from tuner.core.study import OPEN, Study
from tuner.core.words import rank_word
from tuner.explain.known import is_forecast
from tuner.launchfiles import FORMATS, why_not
from tuner.script.launching import tuned_name
from tuner.space.inactive import show

GUARD_PASSED = "passed"
# Results of the guard after which a configuration may be right or not.
GUARD_UNKNOWN = {NOT_CHECKED, UNCHECKED, KNOBS_PASSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTab:
    """Something to copy."""

    id: str
    title: str
    about: str
    """A file's name, or what to do with it."""
    text: str
    download: str = ""
    """The address of the file; empty where it is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """The configuration to run, or the reason why none is known."""

    title: str
    """In two or three words."""
    best: Candidate | None
    """The best configuration; ``None`` where there is none."""
    note: str
    """What must be known before it is run; empty for nothing."""
    why_none: str
    """Why there is no answer of the fidelity that was asked for; empty where there is."""
    per: str
    """What a rank is to its user."""
    active: tuple[tuple[str, str], ...]
    """Knobs that act here, with the best values."""
    inactive: tuple[tuple[str, str], ...]
    """The others."""
    guard: str
    """The guard's result in a sentence; empty where there is no answer."""
    guard_mark: str
    """``passed``, ``unknown`` or ``failed``."""
    tabs: tuple[CopyTab, ...]
    cannot: tuple[tuple[str, str], ...]
    """Launchers whose file cannot say this configuration, with the reasons."""
    needed_gib: float
    """What must be free on a device: allocated, and what is outside of the allocator."""

    @property
    def share(self) -> float | None:
        """The part of the limit that is needed."""
        return self.needed_gib / self.best.limit_gib if self.best else None


def answer_of(study: Study, suggestion: Suggestion | None, needed_gib: float | None) -> ShownAnswer:
    """The answer as it stands.

    Args:
        study: whose.
        suggestion: with its launch; ``None`` while nothing is known.
        needed_gib: what the best configuration needs with what is outside of the allocator, if
            known.
    """
    best = suggestion.best if suggestion else None
    is_open, forecast = study.state in OPEN, bool(suggestion and is_forecast(study, suggestion))
    inactive = {one.knob for one in suggestion.dead_knobs} if suggestion else set()
    knobs = [(knob, show(value)) for knob, value in best.settings.as_dict().items()] if best else []
    allocated = (best.allocated_gib.value or 0.0) if best else 0.0
    if best is None:
        title, note = "Nothing is known yet" if is_open else "No answer", ""
    elif forecast:
        yet = " yet" if is_open else ""
        note = f"This is predicted: nothing that fits was {study.terms.fidelity}{yet}."
        title = "Predicted"
    elif is_open:
        title, note = "Best so far", "The study is not at its end: something better may come."
    else:
        title, note = "Run this", ""
    return ShownAnswer(
        title=title,
        best=best,
        note=note,
        why_none=_why_none(study, suggestion),
        per=rank_word(study.question),
        active=tuple(one for one in knobs if one[0] not in inactive),
        inactive=tuple(one for one in knobs if one[0] in inactive),
        guard=_guard_text(best.guard) if best else "",
        guard_mark=_guard_mark(best.guard) if best else "unknown",
        tabs=tuple(_tabs(study, suggestion, best)) if suggestion and best else (),
        cannot=tuple(_cannot(study, best)) if best else (),
        needed_gib=max(needed_gib or 0.0, allocated),
    )


def _why_none(study: Study, suggestion: Suggestion | None) -> str:
    is_open = study.state in OPEN
    if suggestion and not is_open and (none := no_answer(study, suggestion)):
        return none["message"]
    if suggestion and suggestion.best:
        return ""
    return "A worker has to make a first dry run or probe." if is_open else study.reason


def _guard_text(guard: Guard) -> str:
    passed = "a small replica of this configuration trains what one process trains"
    text = passed if guard.verdict == GUARD_PASSED else guard.verdict.replace("_", " ")
    return f"{text}: {guard.why}" if guard.why else text


def _guard_mark(guard: Guard) -> str:
    if guard.verdict == GUARD_PASSED:
        return "passed"
    return "unknown" if guard.verdict in GUARD_UNKNOWN else "failed"


def _tabs(study: Study, suggestion: Suggestion, best: Candidate) -> Iterator[CopyTab]:
    is_script = study.question.script is not None
    # What starts a user's own script goes first, where that was asked about.
    if is_script:
        yield from _command(study, suggestion)
    for name, known in FORMATS.items():
        if not known.for_programs and why_not(name, study.question, best.settings) is None:
            yield CopyTab(
                id=name,
                title=name,
                about=known.file_name,
                text=exported(name, study.question, best, study.id),
                download=f"/tune/{study.id}/export/{name}",
            )
    text = json.dumps(best.settings.as_dict(), indent=2)
    yield CopyTab(id="settings", title="settings", about="as JSON", text=text)
    if not is_script:
        yield from _command(study, suggestion)


def _command(study: Study, suggestion: Suggestion) -> Iterator[CopyTab]:
    """The command that launches the answer, and the template that a script's reads."""
    script, argv = study.question.script, list(suggestion.launch["argv"])
    if argv:
        about = "your command" if script else "your script in the place of SCRIPT.py"
        yield CopyTab(id="launch", title="command", about=about, text=shlex.join(argv))
    if name := tuned_name(script):
        text = suggestion.launch["files"][name]
        yield CopyTab(id="template", title="template", about=name, text=text)


def _cannot(study: Study, best: Candidate) -> Iterator[tuple[str, str]]:
    for name in FORMATS:
        if reason := why_not(name, study.question, best.settings):
            yield name, reason
