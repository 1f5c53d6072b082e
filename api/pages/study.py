"""A study's page: what is the same for all who see it is made once for each event.

Its answer is the best configuration, its evidence, and what to copy (:func:`answer_of`).
"""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from api.answers import Whole, without_name
from api.pages import charts
from api.pages.evidence import trouble_of
from api.pages.form import GPUS_PER_NODE, NODES
from api.pages.probe_table import ANY, FASTEST_FIRST, table_of
from api.pages.render import linked, render_part, settings_path, spaced
from tuner.client.answered import exported
from tuner.core.answer import Candidate, Suggestion
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, knob_value
from tuner.core.evaluation import GIB, KNOBS_PASSED, NOT_CHECKED, UNCHECKED, Evaluation
from tuner.core.measurement import PROBED, RAN
from tuner.core.script import tuned_name
from tuner.core.study import OPEN, ProbeState, Study, StudyState
from tuner.core.words import describe, number_text, probe_name, probe_word, rank_word
from tuner.errors import NothingFitsError
from tuner.explain.brief import is_forecast, named_knobs, tied_text, whole_text
from tuner.explain.english import KNOB_HEADS, knob_rows, shown
from tuner.explain.known import is_unanswered, why_none
from tuner.explain.ways_out import ways_out
from tuner.launchfiles import FORMATS, why_not
from tuner.planner.spending import cost, cost_of_request, probes_of_request
from tuner.results import points as results
from tuner.results.points import ALWAYS, numerics
from tuner.results.summary import WARNINGS, state_text
from tuner.store import Moments
from tuner.store.workers import Silence
from tuner.text import count_text, duration_text, show, size_text

GUARD_PASSED = "passed"
# Lines of comments before a file, from which on they are folded.
LONG_HEAD = 4
# Results of the guard after which a configuration may be right or not.
GUARD_UNKNOWN = {NOT_CHECKED, UNCHECKED, KNOBS_PASSED}


# Options of the command line, by the fields of the form that say the same.
FIELDS: Mapping[str, str] = {
    "--optimizer": "workload.optimizer",
    "--precision": "workload.precision",
    "--framework": "framework.name",
    "--adapter": "workload.adapter.method",
    "--sequence-length": "workload.sequence_length",
}


# Facts that stand beside the answer, and not among its evidence.
TOLD_ABOVE = {"nothing_measured", *WARNINGS}


class CopyTab(NamedTuple):
    """Something to copy: what it is of, its text, and the address of the file if it is one, with
    what that cannot say, as sentences with lines of code."""

    id: str
    title: str
    about: str
    text: str
    head: str = ""
    """Comments at its beginning, which are a part of it."""
    script_sets: tuple[str, ...] = ()
    """Knobs that the training script must set itself, as ``name=value``."""
    download: str = ""
    beside: tuple[tuple[str, str], ...] = ()


def _told(study: Study, suggestion: Suggestion | None) -> tuple[str, str, str, str, bool]:
    """The heading of an answer, a note on it, why there is none, the state as people read it, and
    whether nothing fits."""
    best = suggestion.best if suggestion else None
    is_open = study.state in OPEN
    forecasts = suggestion is not None and is_forecast(study, suggestion)
    why, nothing_fits, reason = "", False, None
    if suggestion and is_unanswered(study, suggestion):
        reason = why_none(study, suggestion, shown=True)
        why, nothing_fits = str(reason), isinstance(reason, NothingFitsError)
    elif best is None:
        why = "The first figures come with the first dry run or probe." if is_open else study.reason
    is_probed = is_open and study.limits.fidelity in PROBED
    fits = suggestion.alternatives if suggestion and best is None and is_probed else ()
    if fits and not nothing_fits:
        needs = f"{size_text((fits[0].needed_gib.value or 0.0) * GIB)} are needed"
        why = f"{needs} by {describe(fits[0].settings)}; speeds come with the probes."
    if nothing_fits and best is None:
        title, note = "Nothing fits", ""
    elif best is None:
        yet = "No speed is known yet" if fits else "Nothing is known yet"
        title, note = yet if is_open else "No answer", ""
    elif forecasts:
        yet = " yet" if is_open else ""
        note = f"This is predicted: nothing that fits was {study.limits.fidelity}{yet}."
        title = "Predicted"
    elif is_open:
        title, note = "Best so far", "The study is not at its end: something better may come."
    else:
        facts = suggestion.facts if suggestion else ()
        tied = (one for one in facts if one["kind"] == "tied_with_fastest")
        title = "Run this" if best.basis is None else "Predicted: try this"
        note = next((tied_text(one, best) for one in tied), "")
    if suggestion and best:
        said = zip(suggestion.facts, suggestion.explanation, strict=False)
        how = (text for fact, text in said if fact["kind"] in TOLD_ABOVE)
        note = " ".join(filter(None, (note, *how)))
    return title, note, why, state_text(study, reason, is_forecast=forecasts), nothing_fits


def answer_of(
    study: Study, suggestion: Suggestion | None, needed_gib: float | None
) -> SimpleNamespace:
    """The answer as it stands.

    ``suggestion`` has its launch; ``needed_gib`` is what the best configuration needs with what is
    outside of the allocator, if known.
    """
    best = suggestion.best if suggestion else None
    title, note, why, state, nothing_fits = _told(study, suggestion)
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
    named = named_knobs(suggestion) if suggestion else set()
    chosen: list[tuple[str, str]] = []
    usual: list[tuple[str, str]] = []
    for knob, value in best.settings.all_values().items() if best else ():
        is_usual = value == getattr(Settings(), knob) and knob not in {*ALWAYS, *named}
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
        whole=whole_text(study.question, best) if best else "",
        state=state,
        nothing_fits=nothing_fits,
        ways=[
            (one, f"/new?{urlencode({'like': study.id, **_fields_of(one.options)})}")
            for one in (ways_out(study.question, study.limits) if nothing_fits else ())
        ],
        # What differs from the default or was weighed, and the rest.
        chosen=chosen,
        usual=[one for one in usual if one[0] not in inactive],
        guard=guard,
        guard_mark=guard_mark or "unknown",
        tabs=_tabs(study, suggestion, best, whys) if suggestion and best else (),
        cannot=tuple((name, reason) for name, reason in whys.items() if reason),
        needed_gib=needed,
        share=needed / best.limit_gib if best else None,
    )


def _fields_of(options: Sequence[str]) -> dict[str, str]:
    """Options of the command line as fields of the form."""
    found: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition(" ")
        if name == "--knob":
            knob, _, value = value.partition("=")
            found[f"knobs.{knob}"] = value
        elif name == "--cluster":
            cluster = parse_cluster(value)
            found[NODES], found[GPUS_PER_NODE] = str(cluster.nodes), str(cluster.gpus_per_node)
        else:
            found[FIELDS[name]] = value
    return found


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
            **_halves(exported(name, without_name(study.question), best, study.id, study.state)),
            script_sets=known.script_sets(study.question, best.settings),
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


# Failed probes that are shown in short; all of them are in the table.
MOST_TROUBLES = 12
# Configurations in the table behind the scatter, which were not probed; best ones first.
MOST_UNPROBED = 60
# The latest probes that an open study tells of.
MOST_LATEST = 5


class StudyHead(NamedTuple):
    """The unchanging part of a page, above everything else: the question in words."""

    id: str
    model: str
    cluster: str
    facts: tuple[str, ...]
    is_script: bool
    """Whether a user's script is trained: nothing is predicted of it, and no form asks for it."""


class Budget(NamedTuple):
    """One limit of a request, and how much of it is spent, in its own unit and in words."""

    spent: float
    most: float
    words: str


class RunningProbe(NamedTuple):
    """A probe that is being run, and when it began; empty when that is not known."""

    id: int
    name: str
    """``Probe #3``, or ``Dry run #d3``."""
    words: str
    since: str
    silence: Silence | None
    """Of its worker, if it has not been heard of."""

    @property
    def said(self) -> str:
        silent = " (its worker has not been heard of)" if self.silence else ""
        return f"{self.name}{silent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStatus:
    """The state of a study: what runs, since when, and how much of its budget is spent."""

    state: StudyState
    is_open: bool
    reason: str
    began: str
    ended: str
    """When it came to its end; empty while it is open, or when that is not known."""
    budgets: tuple[Budget, ...]
    """Probes first."""
    running: tuple[RunningProbe, ...]
    latest: tuple[int, ...]
    """The probes that ended last, newest first."""
    waits_for: str
    said: str
    """All of it in one sentence, for those who hear the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPage:
    """A study as its page shows it, the same to all who see it."""

    head: StudyHead
    status: ShownStatus
    labels: Mapping[str, str]
    newest_event: int
    values: Mapping[str, Any]
    body: Markup
    """All but the header, with the fastest probes first."""

    def sorted_by(self, sort: str, outcome: str) -> Markup:
        if (sort, outcome) == (FASTEST_FIRST, ANY):
            return self.body
        table = self.values["table"].chosen(sort, outcome)
        return render_part("study_body.html", **{**self.values, "table": table})


def study_page(whole: Whole, moments: Moments) -> StudyPage:
    study, suggestion, evidence = whole.study, whole.suggestion, whole.evidence
    best = suggestion.best if suggestion else None
    per = rank_word(study.question)
    points = results.points(study, suggestion, evidence)
    ended = results.progress(evidence)
    chosen = best.settings if best else None
    needed_gib = next((one.needed_gib.value for one in points if one.settings == chosen), None)
    answer = answer_of(study, suggestion, needed_gib)
    bar = None
    if best:
        sizes = {name: size * GIB for name, size in best.breakdown_gib.items()}
        sizes[charts.OUTSIDE] = (answer.needed_gib - (best.allocated_gib.value or 0.0)) * GIB
        bar = charts.memory_bar(sizes, study, f"Memory of one {per} at the peak")
    status = status_of(study, moments)
    failed = [
        (probe, probe.measurement)
        for probe in reversed(study.in_order)
        if probe.measurement and probe.measurement.outcome not in RAN
    ]
    # What was not probed has no row in the table of probes.
    unprobed = [point for point in points if not _is_probed(point)][:MOST_UNPROBED]
    rows = {point.settings: f"#c{number}" for number, point in enumerate(unprobed)}

    def href(point: Evaluation) -> str:
        if _is_probed(point):
            return f"#p{number_text(point.probes[-1].id)}"
        return rows.get(point.settings) or settings_path(study.id, point.settings)

    drawn = [p for p in points if _is_probed(p) or p.tokens_per_s_per_gpu.value is not None]
    limit_bytes = study.limits.limit_bytes(study.question.cluster)
    probe_ids = {probe.id for probe in study.probes}
    table = table_of(evidence, best.settings if best else None)
    values: dict[str, Any] = {
        "study": study,
        "suggestion": suggestion,
        "per": per,
        "status": status,
        "answer": answer,
        "bar": bar,
        "scatter": charts.scatter([charts.Series(drawn, href, limit_bytes, chosen)], per=per)
        if len(drawn) > 1
        else None,
        "unprobed": [
            (
                one,
                describe(one.settings),
                settings_path(study.id, one.settings),
                one.settings == chosen,
            )
            for one in unprobed
        ],
        "progress": charts.progress(ended, per=per) if len(ended) > 1 else None,
        "importance": results.importance(evidence),
        "sentences": [
            linked(text, study.id, probe_ids.intersection(named))
            for text, named in (
                shown(suggestion.facts, suggestion.explanation, but=TOLD_ABOVE)
                if suggestion
                else ()
            )
        ],
        "knob_heads": KNOB_HEADS,
        "knob_rows": [
            (*cells, linked(seen, study.id, probe_ids))
            for *cells, seen in (knob_rows(suggestion.facts) if suggestion else ())
        ],
        "table": table,
        "troubles": [trouble_of(*one) for one in failed[:MOST_TROUBLES]],
        "failed": len(failed),
        "cost": cost(study.at(study.limits.fidelity)),
        "noun": probe_word(study.limits.fidelity),
        "limit_gib": limit_bytes / GIB,
    }
    return StudyPage(
        head=head_of(study),
        status=status,
        labels=study.labels,
        newest_event=whole.status.newest_event,
        values=values,
        body=render_part("study_body.html", **values),
    )


def _is_probed(point: Evaluation) -> bool:
    return point.outcome is not None and bool(point.probes)


def head_of(study: Study) -> StudyHead:
    question, workload = study.question, study.question.workload
    facts = [
        f"global batch {workload.global_batch_size:,}",
        f"sequence {workload.sequence_length:,}",
        *numerics(question),
        *workload.unlike_usual,
        str(question.framework.name),
    ]
    for name, values in question.knobs.items():
        facts.append(f"{name} {' or '.join(show(knob_value(name, one)) for one in values)}")
    return StudyHead(
        id=study.id,
        model=question.trained,
        cluster=question.cluster.name,
        facts=tuple(facts),
        is_script=question.script is not None,
    )


# -- status -----------------------------------------------------------------------------------


def status_of(study: Study, moments: Moments) -> ShownStatus:
    """The state of a study, and since when."""
    is_open = study.state in OPEN
    running = tuple(
        RunningProbe(
            id=probe.id,
            name=probe_name(probe).capitalize(),
            words=spaced(describe(probe.request.settings)),
            since=moments.began.get(probe.id, ""),
            silence=moments.silent.get(probe.id),
        )
        for probe in study.probes
        if is_open and probe.state is ProbeState.RUNNING
    )
    # A budget is of what was asked for: dry runs on the way are not counted.
    limits, spent = study.limits, cost_of_request(study)
    asked = [p for p in probes_of_request(study) if p.request.fidelity is limits.fidelity]
    ended = sum(probe.state is ProbeState.DONE for probe in asked)
    noun = probe_word(limits.fidelity)
    words = f"{ended} of {count_text(limits.max_probes, noun)}"
    if ended > limits.max_probes:  # another worker was running one when it was asked
        words = count_text(ended, noun)
    # Its table has those of earlier requests too, and dry runs.
    nouns = Counter(
        probe_word(p.request.fidelity) for p in study.probes if p.state is ProbeState.DONE
    )
    others = [count_text(count, one) for one, count in nouns.items() if one != noun]
    words += " of this request" if ended < nouns[noun] else ""
    words = ", and ".join((words, *others))
    budgets = [Budget(spent=ended, most=max(ended, limits.max_probes), words=words)]
    times = (("", spent.wall_s, limits.wall_s), (" of devices", spent.device_s, limits.device_s))
    for of_what, gone_s, most_s in times:
        if most_s is not None:
            told = f"{duration_text(gone_s)} of {duration_text(most_s)}{of_what}"
            budgets.append(Budget(spent=min(gone_s, most_s), most=most_s, words=told))
    queued = [probe for probe in study.probes if probe.state is ProbeState.QUEUED]
    done = [probe.id for probe in study.in_order if probe.state is ProbeState.DONE]
    doing = ""
    if is_open and study.reason:  # what it waits for, or its worker is at, beside probes
        doing = f"{study.reason[0].upper()}{study.reason[1:]}"
    elif study.state is StudyState.QUEUED:
        doing = "Waiting for a worker"
    elif is_open and queued:
        doing = f"{probe_name(queued[0]).capitalize()} waits for its devices"
    elif is_open and ended >= limits.max_probes:
        # Small replicas of the finalists are trained after the last probe.
        doing = "Checking that the best configurations train like one process"
    elif is_open:
        doing = "Choosing what to try next"
    if not is_open:
        why = f": {study.reason}" if study.reason else ""
        said = f"{str(study.state).capitalize()}{why}. {words}."
    elif running:
        names = ", ".join(one.said for one in running)
        said = f"{names} {'are' if len(running) > 1 else 'is'} running; {words} done."
    else:
        said = f"{doing}; {words} done."
    return ShownStatus(
        state=study.state,
        is_open=is_open,
        reason=study.reason,
        began=study.asked_at,
        ended=moments.ended,
        budgets=tuple(budgets),
        running=running,
        latest=tuple(done[: -MOST_LATEST - 1 : -1]),
        waits_for=doing,
        said=said,
    )
