"""Finds what is known of each configuration of a study: memory, speed, and what they rest on.

All that a study's probes and predictions say is :class:`Evidence`, each part made when asked for.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tuner.core.answer import Suggestion
from tuner.core.configuration import ACCUMULATION, KNOBS, Settings, Sharding, idle_knobs
from tuner.core.evaluation import Evaluation
from tuner.core.framework import FrameworkName
from tuner.core.measurement import (
    BROKEN,
    CLOSES_CLASS,
    PROBED,
    RAN,
    TRAINS_WRONGLY,
    Fidelity,
    Measurement,
    Outcome,
)
from tuner.core.quantity import UNKNOWN, Quantity
from tuner.core.study import Probe, ProbeState, Question, Study, by_settings
from tuner.core.words import speed_text
from tuner.core.workload import Precision
from tuner.guard.faults import blamed_by_counts, wrong_of
from tuner.planner.expectation import Expectation
from tuner.planner.forecast import Forecast, forecast
from tuner.planner.knowledge import TEACHES_NOTHING, Knowledge, exactly, learned, measurements_of
from tuner.planner.probes import fits, repriced, step_time_of
from tuner.planner.step_times import fair
from tuner.planner.timing import speed_of, step_time
from tuner.text import size_text


class Evidence:
    """Knowledge of a study, shared by all that is shown of it at one time."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def forecast(self) -> Forecast:
        return forecast(self.study)

    @cached_property
    def knowledge(self) -> Mapping[Fidelity, Knowledge]:
        """Knowledge from probes that ran steps, by how they were run; the fidelity that was
        requested goes first, then the stronger one.
        """
        asked, probes = self.study.limits.fidelity, self.study.probes
        there = {p.request.fidelity for p in probes if p.measurement}
        order = sorted(PROBED, key=lambda fidelity: fidelity is not asked)
        # As an answer learns it: it is kept.
        return {
            f: learned(self.study) if f is asked else learned(self.study, f)
            for f in order
            if f in there
        }

    @cached_property
    def probed(self) -> Mapping[Fidelity, Mapping[Settings, Evaluation]]:
        """Findings of these probes by configuration, in the same order."""
        return {fidelity: _found(known) for fidelity, known in self.knowledge.items()}

    @cached_property
    def repriced(self) -> Study:
        return repriced(self.study)

    @cached_property
    def step_times(self) -> Mapping[int, Quantity]:
        """Step times by the probes that ended; unknown where no step was timed."""
        ended = [(probe, probe.measurement) for probe in self.repriced.probes]
        return {p.id: step_time_of(self.study, p, found) for p, found in ended if found}

    @cached_property
    def speeds(self) -> Mapping[int, Quantity]:
        """Tokens per second and rank of the same."""
        return {n: speed_of(time, self.study.question) for n, time in self.step_times.items()}

    @cached_property
    def expectation(self) -> Expectation | None:
        """Expected times of configurations that were not probed, where the cost model knows no
        rates; ``None`` where it does, or no step was timed.
        """
        known = self.knowledge.get(self.study.limits.fidelity)
        if known is None or not self.forecast.unknown:
            return None
        timed = any(found.step_time_s.value is not None for found in known.findings.values())
        return Expectation(known) if timed else None

    def seen(self, settings: Settings) -> tuple[Evaluation, ...]:
        """Measured and emulated results of a configuration, in the order of :attr:`probed`."""
        return tuple(found[settings] for found in self.probed.values() if settings in found)

    def predicted(self, settings: Settings) -> Evaluation | None:
        return self.forecast.estimates.get(settings)

    def with_speed(self, found: Evaluation) -> Evaluation:
        """An estimate, with the speed of the :attr:`expectation` where its own is unknown."""
        if self.expectation is None or found.step_time_s.value is not None:
            return found
        step = self.expectation.seconds(found.settings)
        speed = speed_of(step, self.study.question)
        why = "" if found.fits else found.why
        return replace(found, step_time_s=step, tokens_per_s_per_gpu=speed, why=why)


def _found(known: Knowledge) -> dict[Settings, Evaluation]:
    """Gathers the findings of one fidelity by configuration, in the order of their first probes:
    those that failed too."""
    # Those that fit have the intervals that the answer has.
    findings, evaluated = {**known.findings, **fair(known)}, {}
    ended = by_settings(probe for probe in known.study.probes if probe.measurement)
    for settings, probes in ended.items():
        ordered = tuple(sorted(probes, key=lambda probe: probe.place))
        finding, last, fidelity = findings.get(settings), _last(ordered), probes[0].request.fidelity
        slow, need = known.slow.get(settings), known.too_large.get(settings)
        closed = "" if need else why_closed(known, settings)
        if finding and finding.probes == ordered and not (need or closed):
            evaluated[settings] = finding  # as most are: each of its probes ended well
            continue
        told: dict[str, Any] = {"why": "" if last.outcome is Outcome.OK else last.detail}
        memory = None if finding else last.memory
        if memory is not None:
            told["fits"] = True if slow else None
            told["allocated_bytes"] = exactly(memory.allocated_bytes, fidelity)
            told["needed_bytes"] = exactly(memory.needed_bytes, fidelity)
        elif last.oom and not finding:
            # One that ran out under a smaller limit than today's may fit now.
            told["needed_bytes"] = exactly(last.oom.needed_bytes, fidelity)
        if need is not None:
            told |= {"fits": False, "over_bytes": need.over_bytes}
            if not finding:
                told["needed_bytes"] = need.needed_bytes
        elif closed:
            told |= {"fits": False, "why": told["why"] or closed}
        evaluated[settings] = replace(
            finding or slow or Evaluation(settings=settings, fidelity=fidelity),
            outcome=last.outcome,
            probes=ordered,
            limit_bytes=known.limit_bytes,
            **told,
        )
    return evaluated


def failed(probe: Probe) -> Evaluation:
    found, request = _last([probe]), probe.request
    why = "" if found.outcome is Outcome.OK else found.detail
    return Evaluation(
        settings=request.settings,
        fidelity=request.fidelity,
        outcome=found.outcome,
        why=why,
        probes=(probe,),
    )


def why_closed(known: Knowledge, settings: Settings) -> str:
    """Says what other than memory speaks against a configuration; empty where nothing does."""
    if closed := known.closed_layouts.get(settings.layout):
        return f"settings of its layout ended as {closed.words}"
    if wrong := known.wrong.get(settings):
        return wrong.why
    closed = known.closed.get(settings)
    return f"it ended as {closed.words}" if closed else ""


def _last(probes: Sequence[Probe]) -> Measurement:
    """The last one that says something of the configuration, or else the last one."""
    found = measurements_of(probes)
    telling = [one for one in found if one.outcome not in TEACHES_NOTHING]
    return (telling or found)[-1]


def points(
    study: Study, suggestion: Suggestion | None, evidence: Evidence | None = None
) -> tuple[Evaluation, ...]:
    """One for each settings that was probed, or that the answer names: the answer first, then the
    others, those of the highest speed first.

    What the answer says of settings goes before what else is known of them.
    """
    evidence = evidence or Evidence(study)
    found: dict[Settings, Evaluation] = {}
    for probe in study.probes:
        settings = probe.request.settings
        if probe.measurement is not None and probe.request.fidelity not in PROBED:
            found[settings] = evidence.predicted(settings) or failed(probe)
    for of_fidelity in reversed(list(evidence.probed.values())):
        found |= of_fidelity  # the fidelity asked for comes last
    best = suggestion.best.settings if suggestion and suggestion.best else None
    if suggestion is not None:
        named = (*suggestion.pareto, *suggestion.alternatives, suggestion.best)
        for one in (one for one in named if one is not None):
            # The study knows less than its answer where it was asked again meanwhile.
            known: Iterable[Evaluation | None] = evidence.seen(one.settings)
            if one.basis is not None:
                known = (evidence.predicted(one.settings),)
            if (of_answer := next(iter(known), None)) is not None:
                found[one.settings] = of_answer

    def order(one: Evaluation) -> tuple[bool, float, str]:
        return one.settings != best, -(one.tokens_per_s_per_gpu.value or 0.0), str(one.settings)

    return tuple(sorted(found.values(), key=order))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFar:
    """One probe that has ended."""

    number: int
    probe_id: int
    fidelity: Fidelity
    outcome: Outcome
    tokens_per_s_per_gpu: Quantity
    best: float | None
    """Tokens per second and rank of the fastest that was known to fit then, from all probes of its
    settings up to then; ``None`` before there was one. A repetition may lower it."""


def progress(evidence: Evidence) -> tuple[BestSoFar, ...]:
    """The probes of the fidelity that is asked for, in the order in which they ended."""
    study = evidence.repriced.at(evidence.study.limits.fidelity)
    done = [(probe, probe.measurement) for probe in study.in_order if probe.measurement]
    fastest, steps = _Fastest(study), []
    for number, (probe, found) in enumerate(done, start=1):
        speed = evidence.speeds[probe.id]
        fastest.add(probe, found, speed)
        steps.append(
            BestSoFar(
                number=number,
                probe_id=probe.id,
                fidelity=probe.request.fidelity,
                outcome=found.outcome,
                tokens_per_s_per_gpu=speed,
                best=fastest.speed,
            )
        )
    return tuple(steps)


class _Fastest:
    """The fastest settings that are known to fit, while probes are told one after the other."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._found: dict[Settings, list[Measurement]] = defaultdict(list)
        self._speeds: dict[Settings, float] = {}
        self._closed: set[Settings] = set()
        self._closed_layouts: set[Settings] = set()
        self._wrong: frozenset[Settings] = frozenset()
        self._told: list[Probe] = []
        self.speed: float | None = None
        """Tokens per second and rank; ``None`` where nothing is known to fit."""

    def add(self, probe: Probe, found: Measurement, own: Quantity) -> None:
        """Tells of a probe, and of its own speed."""
        settings = probe.request.settings
        self._told.append(probe)
        self._found[settings].append(found)
        closed = len(self._closed), len(self._closed_layouts), self._wrong
        if found.outcome in TRAINS_WRONGLY or self._wrong:  # another layout may open it again
            known = replace(self.study, probes=tuple(self._told), guards={})
            tried = {probe.request.settings for probe in self.study.probes}
            self._wrong = frozenset(wrong_of(known, tried))
        ranks = self.study.question.cluster.world_size
        if found.outcome in CLOSES_CLASS and not blamed_by_counts(settings, ranks, found):
            self._closed_layouts.add(settings.layout)
        elif found.outcome in BROKEN:
            self._closed.add(settings)
        before = self._speeds.pop(settings, None)
        speed = self._speed_of(settings, own)
        if speed is not None and not self._is_closed(settings):
            self._speeds[settings] = speed
            self.speed = max(speed, self.speed or 0.0)
        # All are looked at only where one was closed: there may be hundreds.
        if is_closing := closed != (len(self._closed), len(self._closed_layouts), self._wrong):
            self._speeds = {s: one for s, one in self._speeds.items() if not self._is_closed(s)}
        if is_closing or before is not None:
            self.speed = max(self._speeds.values(), default=None)

    def _is_closed(self, settings: Settings) -> bool:
        closed = settings in self._closed or settings in self._wrong
        return closed or settings.layout in self._closed_layouts

    def _speed_of(self, settings: Settings, own: Quantity) -> float | None:
        """Speed from all probes of a configuration together, as the answer has it; ``None`` of what
        does not fit."""
        found = self._found[settings]
        ended = [one for one in found if one.outcome is Outcome.OK]
        if not ended or any(fits(self.study, one) is False for one in found):
            return None
        if len(found) == 1 or not ended[-1].step_times_s:
            return own.value
        time = step_time(ended, settings.gradient_accumulation_steps)
        return speed_of(time, self.study.question).value


# Finished configurations from which on knobs are weighed.
FEWEST_WEIGHED = 8
# Shuffles of the step times that a knob is held against, and the part of them that it must beat:
# with some eight knobs, a weaker test would name one without any effect in every third study.
SHUFFLES, SURELY = 200, 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Shares of the variance of the logarithm of the step time, each by one knob alone."""

    fidelity: Fidelity
    configurations: int
    shares: Mapping[str, float]
    """Of knobs that explain more than chance does, largest first. Knobs that changed together both
    count what they explain, so that the sum may be above 1."""
    others: tuple[str, ...]
    """Knobs that explain no more than chance does; those with many values for the configurations
    are not weighed at all."""


def importance(evidence: Evidence) -> Importance | None:
    """Weighs knobs by the configurations that ran to their end at the fidelity that is asked for;
    ``None`` of fewer than :data:`FEWEST_WEIGHED`, or where no two step times differ.

    A share is the adjusted R squared of a one-way analysis of variance.
    """
    # Optuna's PED-ANOVA gives shares of 1 whatever there is to explain: of 60 configurations with
    # random step times it gave 46% to one knob. Its fANOVA needs scikit-learn.
    asked = evidence.study.limits.fidelity
    timed = [
        (settings.all_values(), found.step_time_s.value)
        for settings, found in evidence.probed.get(asked, {}).items()
        if found.outcome is Outcome.OK and found.step_time_s.value
    ]
    count, times = len(timed), np.log([seconds for _, seconds in timed])
    if count < FEWEST_WEIGHED or not np.ptp(times):
        return None
    times -= times.mean()
    shuffled = np.random.default_rng(0).permuted(np.tile(times, (SHUFFLES, 1)), axis=1)
    orders = np.vstack([times, shuffled])
    shares, others = dict[str, float](), list[str]()
    for knob in KNOBS:
        values = [row[knob] for row, _ in timed]
        places = {value: place for place, value in enumerate(set(values))}
        groups = len(places)
        # Accumulation follows from the others. Of values that most configurations have alone,
        # nothing is known.
        if knob == ACCUMULATION or not 2 <= groups <= count / 2:
            continue
        members = np.eye(groups)[[places[value] for value in values]]
        between = ((orders @ members) ** 2 / members.sum(axis=0)).sum(axis=1)
        explained = 1 - (1 - between / (times @ times)) * (count - 1) / (count - groups)
        if explained[0] > max(np.quantile(explained[1:], SURELY), 0.0):
            shares[knob] = float(explained[0])
        else:
            others.append(knob)
    return Importance(
        fidelity=asked,
        configurations=count,
        shares=dict(sorted(shares.items(), key=lambda one: -one[1])),
        others=tuple(others),
    )


# Knobs that are shown even where there is nothing to compare them with.
ALWAYS = ("sharding", "micro_batch_size", "gradient_accumulation_steps")


def rows_of(study: Study, known: Knowledge | None = None) -> tuple[Evaluation, ...]:
    """What the probes of each configuration show so far, in the order of probing; with times as the
    answer has them, where what is ``known`` of the study is given."""
    found = by_settings(repriced(study).probes)
    rows = (_row(settings, probes, study.question) for settings, probes in found.items())
    if known is None:
        return tuple(rows)
    timed = {**known.findings, **fair(known)}

    def as_answered(row: Evaluation) -> Evaluation:
        one = timed.get(row.settings, row)
        speed = one.tokens_per_s_per_gpu
        return replace(row, step_time_s=one.step_time_s, tokens_per_s_per_gpu=speed)

    return tuple(map(as_answered, rows))


def fastest_first(rows: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """Rows with a speed by speed, then the others in the order of probing."""
    return tuple(sorted(rows, key=lambda row: -(row.tokens_per_s_per_gpu.value or 0.0)))


# A table is made again after every probe, of much the same settings.
@lru_cache(maxsize=4096)
def knob_texts(settings: Settings) -> Mapping[str, str]:
    texts = {name: _text(value) for name, value in settings.all_values().items()}
    texts |= dict.fromkeys(idle_knobs(settings), "-")
    if settings.sharding is not Sharding.HYBRID_SHARD or not settings.sync_each_batch:
        texts["defer_all_reduce"] = "-"
    return texts


def differing(settings: Sequence[Settings]) -> tuple[str, ...]:
    """Knobs that do not have one value in all of ``settings``.

    Of a single one, those that say most: batch sizes, sharding, and knobs off their default.
    """
    texts = [knob_texts(one) for one in settings]
    if len(set(settings)) == 1:
        return tuple(k for k in KNOBS if k in ALWAYS or texts[0][k] not in ("-", _DEFAULTS[k]))
    return tuple(name for name in KNOBS if len({one[name] for one in texts} - {"-"}) > 1)


def _row(settings: Settings, probes: Sequence[Probe], question: Question) -> Evaluation:
    """Of several outcomes it has that of the steps that were done, else the latest."""
    done = [p.measurement for p in probes if p.state is ProbeState.DONE and p.measurement]
    good = [m for m in done if m.outcome is Outcome.OK]
    timed = good or [m for m in done if m.outcome in RAN]
    shown = timed or done[-1:]
    time = step_time(timed, settings.gradient_accumulation_steps)
    needs, fidelity = [m.needed_bytes for m in shown if m.needed_bytes], probes[0].request.fidelity
    return Evaluation(
        settings=settings,
        fidelity=fidelity,
        outcome=shown[-1].outcome if shown else None,
        why=shown[-1].detail if shown else "",
        needed_bytes=exactly(max(needs), fidelity) if needs else UNKNOWN,
        step_time_s=time,
        tokens_per_s_per_gpu=speed_of(time, question),
        probes=tuple(probes),
    )


def outcome_text(row: Evaluation) -> str:
    """The outcome, or the state of a probe that has none yet."""
    return row.outcome.words if row.outcome else str(row.probes[-1].state)


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


_DEFAULTS = {name: _text(value) for name, value in Settings().all_values().items()}


def numerics(question: Question) -> list[str]:
    """Optimizer and precision; none of a user's script, whose own are not known.

    ``pure bf16`` where optimizer state has no copy in fp32 either, which many do not expect.
    """
    workload = question.workload
    if question.script is not None:
        return []
    pure = workload.precision is Precision.BF16 and workload.adapter is None
    pure = pure and question.framework.name is not FrameworkName.NANOTRON  # sums are fp32
    return [str(workload.optimizer), f"{'pure ' if pure else ''}{workload.precision}"]


def question_text(question: Question) -> str:
    """``stories15m on cpu:2 (torch), global batch 8, sequence 128, adamw, fp32``."""
    workload = question.workload
    return ", ".join((
        f"{question.trained} on {question.cluster.name} ({question.framework.name})",
        f"global batch {workload.global_batch_size}, sequence {workload.sequence_length}",
        *numerics(question),
        *workload.unlike_usual,
    ))  # fmt: skip


def row_text(row: Evaluation, per: str) -> str:
    """Says what probes have shown: ``ok, 612 MiB, 1,243 tokens/s per GPU``."""
    parts, speed = [outcome_text(row)], row.tokens_per_s_per_gpu.value
    if row.needed_bytes.value is not None:
        parts.append(f"{'more than ' if row.at_least else ''}{size_text(row.expected_bytes)}")
    if speed is not None:
        parts.append(f"{speed_text(speed)} tokens/s per {per}")
    elif row.why and not row.at_least:
        parts.append(row.why)
    return ", ".join(parts)
