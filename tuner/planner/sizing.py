"""Sizes a job by arithmetic: the fewest GPUs that do, the most that they can do, and what it costs.

Everything is looked for among the legal configurations of a question, on parts of its cluster. What
fits is looked for on each part. Speed is taken to grow with the part, so that few are predicted,
and answers say so. Memory grows with the sequence in every configuration: the longest is found by
halving.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from tuner.core.answer import Awkward
from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.framework import FrameworkName
from tuner.core.quantity import Quantity
from tuner.core.study import Limits, Question, Study, StudyState
from tuner.core.words import describe
from tuner.core.workload import Workload
from tuner.cost.calibration import Calibration
from tuner.cost.memory.tensors import counts
from tuner.cost.prediction import untraced
from tuner.errors import UsageError
from tuner.guard.check import GuardCheck
from tuner.guard.faults import wrong_of
from tuner.model import ModelConfig
from tuner.planner.answer import predicted_choice
from tuner.planner.forecast import Asked, Forecast, estimate, forecast
from tuner.serialization import Plain
from tuner.space import count_settings, divisors, enumerate_space
from tuner.space.rules import possible, why_only_ddp

# Numbers of GPUs of one node that are tried whatever they divide.
MOST_OF_A_NODE = 16
# Parts, the largest ones, of which any may be the fastest: not all divide the batch as well.
LAST = 3
# Lengths of sequences are looked for in multiples of this.
SEQUENCE_STEP = 128
# Batches that are compared with one that divides badly are no further from it than this.
NEAR_BATCH = 0.1
# Part of the speed that a batch must cost to be told: less is within the error of predictions.
COSTLY = 0.03
# Batches that lose less than this beside the better one are as good.
AS_GOOD = 0.02

# What a store knows of the devices of a question, and of how its configurations train.
Known = Callable[[Question], tuple[Calibration | None, Mapping[str, GuardCheck]]]


def nothing_known(question: Question) -> tuple[None, Mapping[str, GuardCheck]]:
    """Knows of no calibration, and of no check."""
    return None, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(Plain):
    """What a job must reach, as far as it must reach anything."""

    tokens_per_s: float | None = None  # of the whole job
    tokens: float | None = None  # to be trained on
    within_s: float | None = None  # seconds in which that is to be done

    @property
    def wanted_per_s(self) -> float | None:
        """Tokens per second that are enough; ``None`` where any speed is."""
        if self.tokens is not None and self.within_s is not None:
            return self.tokens / self.within_s
        return self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A question on a number of GPUs, with the best configuration that is predicted for it."""

    question: Question
    best: Evaluation
    tokens: float | None = None  # of the goal

    @property
    def gpus(self) -> int:
        return self.question.cluster.world_size

    @property
    def tokens_per_s(self) -> Quantity:
        """Tokens per second of all GPUs together."""
        return self.best.tokens_per_s_per_gpu.scaled(self.gpus)

    @property
    def cost_per_billion_tokens(self) -> Quantity | None:
        """In the currency of the price; ``None`` where no price is known."""
        price = self.question.cluster.price_per_gpu_hour
        return None if price is None else self.tokens_per_s.under(1e9 * self.gpus * price / 3600)

    @property
    def finish_s(self) -> Quantity | None:
        """Seconds in which the tokens of the goal are trained on; ``None`` without any."""
        return None if self.tokens is None else self.tokens_per_s.under(self.tokens)

    def as_dict(self) -> dict[str, Any]:
        cost, finish, best = self.cost_per_billion_tokens, self.finish_s, self.best
        return {
            "gpus": self.gpus,
            "nodes": self.question.cluster.nodes,
            "gpus_per_node": self.question.cluster.gpus_per_node,
            "cluster": self.question.cluster.name,
            "model": self.question.workload.model.name,
            "sequence_length": self.question.workload.sequence_length,
            "settings": best.settings.as_dict(),
            "provenance": str(best.provenance),
            "fits_surely": best.fits_surely,
            "memory": {"needed_gib": best.needed_gib.as_dict(), "limit_gib": best.limit_gib},
            "tokens_per_s": self.tokens_per_s.as_dict(),
            "tokens_per_s_per_gpu": best.tokens_per_s_per_gpu.as_dict(),
            "step_time_s": best.step_time_s.as_dict(),
            "cost_per_billion_tokens": cost and cost.as_dict(),
            "finish_s": finish and finish.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedCluster:
    """All sizes of one cluster. What is ``None`` was not asked, or is not to be had there."""

    cluster: Cluster
    model: str
    fewest: Sized | None = None  # on the fewest GPUs on which something fits
    reaching: Sized | None = None  # on the fewest that reach the goal
    whole: Sized | None = None  # on all GPUs
    largest_micro_batch: Sized | None = None  # on all GPUs, the largest that fits
    longest_sequence: Sized | None = None  # on all GPUs
    largest_model: Sized | None = None  # of the family, on all GPUs
    awkward: tuple[Awkward, ...] = ()
    """Where the global batch costs speed on the chosen GPUs, or on all."""
    why: str = ""  # why nothing fits, or the goal is not reached; empty where all is well
    notes: tuple[str, ...] = ()  # what was taken to hold

    @property
    def chosen(self) -> Sized | None:
        """The answer: what reaches the goal, or where there is none the fewest GPUs."""
        return self.reaching or self.fewest

    def as_dict(self) -> dict[str, Any]:
        sized = {name: getattr(self, name) for name in _SIZED}
        return {
            "cluster": self.cluster.name,
            "model": self.model,
            "price_per_gpu_hour": self.cluster.price_per_gpu_hour,
            **{name: found and found.as_dict() for name, found in sized.items()},
            "awkward_batches": [asdict(one) for one in self.awkward],
            "why": self.why,
            "notes": list(self.notes),
        }


_SIZED = ("fewest", "reaching", "whole", "largest_micro_batch", "longest_sequence", "largest_model")


def size_cluster(
    question: Question,
    limits: Limits,
    goal: Goal,
    *,
    family: Sequence[ModelConfig] = (),
    takes_largest: bool = False,
    known: Known = nothing_known,
) -> SizedCluster:
    """Sizes a question's job on its cluster, and on parts of that.

    Args:
        question: the question; its cluster is all that there is.
        limits: of which headroom, memory limit and tolerance are used.
        goal: what is to be reached.
        family: models, of which the largest that fits is looked for.
        takes_largest: whether all is asked of that one, in the place of the question's own.
        known: finds what is stored of a question's devices and checks.
    """
    sizer = _Sizer(limits, goal, known)
    largest = sizer.largest(question, family) if family else None
    if takes_largest:
        names = ", ".join(model.name for model in family)
        if largest is None:
            why = f"none of {names} is predicted to fit on {question.cluster.name}"
            return SizedCluster(cluster=question.cluster, model="", why=why)
        question = largest.question
    row = SizedCluster(
        cluster=question.cluster, model=question.workload.model.name, largest_model=largest
    )
    if question.workload.model.is_traced:
        return replace(row, why=untraced(question.workload))
    parts = list(parts_of(question))
    if not parts:
        enumerate_space(question)  # says why nothing is legal on the whole, where nothing is
        return replace(row, why="no part of the cluster divides the global batch")
    fitting = list(filter(sizer.fits, parts))
    if not fitting:
        return replace(row, why=sizer.why_not(parts[-1]))
    fewest, reached, why = fitting[0], None, ""
    if (wanted := goal.wanted_per_s) is not None:
        reached = _first(fitting, sizer.speed, wanted)
        if reached is None:
            why = sizer.too_slow(max(fitting[-LAST:], key=sizer.speed), wanted)
    asked = {part.cluster: part for part in (reached or fewest, parts[-1])}
    awkward = [awkward_batch(part, limits, known) for part in asked.values()]
    return replace(
        row,
        fewest=sizer.sized(fewest),
        reaching=None if reached is None else sizer.sized(reached),
        whole=sizer.sized(parts[-1]),
        largest_micro_batch=sizer.largest_micro_batch(parts[-1]),
        longest_sequence=sizer.longest(parts[-1]),
        awkward=tuple(one for one in awkward if one is not None),
        why=why,
        notes=sizer.notes(fitting, reached) if goal.wanted_per_s else (),
    )


def awkward_batch(
    question: Question, limits: Limits, known: Known = nothing_known
) -> Awkward | None:
    """The global batch, where others near it are clearly faster; ``None`` where none is.

    Only batches are looked at that more GPUs, or larger micro-batches, divide: others are as good.
    Speeds are arithmetic.
    """
    batch, gpus = question.workload.global_batch_size, question.cluster.world_size
    if question.script is not None or question.workload.model.is_traced:
        return None
    unit = gpus if batch % gpus else 2 * gpus
    if batch % unit == 0:
        return None
    around = ((one, batch // one) for one in (unit, 2 * unit))
    multiples = {one * times for one, below in around for times in (below, below + 1)}
    others = sorted(size for size in multiples if size and abs(size - batch) <= NEAR_BATCH * batch)
    if not others:
        return None
    calibration, guards = known(question)
    return _awkward(Asked(question, calibration), limits, _Guards(guards), tuple(others))


class _Guards:
    """Checks, as a key: whoever asks again has the same keys."""

    def __init__(self, guards: Mapping[str, GuardCheck]) -> None:
        self.guards = guards
        self._key = tuple(sorted((key, str(check.result)) for key, check in guards.items()))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Guards) and self._key == other._key


# A study is answered several times in a process, and its arithmetic is the same.
@lru_cache(maxsize=64)
def _awkward(
    asked: Asked, limits: Limits, checks: _Guards, others: tuple[int, ...]
) -> Awkward | None:
    question = asked.question
    sizer = _Sizer(limits, Goal(), lambda _: (asked.calibration, checks.guards))
    speed = sizer.speed(question)
    speeds = {}
    for size in others:
        try:
            other = replace(question.workload, global_batch_size=size)
            speeds[size] = sizer.speed(replace(question, workload=other))
        except UsageError:  # its restrictions of knobs leave nothing of that batch
            continue
    best = max(speeds.values(), default=0.0)
    if not speed or best * (1 - COSTLY) <= speed:
        return None
    batch = question.workload.global_batch_size
    good = [size for size, found in speeds.items() if found >= best * (1 - AS_GOOD)]
    # the nearest on each side
    below = max((size for size in good if size < batch), default=0)
    above = min((size for size in good if size > batch), default=0)
    return Awkward(
        global_batch_size=batch,
        gpus=question.cluster.world_size,
        cost=1 - speed / best,
        instead=tuple(filter(None, (below, above))),
    )


def parts_of(question: Question, *, above: int = 0) -> Iterator[Question]:
    """The question on each part of its cluster of more than ``above`` GPUs on which something is
    legal, the smallest first: on some GPUs of one node, and on whole nodes."""
    cluster = question.cluster
    each, batch = cluster.gpus_per_node, question.workload.global_batch_size
    within = {*range(1, min(each, MOST_OF_A_NODE) + 1), *divisors(each)}
    # Ranks that split no batch share a node, or are nanotron's pipeline stages.
    piped = question.framework.name is FrameworkName.NANOTRON
    stages = divisors(question.workload.model.layers) if piped else (1,)
    nodes = {one * size for one in divisors(batch) for size in stages}
    sizes = [(1, gpus) for gpus in sorted(within)]
    sizes += [(count, each) for count in sorted(nodes) if 1 < count <= cluster.nodes]
    for count, gpus in sizes:
        if count * gpus <= above:
            continue
        part = replace(question, cluster=replace(cluster, nodes=count, gpus_per_node=gpus))
        # Values of a knob that only larger parts have are not asked of this one.
        knobs = {knob: possible(part, knob, values) for knob, values in question.knobs.items()}
        if not all(knobs.values()) or not count_settings(part, 0):
            continue
        part = replace(part, knobs=knobs)
        with suppress(UsageError):  # its restrictions are of knobs that do not act there
            enumerate_space(part)
            yield part


def _first(
    parts: Sequence[Question], speed: Callable[[Question], float], wanted: float
) -> Question | None:
    """The first part that is fast enough, where more GPUs are faster; ``None`` where none is.

    A part that divides the batch badly may be slower than those beside it: the largest ones are
    compared, and those just before the one that is found are looked at too.
    """
    end = max(range(len(parts))[-LAST:], key=lambda index: speed(parts[index]))
    if speed(parts[end]) < wanted:
        return None
    found = bisect_left(parts[: end + 1], wanted, key=speed)
    while found and speed(parts[found - 1]) >= wanted:
        found -= 1
    return parts[found]


class _Sizer:
    """Predicts questions, each once."""

    def __init__(self, limits: Limits, goal: Goal, known: Known) -> None:
        self._limits, self._goal, self._known = limits, goal, known
        self._sized: dict[tuple[Cluster, Workload], tuple[Sized | None, Sized | None]] = {}

    def forecast(self, question: Question) -> Forecast:
        """All that is predicted of a question."""
        calibration, guards = self._known(question)
        return forecast(
            Study(
                id="",
                question=question,
                limits=self._limits,
                state=StudyState.QUEUED,
                calibration=calibration,
                guards=guards,
            )
        )

    def _of(self, question: Question) -> tuple[Sized | None, Sized | None]:
        """The best, and the largest micro-batch that fits."""
        key = question.cluster, question.workload
        if key not in self._sized:
            found = self.forecast(question)
            choice = predicted_choice(found)
            best = choice.best if choice else next(iter(found.untimed), None)
            fitting = found.fitting or found.untimed
            largest = max(
                fitting, key=lambda e: (e.settings.micro_batch_size, -e.seconds), default=None
            )
            tokens = self._goal.tokens
            self._sized[key] = (
                Sized(question=question, best=best, tokens=tokens) if best else None,
                Sized(question=question, best=largest, tokens=tokens) if largest else None,
            )
        return self._sized[key]

    def sized(self, question: Question) -> Sized | None:
        """The best of a question; ``None`` where nothing is predicted to fit."""
        return self._of(question)[0]

    def largest_micro_batch(self, question: Question) -> Sized | None:
        """The largest micro-batch that surely fits, in the fastest configuration of it."""
        return self._of(question)[1]

    def speed(self, question: Question) -> float:
        """Tokens per second of all GPUs; 0 where nothing surely fits, or none is known."""
        found = self.sized(question)
        if found is None or not found.best.fits_surely:
            return 0.0
        return found.tokens_per_s.value or 0.0

    def slow_end(self, question: Question) -> float:
        """The same at the slow end of its interval."""
        found = self.sized(question)
        return (found and found.best.fits_surely and found.tokens_per_s.low) or 0.0

    def notes(self, parts: Sequence[Question], reached: Question | None) -> tuple[str, ...]:
        """Tells how sure it is that the goal is reached, and on how many parts speed was
        predicted."""
        notes, wanted = [], self._goal.wanted_per_s
        if reached and wanted and self.slow_end(reached) < wanted:
            sure = _first(parts, self.slow_end, wanted)
            takes = f"takes {sure.cluster.world_size} GPUs" if sure else "takes more than there are"
            notes.append(
                f"{reached.cluster.world_size} GPUs reach the goal by the predicted figure: to"
                f" reach it at the slow end of the interval too {takes}"
            )
        done = sum((part.cluster, part.workload) in self._sized for part in parts)
        if done < len(parts):
            notes.append(
                f"speed was predicted on {done} of {len(parts)} possible numbers of GPUs: between"
                " them more GPUs are taken to be faster"
            )
        return tuple(notes)

    def too_slow(self, question: Question, wanted: float) -> str:
        """Says how much less than what is wanted a question's GPUs make."""
        if speed := self.speed(question):
            gpus = question.cluster.world_size
            return f"{gpus} GPUs are predicted to make {speed:,.0f} of {wanted:,.0f} tokens/s"
        return f"no speed is predicted: {self.forecast(question).unknown}"

    def why_not(self, question: Question) -> str:
        """Says what would be needed where nothing surely fits."""
        found = self.forecast(question)
        gpus, least = question.cluster.world_size, found.smallest
        if found.what_is_wrong:
            return f"what fits trains something else: {found.what_is_wrong}"
        if least is None:
            return "nothing is predicted: " + "; ".join(found.uncovered)
        low, high = (end or 0.0 for end in (least.needed_gib.low, least.needed_gib.high))
        return (
            f"nothing is sure to fit on {gpus} GPUs: what needs least needs {low:.1f} to"
            f" {high:.1f} GiB of {least.limit_gib:.1f} GiB ({describe(least.settings)})"
            f"{(why := why_only_ddp(question)) and f'; {why}'}"
        )

    # -- the most -------------------------------------------------------------------------------

    def longest(self, question: Question) -> Sized | None:
        """The longest sequence of which something surely fits, in steps of
        :data:`SEQUENCE_STEP`; the global batch keeps its number of sequences."""
        work = question.workload
        most = work.model.max_sequence_length

        def of(length: int) -> Question:
            return replace(question, workload=replace(work, sequence_length=length))

        lengths = [*range(SEQUENCE_STEP, most, SEQUENCE_STEP), most]
        order: dict[Settings, float] = {}
        index = bisect_left(lengths, True, key=lambda one: not self.fits(of(one), order))
        return self.sized(of(lengths[index - 1])) if index else None

    def largest(self, question: Question, family: Sequence[ModelConfig]) -> Sized | None:
        """The model of a family with the most parameters of which something surely fits."""
        known = [one for one in family if not one.is_traced]
        for model in sorted(known, key=lambda one: counts(one).parameters, reverse=True):
            try:
                work = replace(question.workload, model=model)
                parts = list(parts_of(replace(question, workload=work)))
            except UsageError:  # it takes no such sequence, or adapter
                continue
            if parts and self.fits(parts[-1]):
                return self.sized(parts[-1])
        return None

    def fits(self, question: Question, order: dict[Settings, float] | None = None) -> bool:
        """True where something fits at the upper end of its interval too.

        The smallest micro-batches of each layout tell, and those without accumulation, which keeps
        gradients. ``order`` has what each needed at last: what needed least is looked at first.
        """
        try:
            legal = enumerate_space(question).legal
        except UsageError:
            return False
        calibration, guards = self._known(question)
        asked, limit = Asked(question, calibration), self._limits.limit_bytes(question.cluster)
        study = Study(
            id="", question=question, limits=self._limits, state=StudyState.QUEUED, guards=guards
        )
        wrong = wrong_of(study, legal)
        least = min(one.micro_batch_size for one in legal)
        small = [
            one
            for one in legal
            if one.micro_batch_size == least or one.gradient_accumulation_steps == 1
            if one not in wrong
        ]
        order = {} if order is None else order
        for settings in sorted(small, key=lambda one: order.get(one, 0.0)):
            found = estimate(asked, limit, settings)
            order[settings] = found.needed_bytes.value or 0.0
            if found.fits_surely:
                return True
        return False
