"""Knob values that were seen to train something else, and in which settings that holds.

A check is of a replica's training or of a probe's counts. One that failed blames the knob that its
counts show, or the one in which alone it differs from a replica that passed. The value is then
wrong in that layout, and taken to be wrong in all others until it is seen to be right in one of
them: then only those where it failed are closed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from tuner.core.configuration import Settings
from tuner.core.framework import NOT_PROBED, OF_ADAPTERS, same_release
from tuner.core.measurement import PROBED, RAN, TRAINS_WRONGLY, CheckState, Measurement, Outcome
from tuner.core.study import Question, Study
from tuner.core.workload import Precision
from tuner.guard.check import GuardCheck
from tuner.guard.replica import (
    STACK,
    NoReplicaError,
    Replica,
    family_of,
    replica_of,
    smallest_factor,
)
from tuner.text import kept, show

# The knobs that act in settings, with their values: what settings of one path have in common.
Path = tuple[tuple[str, Any], ...]


# A study is planned, answered and shown after every probe, and its probes' settings are the same.
@lru_cache(maxsize=4096)
def path_of(settings: Settings, ranks: int) -> Path:
    """The knobs that act in settings on so many ranks, with their values.

    Tensor parallelism is told by its smallest prime factor, as replicas have it. Wherever gradients
    accumulate, ``sync_each_batch`` is told to the stack, which steps by it: also on one
    data-parallel rank, where there is nothing to be reduced.
    """
    parallel = settings.data_parallel_size(ranks) > 1
    values: dict[str, Any] = {"activation_checkpointing": settings.activation_checkpointing}
    if settings.pp_size > 1:
        values["pp_size"] = settings.pp_size
    if settings.splits_layers:
        values["tp_size"] = smallest_factor(settings.tp_size)
        values["tp_recompute_allgather"] = settings.tp_recompute_allgather
    if parallel:
        values["sharding"] = settings.sharding
    if settings.cpu_offload:
        values["cpu_offload"] = True
    if settings.fused_loss:
        values["fused_loss"] = True
    if settings.gradient_accumulation_steps > 1:
        values["sync_each_batch"] = settings.sync_each_batch
    if settings.defer_all_reduce:
        values["defer_all_reduce"] = True
    return tuple(sorted(values.items()))


def blamed_by_counts(settings: Settings, ranks: int, found: Measurement) -> str:
    """The knob that a probe's counts show to be wrong; empty where they show none.

    An optimizer that steps more or less often than it has to takes a micro-batch for a step, which
    is what ``sync_each_batch`` decides.
    """
    if found.outcome is Outcome.KNOB_INACTIVE:
        return found.knob
    miscounted = found.optimizer_steps != found.expected_optimizer_steps
    is_wrong = found.outcome is Outcome.WRONG_RESULT and miscounted
    acts = "sync_each_batch" in dict(path_of(settings, ranks))
    return "sync_each_batch" if is_wrong and acts else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCheck:
    """Evidence of training a configuration, with any model of the same program and versions."""

    path: Path  # of the settings
    outcome: Outcome  # ``ok`` where they passed
    detail: str = ""  # why not
    knob: str = ""  # the knob that is to blame by what was counted; empty where counts show none
    source: str = ""  # where that is known from, in words
    is_own: bool = False  # whether it is of the question's own model, or of its own study's probes
    compared: str = ""
    """What losses were compared of: a replica's family and number format; empty of a probe, whose
    losses have nothing to be held against."""

    @property
    def passed(self) -> bool:
        return self.outcome in (Outcome.OK, Outcome.STOPPED_EARLY)

    @property
    def is_probe(self) -> bool:
        """Tells whether it is of a probe: what that has counted, no model's replica clears."""
        return not self.compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    outcome: Outcome  # ``wrong_result``, ``knob_inactive`` or ``non_finite``
    why: str  # in words, without a full stop
    is_unconfirmed: bool = False
    """Whether the value failed in one other layout, and nobody looked into this one: a probe of it
    says whether the value is wrong or only the layout."""


def layout_of(path: Path, knob: str) -> str:
    """Holds what else decides which code a knob's value takes.

    Tensor parallelism gathers alike whatever the data-parallel ranks split; buffers that are used
    again were seen to be wrong only with, or only without, checkpointing.
    """
    values = dict(path)
    if knob in ("tp_size", "tp_recompute_allgather"):
        return f"activation_checkpointing={values['activation_checkpointing']}"
    if knob == "sharding":
        return "with tensor parallelism" if "tp_size" in values else "without tensor parallelism"
    return f"sharding={values.get('sharding', 'none')}"


def bears_on(question: Question, check: GuardCheck) -> bool:
    """Says if a check says something of a question's settings: the program that was run is the
    same, in the same versions, in a number format that the question has, or in fp32."""
    versions, theirs = question.framework.versions, check.versions
    compared = {*STACK, *(OF_ADAPTERS & versions.keys() & theirs.keys())}
    return (
        question.framework.name not in NOT_PROBED
        and check.program == question.program
        and compared <= versions.keys() & theirs.keys()
        and all(same_release(versions[package], theirs[package]) for package in compared)
        and check.precision in ("", Precision.FP32, question.workload.precision)
        and bool(check.settings)
    )


def check_of(check: GuardCheck, own_family: str) -> PathCheck:
    """A check that was kept, as evidence on a path."""
    passed = check.result is CheckState.PASSED
    replica = f"a small {check.model_type or 'model'} on {check.ranks} ranks"
    return PathCheck(
        path=path_of(Settings.from_dict(check.settings), check.ranks),
        outcome=Outcome.OK if passed else check.outcome,
        detail=check.detail,
        knob=check.knob,
        source=f"a probe of {check.study}" if check.study else replica,
        is_own=not check.study and check.family == own_family,
        compared="" if check.study else f"{check.family} {check.precision}",
    )


def checks_of(question: Question, checks: Iterable[GuardCheck]) -> Iterator[PathCheck]:
    """The checks that bear on a question, and that were reached, as checks."""
    family = family_of(question)
    for check in checks:
        if check.result is not CheckState.NOT_CHECKED and bears_on(question, check):
            yield check_of(check, family)


class Faults:
    """Looks up what checks have shown, by the path of a configuration."""

    def __init__(self, checks: Iterable[PathCheck]) -> None:
        self._checks = tuple(dict.fromkeys(checks))
        self._wrong: dict[Path, Wrong | None] = {}
        self._compared: dict[Path, bool] = {}

    @cached_property
    def any(self) -> bool:
        return any(not check.passed for check in self._checks)

    def wrong(self, path: Path) -> Wrong | None:
        """Why settings of a path must not be suggested; ``None`` where nothing is known."""
        if not self.any:
            return None
        if path not in self._wrong:
            found = [*(self._of_knob(path, knob, value) for knob, value in path)]
            known = [wrong for wrong in (*found, self._of_path(path)) if wrong]
            self._wrong[path] = min(known, key=lambda wrong: wrong.is_unconfirmed, default=None)
        return self._wrong[path]

    def is_checked(self, path: Path) -> bool:
        """Says if each value of a path was seen to train what it should, in the same layout."""
        if path not in self._compared:
            self._compared[path] = all(
                layout_of(path, knob) in self._right.get((knob, value), ()) for knob, value in path
            )
        return self._compared[path]

    @cached_property
    def _right(self) -> Mapping[tuple[str, Any], set[str]]:
        """Layouts in which each value passed with its losses compared."""
        right = defaultdict(set)
        for check in self._checks:
            if check.passed and check.compared:
                for knob, value in check.path:
                    right[knob, value].add(layout_of(check.path, knob))
        return right

    @cached_property
    def failures(self) -> Mapping[tuple[str, Any], Sequence[tuple[PathCheck, bool]]]:
        """Failed checks by knob and value that are to blame, each with whether its losses show it.

        Those that blame none are kept by an empty name and their path.
        """
        found = defaultdict(list)
        for check in self._checks:
            if check.passed:
                continue
            if check.knob in dict(check.path):
                found[check.knob, dict(check.path)[check.knob]].append((check, False))
            elif knob := self._differs(check):
                found[knob, dict(check.path)[knob]].append((check, True))
            else:
                found["", check.path].append((check, bool(check.compared)))
        return found

    def _differs(self, failed: PathCheck) -> str:
        """The knob in which alone a failed check differs from one that passed, whose losses were
        compared with those of the same process; empty where there is none.

        Of several, the first of :data:`_BLAME` that can be: the more special one.
        """
        mine = dict(failed.path)
        found = set()
        for other in self._checks:
            theirs = dict(other.path)
            if not other.passed or not failed.compared or other.compared != failed.compared:
                continue
            apart = {k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k)}
            if "tp_size" in apart:  # without it there is nothing to gather again
                apart.discard("tp_recompute_allgather")
            if len(apart) == 1 and apart <= mine.keys() and apart <= theirs.keys() | _CAN_BE_OFF:
                found |= apart
        return next((knob for knob in _BLAME if knob in found), "")

    def _of_knob(self, path: Path, knob: str, value: Any) -> Wrong | None:
        failures = self.failures.get((knob, value), ())
        if not failures:
            return None
        layout = layout_of(path, knob)
        failed = {layout_of(check.path, knob) for check, _ in failures}
        first = next((check for check, _ in failures if check.is_own), failures[0][0])
        where = f" with {layout_of(first.path, knob)}" if len(failed) == 1 else ""
        acts = "does not act" if first.outcome is Outcome.KNOB_INACTIVE else "trains something else"
        known = Wrong(
            outcome=first.outcome,
            why=f"{knob}={show(value)} {acts}{where}: {first.detail} ({first.source})",
        )
        here = (check for check, _ in failures if layout_of(check.path, knob) == layout)
        if any(check.is_own or check.is_probe for check in here):
            return known
        by_losses = any(shown for _, shown in failures)
        # one data-parallel rank shows nothing of when gradients are reduced
        passed = [
            check
            for check in self._checks
            if check.passed
            and (knob, value) in check.path
            and (check.compared or not by_losses)
            and (knob != "sync_each_batch" or "sharding" in dict(check.path))
        ]
        if any(c.is_own and c.compared and layout_of(c.path, knob) == layout for c in passed):
            return None
        if layout in failed:
            return known
        if any(layout_of(check.path, knob) not in failed for check in passed):
            return None
        return replace(known, is_unconfirmed=len(failed) == 1)

    def _of_path(self, path: Path) -> Wrong | None:
        """Lists the checks of configurations that failed as a whole."""
        failures = [check for check, _ in self.failures.get(("", path), ())]
        same = (check for check in self._checks if check.path == path)
        if any(check.passed and check.is_own and check.compared for check in same):
            failures = [check for check in failures if check.is_own or check.is_probe]
        if not failures:
            return None
        first = next((check for check in failures if check.is_own), failures[0])
        why = f"such settings ended as {first.outcome.words}: {first.detail} ({first.source})"
        return Wrong(outcome=first.outcome, why=why)


# Knobs, the one first that others are least likely to act through.
_BLAME = (
    "defer_all_reduce",
    "tp_recompute_allgather",
    "sync_each_batch",
    "cpu_offload",
    "fused_loss",
    "activation_checkpointing",
    "tp_size",
    "sharding",
)
# Knobs that settings of a path may lack, and differ in nothing else.
_CAN_BE_OFF = {"cpu_offload", "defer_all_reduce", "fused_loss", "tp_size"}


# Why settings of a script are not checked as those of the probe program are.
NO_REPLICA_OF_A_SCRIPT = "a replica shows nothing of a script of one's own"


def replicas_of(question: Question, settings: Settings) -> tuple[Replica, ...]:
    """The replicas whose verdicts settings need: in fp32, and in the workload's number format."""
    if question.script is not None:
        raise NoReplicaError(NO_REPLICA_OF_A_SCRIPT)
    precision = question.workload.precision
    formats = dict.fromkeys((Precision.FP32, precision))
    return tuple(replica_of(question, settings, one) for one in formats)


@kept(maxsize=8)
def faults_of(study: Study) -> Faults:
    """Collects what was seen to train something else, in this study's versions."""
    others = (v for v in study.guards.values() if v.study != study.id)
    return Faults((*_probed(study), *checks_of(study.question, others)))


def _probed(study: Study) -> Iterator[PathCheck]:
    ranks = study.question.cluster.world_size
    for probe in sorted(study.probes, key=lambda p: p.id):
        found, settings = probe.measurement, probe.request.settings
        if found is None or probe.request.fidelity not in PROBED:
            continue
        if found.outcome in RAN | TRAINS_WRONGLY:
            yield PathCheck(
                path=path_of(settings, ranks),
                outcome=found.outcome,
                detail=found.detail,
                knob=blamed_by_counts(settings, ranks, found),
                source=f"probe #{probe.id}",
                is_own=True,
            )


def wrong_of(study: Study, settings: Iterable[Settings]) -> dict[Settings, Wrong]:
    """Selects the configurations that must not be suggested: they train something else, or may
    well.
    """
    faults, ranks = faults_of(study), study.question.cluster.world_size
    if not faults.any:
        return {}
    found = ((one, faults.wrong(path_of(one, ranks))) for one in settings)
    return {one: wrong for one, wrong in found if wrong is not None}


def known_checks(study: Study, settings: Settings) -> Iterator[GuardCheck]:
    """The verdicts on the settings' replicas, as far as there are some."""
    versions = study.question.framework.versions
    try:
        replicas = replicas_of(study.question, settings)
    except NoReplicaError:
        return
    for replica in replicas:
        if (verdict := study.guards.get(replica.key(versions))) is not None:
            yield verdict


def is_checked(study: Study, settings: Settings) -> bool:
    """Tells whether each knob's value was seen to train what it should, with some small model."""
    if not study.guards or study.question.script is not None:
        return False
    return faults_of(study).is_checked(path_of(settings, study.question.cluster.world_size))
