"""A study's answer as its page shows it: the best configuration, its evidence, what to copy."""

import json
import shlex
from types import SimpleNamespace
from typing import NamedTuple

from tuner.client.answered import exported
from tuner.core.answer import Candidate, Suggestion
from tuner.core.evaluation import KNOBS_PASSED, NOT_CHECKED, UNCHECKED
from tuner.core.study import OPEN, Study
from tuner.core.words import rank_word
from tuner.explain.known import is_forecast, why_none
from tuner.launchfiles import FORMATS, why_not
from tuner.script import tuned_name
from tuner.space.rules import show

GUARD_PASSED = "passed"
# Results of the guard after which a configuration may be right or not.
GUARD_UNKNOWN = {NOT_CHECKED, UNCHECKED, KNOBS_PASSED}


class CopyTab(NamedTuple):
    """Something to copy: what it is of, its text, and the address of the file if it is one, with
    what that cannot say, as sentences with lines of code."""

    id: str
    title: str
    about: str
    text: str
    download: str = ""
    beside: tuple[tuple[str, str], ...] = ()


def answer_of(
    study: Study, suggestion: Suggestion | None, needed_gib: float | None
) -> SimpleNamespace:
    """The answer as it stands.

    ``suggestion`` has its launch; ``needed_gib`` is what the best configuration needs with what is
    outside of the allocator, if known.
    """
    best = suggestion.best if suggestion else None
    is_open = study.state in OPEN
    forecasts = suggestion is not None and is_forecast(study, suggestion)
    if suggestion and not is_open and (best is None or forecasts):
        why = str(why_none(study, suggestion, shown=True))
    elif best:
        why = ""
    else:
        why = "A worker has to make a first dry run or probe." if is_open else study.reason
    if best is None:
        title, note = "Nothing is known yet" if is_open else "No answer", ""
    elif forecasts:
        yet = " yet" if is_open else ""
        note = f"This is predicted: nothing that fits was {study.limits.fidelity}{yet}."
        title = "Predicted"
    elif is_open:
        title, note = "Best so far", "The study is not at its end: something better may come."
    else:
        title, note = "Run this", ""
    guard = guard_mark = ""
    if best:
        verdict, passed = best.guard.verdict, best.guard.verdict == GUARD_PASSED
        guard = (
            "a small replica of this configuration trains what one process trains"
            if passed
            else verdict.replace("_", " ")
        )
        guard += f": {best.guard.why}" if best.guard.why else ""
        guard_mark = "passed" if passed else "unknown" if verdict in GUARD_UNKNOWN else "failed"
    inactive = {one.knob for one in suggestion.dead_knobs} if suggestion else set()
    knobs = (
        [(knob, show(value)) for knob, value in best.settings.all_values().items()] if best else []
    )
    whys = {}
    if best:
        whys = {name: why_not(name, study.question, best.settings) for name in FORMATS}
    needed = max(needed_gib or 0.0, (best.allocated_gib.value or 0.0) if best else 0.0)
    return SimpleNamespace(
        title=title,
        best=best,
        note=note,
        why_none=why,
        per=rank_word(study.question),
        active=tuple(one for one in knobs if one[0] not in inactive),
        inactive=tuple(one for one in knobs if one[0] in inactive),
        guard=guard,
        guard_mark=guard_mark or "unknown",
        tabs=_tabs(study, suggestion, best, whys) if suggestion and best else (),
        cannot=tuple((name, reason) for name, reason in whys.items() if reason),
        needed_gib=needed,
        share=needed / best.limit_gib if best else None,
    )


def _tabs(
    study: Study, suggestion: Suggestion, best: Candidate, why: dict[str, str | None]
) -> tuple[CopyTab, ...]:
    """The files of launchers, the settings, the command, and the template that a script reads."""
    files = [
        CopyTab(
            id=name,
            title=name,
            about=known.file_name,
            text=exported(name, study.question, best, study.id),
            download=f"/tune/{study.id}/export/{name}",
            beside=tuple(
                (said, pasted)
                for beside in known.beside(study.question, best.settings)
                for said, _, pasted in [beside.partition("\n")]
            ),
        )
        for name, known in FORMATS.items()
        if not known.for_programs and why[name] is None
    ]
    files.sort(key=lambda tab: tab.id != study.question.framework.name)  # its own first
    text = json.dumps(best.settings.as_dict(), indent=2)
    files.append(CopyTab(id="settings", title="settings", about="as JSON", text=text))
    script, argv = study.question.script, list(suggestion.launch["argv"])
    starts = []
    if argv:
        about = "your command" if script else "your script in the place of SCRIPT.py"
        starts.append(CopyTab(id="launch", title="command", about=about, text=shlex.join(argv)))
    if name := tuned_name(script):
        text = suggestion.launch["files"][name]
        starts.append(CopyTab(id="template", title="template", about=name, text=text))
    # What starts a user's own script goes first, where that was asked about.
    return tuple((*starts, *files) if script else (*files, *starts))
