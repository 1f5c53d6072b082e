"""A study's page: its parts, which are the same for all who see it, made once for each event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import anyio
from markupsafe import Markup

from api.answers import Answers, Kept, Whole
from api.pages import charts
from api.pages.answer import answer_of
from api.pages.charts.memory import OUTSIDE
from api.pages.evidence import trouble_of
from api.pages.probe_table import ANY, FASTEST_FIRST, ProbeTable, table_of
from api.pages.render import linked, probe_path, render_part, settings_path, spaced
from tuner import results
from tuner.core.configuration import knob_value
from tuner.core.evaluation import GIB
from tuner.core.measurement import RAN, Fidelity
from tuner.core.study import OPEN, ProbeState, Study, StudyState
from tuner.core.words import describe, rank_word
from tuner.explain.english import KNOB_HEADS, knob_rows, shown
from tuner.planner.spending import cost, cost_of_asking, probes_of_asking
from tuner.space.rules import show
from tuner.store import Event, Store, StudyStatus
from tuner.store.tables import EventKind
from tuner.text import count_text, duration_text

# Pages that are kept, of some 300 kB each.
MOST_KEPT = 64
# Threads for those who watch: one makes a page, the other finds what is made.
MAKERS = 2
# Events that are looked at for when things began.
LATEST_EVENTS = 256
# Failed probes that are shown in short; all of them are in the table.
MOST_TROUBLES = 12
# Values of a knob that are shown: the fastest ones, in their order.
MOST_VALUES = 12
# Configurations in the table behind the scatter, which were not probed; best ones first.
MOST_UNPROBED = 30
# In the order of the page.
PARTS = (
    "status",
    "answer",
    "memory",
    "scatter",
    "progress",
    "knobs",
    "why",
    "probes",
    "trouble",
    "cost",
)


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
    words: str
    since: str


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
    waits_for: str
    said: str
    """All of it in one sentence, for those who hear the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPage:
    """A study as its page shows it."""

    head: StudyHead
    status: ShownStatus
    newest_event: int
    parts: Mapping[str, Markup]
    """By name, in order; empty ones for what is not known."""
    table: ProbeTable
    """Its probes, for those who want them in another order."""

    def sorted_parts(self, sort: str, outcome: str) -> Mapping[str, Markup]:
        if (sort, outcome) == (FASTEST_FIRST, ANY):
            return self.parts
        table = self.table.chosen(sort, outcome)
        return {**self.parts, "probes": render_part("study/probes.html", table=table)}


class StudyPages:
    """Pages of one database's studies, kept until something happens; for any thread."""

    def __init__(self, store: Store, answers: Answers) -> None:
        self._store = store
        self._answers = answers
        self._kept = Kept(self._make, answers.turn, most=MOST_KEPT)
        # Hundreds of viewers may be woken by one event: they take a few threads only.
        self._makers = anyio.CapacityLimiter(MAKERS)

    def of(self, standing: StudyStatus) -> StudyPage:
        """A study's page as it stands, or as it stood a moment later."""
        return self._kept.of(standing)

    async def soon(self, standing: StudyStatus) -> StudyPage:
        if (found := self._kept.fresh(standing)) is not None:
            return found
        return await anyio.to_thread.run_sync(self.of, standing, limiter=self._makers)

    def _make(self, standing: StudyStatus) -> StudyPage:
        whole = self._answers.whole(standing)
        return study_page(whole, self._store.events(standing.id, limit=LATEST_EVENTS, last=True))


def study_page(whole: Whole, events: Sequence[Event]) -> StudyPage:
    """A study's page; ``events`` are its latest ones, oldest first."""
    study, suggestion, evidence = whole.study, whole.suggestion, whole.evidence
    best = suggestion.best if suggestion else None
    per = rank_word(study.question)
    limit_bytes = study.limits.limit_bytes(study.question.cluster)
    points = results.points(study, suggestion, evidence)
    ended = results.progress(study)
    effects = results.knob_effects(study, suggestion, evidence)
    shown_effects = []
    for effect in effects:
        # The best of many values, in their order.
        fastest = sorted(
            effect.values,
            key=lambda one: (not one.is_best, -(one.tokens_per_s_per_gpu.value or 0.0)),
        )[:MOST_VALUES]
        kept = tuple(one for one in effect.values if one in fastest)
        shown_effects.append(replace(effect, values=kept))
    needed_gib = next((point.memory_gib.value for point in points if point.is_best), None)
    answer = answer_of(study, suggestion, needed_gib)
    bar = Markup()
    if best:
        sizes = {name: size * GIB for name, size in best.breakdown_gib.items()}
        outside_gib = answer.needed_gib - (best.allocated_gib.value or 0.0)
        sizes |= {OUTSIDE: outside_gib * GIB} if outside_gib > 0 else {}
        title = f"Peak memory of one {per}"
        bar = charts.memory_bar(sizes, label=title, study=study, prefix="held")
    status = status_of(study, events)
    table = table_of(study, best.settings if best and study.probes else None)
    failed = [
        (probe, probe.measurement)
        for probe in reversed(study.in_order)
        if probe.measurement and probe.measurement.outcome not in RAN
    ]
    # Points that were not probed are in no other table.
    unprobed = [point for point in points if point.outcome is None or point.is_best]
    probe_ids = {probe.id for probe in study.probes}
    values: dict[str, Any] = {
        "study": study,
        "suggestion": suggestion,
        "per": per,
        "status": status,
        "answer": answer,
        "bar": bar,
        "scatter": _scatter(study, points, limit_bytes, per),
        "unprobed": [(point, _path(study.id, point)) for point in unprobed[:MOST_UNPROBED]],
        "is_predicted": study.limits.fidelity is Fidelity.PREDICTED,
        "progress": charts.progress(ended, per=per, prefix="steps") if len(ended) > 1 else "",
        "effects": shown_effects,
        "multiples": charts.small_multiples(shown_effects, per=per, prefix="effects"),
        "fewer": [effect for effect in effects if len(effect.values) > MOST_VALUES],
        "most_values": MOST_VALUES,
        "sentences": [
            linked(text, study.id, probe_ids.intersection(named))
            for text, named in (
                shown(suggestion.facts, suggestion.explanation) if suggestion else ()
            )
        ],
        "knob_heads": KNOB_HEADS,
        "knob_rows": knob_rows(suggestion.facts) if suggestion else [],
        "table": table,
        "troubles": [trouble_of(*one) for one in failed[:MOST_TROUBLES]],
        "failed": sum(row.failed for row in table.rows),
        "cost": cost(study.at(study.limits.fidelity)),
        "limit_gib": limit_bytes / GIB,
    }
    return StudyPage(
        head=head_of(study),
        status=status,
        newest_event=whole.standing.newest_event,
        parts={name: render_part(f"study/{name}.html", **values) for name in PARTS},
        table=table,
    )


def head_of(study: Study) -> StudyHead:
    question, workload = study.question, study.question.workload
    # Optimizer and precision of a user's script are its own, and not known.
    own = [str(workload.optimizer), str(workload.precision)] if question.script is None else []
    facts = [
        f"global batch {workload.global_batch_size:,}",
        f"sequence {workload.sequence_length:,}",
        *own,
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


def _scatter(study: Study, points: Sequence[results.Point], limit_bytes: float, per: str) -> Markup:
    """The scatter; empty where no speed is known and nothing was tried in vain."""
    tried = (results.PointKind.OOM, results.PointKind.OTHER)
    if not any(p.kind in tried or p.tokens_per_s_per_gpu.value is not None for p in points):
        return Markup()

    def path(point: results.Point) -> str:
        # There may be hundreds of marks: the address of a probe is short.
        found = _probe_of(point)
        return f"?probe={found}" if found else _path(study.id, point)

    return charts.scatter(points, path, limit_bytes=limit_bytes, per=per, prefix="at")


def _probe_of(point: results.Point) -> int | None:
    """The newest probe of a point; ``None`` of a prediction."""
    return point.probes[-1] if point.outcome is not None and point.probes else None


def _path(study_id: str, point: results.Point) -> str:
    """The address of what is known of a point: its newest probe, or the prediction."""
    found = _probe_of(point)
    return probe_path(study_id, found) if found else settings_path(study_id, point.settings)


# -- status -----------------------------------------------------------------------------------


def status_of(study: Study, events: Sequence[Event]) -> ShownStatus:
    """The state of a study; its latest events, oldest first, tell when things began."""
    is_open = study.state in OPEN
    ends = [event.at for event in events if event.kind is EventKind.STUDY]
    began = {
        event.data["probe"]: event.at
        for event in events
        if event.kind is EventKind.PROBE and event.data.get("state") == ProbeState.RUNNING
    }
    running = tuple(
        RunningProbe(
            id=probe.id,
            words=spaced(describe(probe.request.settings)),
            since=began.get(probe.id, ""),
        )
        for probe in study.probes
        if is_open and probe.state is ProbeState.RUNNING
    )
    limits, spent = study.limits, cost_of_asking(study)
    ended = sum(probe.state is ProbeState.DONE for probe in probes_of_asking(study))
    # A probe that another worker was running when it was asked may come on top.
    most = max(ended, limits.max_probes)
    budgets = [Budget(spent=ended, most=most, words=f"{ended} of {count_text(most, 'probe')}")]
    times = (("", spent.wall_s, limits.wall_s), (" of devices", spent.device_s, limits.device_s))
    for of_what, gone_s, most_s in times:
        if most_s is not None:
            words = f"{duration_text(gone_s)} of {duration_text(most_s)}{of_what}"
            budgets.append(Budget(spent=min(gone_s, most_s), most=most_s, words=words))
    queued = [probe.id for probe in study.probes if probe.state is ProbeState.QUEUED]
    if study.state is StudyState.QUEUED:
        waits_for = "Waiting for a worker"
    elif study.reason:  # of one that runs: what its worker is at
        waits_for = f"{study.reason[0].upper()}{study.reason[1:]}"
    elif queued:
        waits_for = f"Probe #{queued[0]} waits for its devices"
    elif budgets[0].spent >= budgets[0].most:
        # The finalists' replicas are trained after the last probe.
        waits_for = "Checking the finalists"
    else:
        waits_for = "Choosing what to try next"
    done = budgets[0].words
    if not is_open:
        why = f": {study.reason}" if study.reason else ""
        said = f"{str(study.state).capitalize()}{why}. {done}."
    elif running:
        said = f"Probe {', '.join(f'#{one.id}' for one in running)} is running; {done} done."
    else:
        said = f"{waits_for}; {done} done."
    return ShownStatus(
        state=study.state,
        is_open=is_open,
        reason=study.reason,
        began=study.asked_at,
        ended=ends[-1] if ends and not is_open else "",
        budgets=tuple(budgets),
        running=running,
        waits_for=waits_for,
        said=said,
    )
