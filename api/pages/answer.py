"""A study's answer as its page shows it: the best configuration, its evidence, what to copy."""

import json
import shlex
from collections.abc import Mapping
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlencode

from api.answers import without_name
from api.pages.form_fields import GPUS_PER_NODE, NODES
from tuner.client.answered import exported
from tuner.core.answer import Candidate, Suggestion
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.evaluation import KNOBS_PASSED, NOT_CHECKED, UNCHECKED
from tuner.core.script import tuned_name
from tuner.core.study import OPEN, Study
from tuner.core.words import rank_word
from tuner.errors import NothingFitsError
from tuner.explain.known import is_forecast, why_none
from tuner.explain.ways_out import ways_out
from tuner.launchfiles import FORMATS, why_not
from tuner.results.points import ALWAYS
from tuner.space.rules import show

GUARD_PASSED = "passed"
# Lines of comments before a file, from which on they are folded.
LONG_HEAD = 4
# Results of the guard after which a configuration may be right or not.
GUARD_UNKNOWN = {NOT_CHECKED, UNCHECKED, KNOBS_PASSED}


# Options of the command line, by the fields of the form that say the same.
FIELDS: Mapping[str, str] = {
    "--optimizer": "workload.optimizer",
    "--adapter": "workload.adapter.method",
    "--sequence-length": "workload.sequence_length",
}


class CopyTab(NamedTuple):
    """Something to copy: what it is of, its text, and the address of the file if it is one, with
    what that cannot say, as sentences with lines of code."""

    id: str
    title: str
    about: str
    text: str
    head: str = ""
    """Comments at its beginning, which are a part of it."""
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
    why, nothing_fits = "", False
    if suggestion and not is_open and (best is None or forecasts):
        reason = why_none(study, suggestion, shown=True)
        why, nothing_fits = str(reason), isinstance(reason, NothingFitsError)
    elif best is None:
        why = "The first figures come with the first dry run or probe." if is_open else study.reason
    if nothing_fits and best is None:
        title, note = "Nothing fits", ""
    elif best is None:
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
    chosen: list[tuple[str, str]] = []
    usual: list[tuple[str, str]] = []
    for knob, value in best.settings.all_values().items() if best else ():
        is_usual = value == getattr(Settings(), knob) and knob not in ALWAYS
        (usual if is_usual or knob in inactive else chosen).append((knob, show(value)))
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
        state="nothing fits" if nothing_fits else str(study.state),
        nothing_fits=nothing_fits,
        ways=[
            (one, f"/new?{urlencode({'like': study.id, **_fields_of(one.option)})}")
            for one in (ways_out(study.question, study.limits) if nothing_fits else ())
        ],
        # What differs from the default, and the rest.
        chosen=chosen,
        usual=[one for one in usual if one[0] not in inactive],
        guard=guard,
        guard_mark=guard_mark or "unknown",
        tabs=_tabs(study, suggestion, best, whys) if suggestion and best else (),
        cannot=tuple((name, reason) for name, reason in whys.items() if reason),
        needed_gib=needed,
        share=needed / best.limit_gib if best else None,
    )


def _fields_of(option: str) -> dict[str, str]:
    """An option of the command line as fields of the form."""
    name, _, value = option.partition(" ")
    if name == "--knob":
        knob, _, value = value.partition("=")
        return {f"knobs.{knob}": value}
    if name == "--cluster":
        cluster = parse_cluster(value)
        return {NODES: str(cluster.nodes), GPUS_PER_NODE: str(cluster.gpus_per_node)}
    return {FIELDS[name]: value}


def _halves(text: str) -> dict[str, str]:
    """A file's text, and the comments before it."""
    lines = text.splitlines(keepends=True)
    isnt = (n for n, line in enumerate(lines) if line.strip() and not line.startswith(("#", "//")))
    begin = next(isnt, 0)
    # A script's first line is no comment.
    if begin < LONG_HEAD or text.startswith("#!"):
        return {"text": text}
    return {"head": "".join(lines[:begin]), "text": "".join(lines[begin:])}


def _tabs(
    study: Study, suggestion: Suggestion, best: Candidate, why: dict[str, str | None]
) -> tuple[CopyTab, ...]:
    """The files of launchers, the settings, the command, and the template that a script reads."""
    files = [
        CopyTab(
            id=name,
            title=name,
            about=known.file_name,
            **_halves(exported(name, without_name(study.question), best, study.id)),
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
