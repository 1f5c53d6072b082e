"""A study's page in parts, which are the same for all who see it, made once for each event."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from markupsafe import Markup

from api.answers import Answers, Whole
from api.pages.answer import Answer, answer_of
from api.pages.drawings import Drawings, best_bar, point_path
from api.pages.evidence import Trouble, trouble_of
from api.pages.probe_table import Table, table_of
from api.pages.render import render_part
from api.pages.sentences import linked
from api.pages.status import Status, status_of
from api.study_cache import Kept
from tuner import results
from tuner.answering.words import rank_word
from tuner.measurement import RAN, Fidelity
from tuner.planner.spending import cost
from tuner.settings import knob_value
from tuner.store import Event, Store
from tuner.store.standing import Standing
from tuner.study import OPEN, Question, Study, StudyState
from tuner.suggestion import GIB

MOST_KEPT = 64
"""Pages that are kept, of some 300 kB each."""
LATEST_EVENTS = 256
"""Events that are looked at for when things began."""
MOST_TROUBLES = 12
"""Failed probes that are shown in short; all of them are in the table."""
MOST_VALUES = 12
"""Values of a knob that are shown: the fastest ones, in their order."""
MOST_UNPROBED = 30
"""Settings in the table behind the scatter, which were not probed; best ones first."""
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
"""In the order of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the page says above everything else."""

    id: str
    """The study."""
    model: str
    """What is trained, as whoever asked named it."""
    cluster: str
    """Where."""
    facts: tuple[str, ...]
    """The rest of the question, in a few words each."""
    is_script: bool
    """Whether a user's script is trained: nothing is predicted of it, and no form asks for it."""
    created_at: str
    """When it was first asked, UTC in ISO 8601."""
    asked_at: str
    """When it was asked last, UTC in ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A study as its page shows it."""

    head: Head
    """What never changes."""
    state: StudyState
    """Where it stood."""
    newest_event: int
    """Id of the last thing that had happened to it."""
    said: str
    """Where it stands, in a sentence."""
    parts: Mapping[str, Markup]
    """The page's parts by name; empty ones for what is not known."""
    table: Table
    """Its probes, for those who want them in another order."""
    version: str
    """Digest of all parts."""

    @property
    def is_open(self) -> bool:
        """Whether more will come."""
        return self.state in OPEN

    def beside(self, known: Mapping[str, Markup]) -> dict[str, Markup]:
        """The parts that are not as they are known."""
        return {name: part for name, part in self.parts.items() if known.get(name) != part}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """What the template of the probes' part reads."""

    table: Table
    """The table, in the order that was asked for."""


class StudyPages:
    """Pages of one database's studies, kept until something happens. Safe to use from any thread.

    Args:
        store: where studies are.
        answers: what they answer, with the turn to compute.
    """

    def __init__(self, store: Store, answers: Answers) -> None:
        self._store = store
        self._answers = answers
        self._kept = Kept(self._make, answers.turn, most=MOST_KEPT)

    def of(self, standing: Standing) -> Shown:
        """A study's page as it stands, or as it stood a moment later.

        Raises:
            StoreError: the database fails.
        """
        return self._kept.of(standing)

    def _make(self, standing: Standing) -> Shown:
        whole = self._answers.whole(standing)
        return shown_of(whole, self._store.latest_events(standing.id, LATEST_EVENTS))


def shown_of(whole: Whole, events: Sequence[Event]) -> Shown:
    """A study's page.

    Args:
        whole: the study with its answer.
        events: its latest ones, oldest first.
    """
    view = View(whole, events)
    parts = {name: _part(name, view) for name in PARTS}
    digest = hashlib.sha256("\0".join(parts.values()).encode())
    return Shown(
        head=head_of(whole.study),
        state=whole.study.state,
        newest_event=whole.standing.newest_event,
        said=view.status.said,
        parts=parts,
        table=view.table,
        version=digest.hexdigest()[:16],
    )


def head_of(study: Study) -> Head:
    """What is asked, in words."""
    return Head(
        id=study.id,
        model=study.question.trained,
        cluster=study.question.cluster.name,
        facts=_facts(study.question),
        is_script=study.question.script is not None,
        created_at=study.created_at,
        asked_at=study.asked_at,
    )


def _facts(question: Question) -> tuple[str, ...]:
    workload, framework = question.workload, question.framework
    knobs = [
        f"{name} {' or '.join(str(knob_value(name, one)).lower() for one in values)}"
        for name, values in question.knobs.items()
    ]
    # Those of a user's script are its own, and not known.
    known = (str(workload.optimizer), str(workload.precision)) if question.script is None else ()
    return (
        f"global batch {workload.global_batch_size:,}",
        f"sequence {workload.sequence_length:,}",
        *known,
        str(framework.name),
        *knobs,
    )


def _part(name: str, view: "View") -> Markup:
    return render_part(f"study/{name}.html", view=view)


class View:
    """What the templates of the parts read; each thing is made when it is first asked for."""

    def __init__(self, whole: Whole, events: Sequence[Event]) -> None:
        self.study = study = whole.study
        self.suggestion = whole.suggestion
        self.evidence = whole.evidence
        self.events = events
        self.per = rank_word(study.question)
        self.same = study.at(study.terms.fidelity)

    @cached_property
    def status(self) -> Status:
        """Where the study stands."""
        return status_of(self.study, self.events)

    @cached_property
    def points(self) -> tuple[results.Point, ...]:
        """Settings that were probed, or that the answer names."""
        return results.points(self.study, self.suggestion, self.evidence)

    @cached_property
    def answer(self) -> Answer:
        """What to run."""
        needed = [point.memory_gib.value for point in self.points if point.is_best]
        return answer_of(self.study, self.suggestion, needed[0] if needed else None)

    @property
    def bar(self) -> Markup:
        """The answer's memory."""
        assert self.answer.best is not None
        return best_bar(self.study, self.answer.best, self.answer.needed_gib, self.per)

    @property
    def has_marks(self) -> bool:
        """Whether a speed is known, or something was tried that has none."""
        kinds = (results.PointKind.OOM, results.PointKind.OTHER)
        return any(
            point.tokens_per_s_per_gpu.value is not None or point.kind in kinds
            for point in self.points
        )

    @property
    def scatter(self) -> Markup:
        """Memory against speed."""
        return self._drawings.scatter()

    @cached_property
    def unprobed(self) -> tuple[tuple[results.Point, str], ...]:
        """Points that were not probed, so that they are in no other table, with their paths."""
        found = [point for point in self.points if point.outcome is None or point.is_best]
        return tuple((point, point_path(self.study.id, point)) for point in found[:MOST_UNPROBED])

    @cached_property
    def ended(self) -> tuple[results.Progress, ...]:
        """Probes in the order in which they ended."""
        return results.progress(self.study)

    @property
    def progress(self) -> Markup:
        """The best so far."""
        return self._drawings.progress(self.ended)

    @cached_property
    def all_effects(self) -> tuple[results.KnobEffect, ...]:
        """What each knob does."""
        return results.knob_effects(self.study, self.suggestion, self.evidence)

    @cached_property
    def effects(self) -> tuple[results.KnobEffect, ...]:
        """The same; of knobs with many values the best ones."""
        return tuple(_fewer(effect) for effect in self.all_effects)

    @property
    def left_out(self) -> list[str]:
        """Sentences about knobs with more values than are shown."""
        return [
            f"Of {effect.knob.replace('_', ' ')} the {MOST_VALUES} best of"
            f" {len(effect.values)} values are shown."
            for effect in self.all_effects
            if len(effect.values) > MOST_VALUES
        ]

    @property
    def multiples(self) -> Markup:
        """The same, drawn."""
        return self._drawings.multiples(self.effects)

    @property
    def sentences(self) -> list[Markup]:
        """The explanation, each sentence with its probes as links."""
        ids = {probe.id for probe in self.study.probes}
        found = self.suggestion.explanation if self.suggestion else ()
        return [linked(text, self.study.id, ids) for text in found]

    @cached_property
    def table(self) -> Table:
        """All probes."""
        best = self.answer.best
        chosen = best.settings if best and self.study.probes else None
        return table_of(self.study, chosen)

    @cached_property
    def troubles(self) -> tuple[Trouble, ...]:
        """Probes that failed, the newest first."""
        failed = [
            (probe, probe.measurement)
            for probe in reversed(self.study.in_order)
            if probe.measurement and probe.measurement.outcome not in RAN
        ]
        return tuple(trouble_of(self.study, *one) for one in failed[:MOST_TROUBLES])

    @property
    def failed(self) -> int:
        """How many did."""
        return sum(line.failed for line in self.table.lines)

    @property
    def spent(self) -> tuple[float, float]:
        """Seconds, and device-seconds, that all askings have cost."""
        found = cost(self.same)
        return found.wall_s, found.device_s

    @property
    def is_predicted(self) -> bool:
        """Whether nothing was to be run."""
        return self.study.terms.fidelity is Fidelity.PREDICTED

    @property
    def limit_gib(self) -> float:
        """What one device may need."""
        return self.study.terms.limit_bytes(self.study.question.cluster) / GIB

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the stack that was asked about."""
        return self.study.question.framework.versions

    @cached_property
    def _drawings(self) -> Drawings:
        return Drawings(points=self.points, per=self.per, study=self.study)


def _fewer(effect: results.KnobEffect) -> results.KnobEffect:
    fastest = sorted(
        effect.values,
        key=lambda one: (not one.is_best, -(one.tokens_per_s_per_gpu.value or 0.0)),
    )[:MOST_VALUES]
    return replace(effect, values=tuple(one for one in effect.values if one in fastest))
