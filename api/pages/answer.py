"""A study's answer as its page shows it: the best settings, their evidence, and what to copy."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from api.answers import no_answer
from tuner.answering.known import is_forecast
from tuner.answering.launch import exported
from tuner.answering.words import rank_word
from tuner.export import FORMATS, why_not
from tuner.script.launching import tuned_name
from tuner.space.dead import show
from tuner.study import OPEN, Study
from tuner.suggestion import KNOBS_PASSED, NOT_CHECKED, UNCHECKED, Candidate, Guard, Suggestion

GUARD_PASSED = "passed"
_UNKNOWN = {NOT_CHECKED, UNCHECKED, KNOBS_PASSED}
"""Verdicts after which settings may be right or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """Something to copy."""

    id: str
    """Unique among them."""
    title: str
    """What it is."""
    about: str
    """A file's name, or what to do with it."""
    text: str
    """What is copied."""
    download: str
    """Where it is downloaded from; empty where it is not a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to run, or why that is not known."""

    title: str
    """In two or three words."""
    best: Candidate | None
    """The best settings; ``None`` where there are none."""
    note: str
    """What must be known before it is run; empty for nothing."""
    why_none: str
    """Why there is no answer of the fidelity that was asked for; empty where there is."""
    kind: str
    """Of that, as :data:`api.answers.KINDS` has it, or ``no_result``; empty where there is one."""
    per: str
    """What a rank is to its user."""
    settings: tuple[tuple[str, str], ...]
    """Knobs that act here, with the best values."""
    fixed: tuple[tuple[str, str], ...]
    """The others."""
    guard: str
    """Whether the settings were seen to train what they should, in a sentence."""
    guard_mark: str
    """``passed``, ``unknown`` or ``failed``."""
    tabs: tuple[Tab, ...]
    """What to copy."""
    cannot: tuple[tuple[str, str], ...]
    """Launchers whose file cannot say these settings, with the reasons."""
    needed_gib: float
    """What must be free on a device: allocated, and what is outside of the allocator."""

    @property
    def share(self) -> float | None:
        """Of the limit that is needed."""
        return self.needed_gib / self.best.limit_gib if self.best else None


def answer_of(study: Study, suggestion: Suggestion | None, needed_gib: float | None) -> Answer:
    """The answer as it stands.

    Args:
        study: whose.
        suggestion: with its launch; ``None`` while nothing is known.
        needed_gib: what the best settings need with what is outside of the allocator, if known.
    """
    best = suggestion.best if suggestion else None
    is_open, forecast = study.state in OPEN, bool(suggestion and is_forecast(study, suggestion))
    none = no_answer(study, suggestion) if suggestion and not is_open else None
    acting, fixed = _settings(suggestion, best)
    allocated = (best.allocated_gib.value or 0.0) if best else 0.0
    return Answer(
        title=_title(best, is_open=is_open, forecast=forecast),
        best=best,
        note=_note(study, best, is_open=is_open, forecast=forecast),
        why_none=none["message"] if none else _why_pending(study, suggestion),
        kind=none["kind"] if none else "",
        per=rank_word(study.question),
        settings=acting,
        fixed=fixed,
        guard=_guard_text(best.guard) if best else "",
        guard_mark=_guard_mark(best.guard) if best else "unknown",
        tabs=tuple(_tabs(study, suggestion, best)) if suggestion and best else (),
        cannot=tuple(_cannot(study, best)) if best else (),
        needed_gib=max(needed_gib or 0.0, allocated),
    )


def _title(best: Candidate | None, *, is_open: bool, forecast: bool) -> str:
    if best is None:
        return "Nothing is known yet" if is_open else "No answer"
    if forecast:
        return "Predicted"
    return "Best so far" if is_open else "Run this"


def _note(study: Study, best: Candidate | None, *, is_open: bool, forecast: bool) -> str:
    if best is None:
        return ""
    if forecast:
        yet = " yet" if is_open else ""
        return f"This is predicted: nothing that fits was {study.terms.fidelity}{yet}."
    return "The study is not at its end: something better may come." if is_open else ""


def _why_pending(study: Study, suggestion: Suggestion | None) -> str:
    if suggestion is not None and suggestion.best is not None:
        return ""
    if study.state in OPEN:
        return "A worker has to make a first dry run or probe."
    return study.reason


def _settings(
    suggestion: Suggestion | None, best: Candidate | None
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    if suggestion is None or best is None:
        return (), ()
    dead = {one.knob for one in suggestion.dead_knobs}
    shown = [(knob, show(value)) for knob, value in best.settings.as_dict().items()]
    return (
        tuple(one for one in shown if one[0] not in dead),
        tuple(one for one in shown if one[0] in dead),
    )


def _guard_text(guard: Guard) -> str:
    said = {GUARD_PASSED: "a small twin of these settings trains what one process trains"}
    text = said.get(guard.verdict, guard.verdict.replace("_", " "))
    return f"{text}: {guard.why}" if guard.why else text


def _guard_mark(guard: Guard) -> str:
    if guard.verdict == GUARD_PASSED:
        return "passed"
    return "unknown" if guard.verdict in _UNKNOWN else "failed"


def _tabs(study: Study, suggestion: Suggestion, best: Candidate) -> Iterator[Tab]:
    """What starts a user's own script goes first, where that was asked about."""
    is_script = study.question.script is not None
    if is_script:
        yield from _command(study, suggestion)
    for name, known in FORMATS.items():
        if not known.for_programs and why_not(name, study.question, best.settings) is None:
            yield Tab(
                id=name,
                title=name,
                about=known.file_name,
                text=exported(name, study.question, best, study.id),
                download=f"/tune/{study.id}/export/{name}",
            )
    yield Tab(
        id="settings",
        title="settings",
        about="as JSON",
        text=json.dumps(best.settings.as_dict(), indent=2),
        download="",
    )
    if not is_script:
        yield from _command(study, suggestion)


def _command(study: Study, suggestion: Suggestion) -> Iterator[Tab]:
    """The command that launches the answer, and the template that a script's reads."""
    script, argv = study.question.script, list(suggestion.launch["argv"])
    if argv:
        about = "your command" if script else "your script in the place of SCRIPT.py"
        text = shlex.join(argv)
        yield Tab(id="launch", title="command", about=about, text=text, download="")
    if name := tuned_name(script):
        text = suggestion.launch["files"][name]
        yield Tab(id="template", title="template", about=name, text=text, download="")


def _cannot(study: Study, best: Candidate) -> Iterator[tuple[str, str]]:
    for name in FORMATS:
        if reason := why_not(name, study.question, best.settings):
            yield name, reason
