"""``tuner.size``: how many GPUs a job needs, how large it may be there, and what it costs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Unpack

from tuner.client.cases import Case, Policy, Prediction
from tuner.client.cases.dry_runs import Watch
from tuner.client.place import is_kept
from tuner.client.predict import predictions
from tuner.client.request import SizeRequest, family_of, read_arguments
from tuner.client.values import (
    ClusterLike,
    ModelLike,
    Say,
    SharedArguments,
    naming_arguments,
    plain_arguments,
    silent,
)
from tuner.core.cluster import parse_cluster
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, Question
from tuner.cost.prediction import uncovered
from tuner.model import published_model
from tuner.planner.sizing import Goal, Known, Sized, SizedCluster, nothing_known, size_cluster
from tuner.serialization import Plain
from tuner.store import Store, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Plain):
    """The sizes of a job on each cluster, the best first: what reaches the goal goes before what
    does not, then what costs least by the token or, without prices, takes the fewest GPUs."""

    goal: Goal
    rows: tuple[SizedCluster, ...]
    notes: tuple[str, ...] = ()
    """What was written and is not used, or was left out and matters."""
    verified: Prediction | None = None
    """What a dry run says of the best; ``None`` where none was asked for."""

    @property
    def best(self) -> Sized | None:
        """What the best cluster needs for the goal; ``None`` where it is not reached on any."""
        return self.rows[0].reaching if self.goal.wanted_per_s else self.rows[0].fewest


@naming_arguments()
def size(
    *,
    model: ModelLike | None = None,
    family: str | None = None,
    cluster: ClusterLike | Sequence[ClusterLike],
    global_batch_size: int,
    sequence_length: int,
    tokens_per_s: float | None = None,
    tokens: float | None = None,
    within_s: float | None = None,
    price_per_gpu_hour: float | None = None,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    verify: bool = False,
    db: str | None = None,
    progress: Say | None = None,
    **shared: Unpack[SharedArguments],
) -> Sizes:
    """The fewest GPUs that do, the longest sequence, the largest micro-batch and model, and what it
    costs, predicted as ``tuner size`` does.

    Args:
        model: a name of the catalogue, the path of a ``config.json``, or its fields. It may be left
            out with a ``family`` only, whose largest model that fits is meant then.
        family: name of a family of the catalogue, such as ``llama-3.1``: its largest model that
            fits is looked for.
        cluster: the GPUs that there are, or several such: ``64x8xh100-80gb``, a .toml file, or its
            fields, which may have a price. Parts of it are looked at: some GPUs of a node, or whole
            nodes.
        global_batch_size: sequences of one optimizer step, over all GPUs. No answer changes it.
        sequence_length: tokens of one sequence.
        tokens_per_s: tokens per second that all GPUs together must reach.
        tokens, within_s: tokens to be trained on, and the seconds that this may take.
        price_per_gpu_hour: in any currency; of clusters that have no price of their own.
        knobs: values that are allowed, by knob.
        verify: dry-run the best configuration, which needs torch.
        db: address of the database; by default ``$TUNER_DB``, or SQLite in the user's data folder.
        progress: is called with each line of what is waited for, such as ``print``.
        shared: what is trained, how, and what memory there is, as in :func:`tuner.suggest`:
            ``optimizer``, ``precision``, ``reduce_dtype``, ``loss``, ``tensor_parallel``,
            ``adapter``, ``frozen``, ``packing``, ``task``, ``image_tokens``, ``framework``,
            ``framework_versions``, ``headroom`` and ``memory_limit_gib``.

    Raises:
        UsageError: an argument is wrong.
    """
    asked = dict(locals())
    for name in ("shared", "verify", "db", "progress"):
        del asked[name]
    request = read_arguments(SizeRequest, plain_arguments(shared, **asked))
    return sizes_here(request, verify=verify, db=db, say=progress or silent)


def sizes_here(request: SizeRequest, *, verify: bool, db: str | None, say: Say = silent) -> Sizes:
    """Sizes a job on this machine; no database is made for it, unless something is verified."""
    with ExitStack() as opened:
        known: Known = nothing_known
        if is_kept(db):
            known = known_of(opened.enter_context(open_store(db, create=False)))
        found = sizes_of(request, known, say=say)
    if not verify or found.best is None:
        return found
    best = found.best
    case = Case(
        question=replace(best.question, knobs={}),
        settings=best.best.settings,
        headroom=request.headroom,
        memory_limit_gib=request.memory_limit_gib,
    )
    (verified,) = predictions([case], Policy.ALL, db, Watch(say))
    return replace(found, verified=verified)


def known_of(store: Store) -> Known:
    """Finds what a store knows of a question's devices, and of how its configurations train."""
    return lambda question: (
        store.calibration(question.cluster, question.framework.versions),
        store.guards(question),
    )


def sizes_of(
    request: SizeRequest,
    known: Known,
    *,
    check: Callable[[Question], None] = lambda question: None,
    say: Say = silent,
) -> Sizes:
    """Sizes a job on each cluster of a request.

    ``check`` raises a ``UsageError`` of a question that would take too long.
    """
    goal = Goal(tokens_per_s=request.tokens_per_s, tokens=request.tokens, within_s=request.within_s)
    limits = Limits(
        fidelity=Fidelity.PREDICTED,
        headroom=request.headroom,
        memory_limit_bytes=request.limit_bytes,
    )
    task = request.workload.model.task
    family = (
        [published_model(one, task) for one in family_of(request.family)] if request.family else []
    )
    here, questions = installed_versions(), []
    for place in request.cluster:
        cluster = parse_cluster(place) if isinstance(place, str) else place
        if cluster.price_per_gpu_hour is None:
            cluster = replace(cluster, price_per_gpu_hour=request.price_per_gpu_hour)
        questions.append(request.question_on(cluster, here))
        check(questions[-1])
    rows = []
    for question in questions:
        say(f"predicting on parts of {question.cluster.name}")
        if why := uncovered(question.workload, question.framework):
            name = question.workload.model.name
            rows.append(SizedCluster(cluster=question.cluster, model=name, why=why))
            continue
        rows.append(
            size_cluster(
                question,
                limits,
                goal,
                family=family,
                takes_largest=request.takes_largest,
                known=known,
            )
        )
    priced = all(row.cluster.price_per_gpu_hour is not None for row in rows)

    def order(row: SizedCluster) -> tuple[bool, bool, float, float]:
        chosen = row.chosen
        if chosen is None:
            return True, True, inf, inf
        missed = goal.wanted_per_s is not None and row.reaching is None
        cost, speed = chosen.cost_per_billion_tokens, chosen.tokens_per_s.value or 0.0
        price = cost.value if priced and cost and cost.value is not None else inf
        return False, missed, price if priced else chosen.gpus, -speed

    return Sizes(goal=goal, rows=tuple(sorted(rows, key=order)), notes=request.notes)
