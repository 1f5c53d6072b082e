"""The candidates of a search and what was tried of them, as arrays.

Configurations and workloads are points here: distance 1 is where what is learned of one fades in
another. Sizes count by their logarithm, for doubling one has much the same effect wherever it is.
Length scales are assumed, not fitted: a size means something else after five doublings, a choice
(sharding, checkpointing, ...) at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, inf, log2

import numpy as np

from tuner.catalog.models import Task
from tuner.core.adapter import AdapterMethod
from tuner.core.cluster import Cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.packing import PackingVariant
from tuner.core.workload import Loss, Optimizer, ReduceDtype, TensorParallel, Workload
from tuner.cost.memory.shards import axis_sizes, reduced_in
from tuner.cost.memory.tensors import counts, trained_elements
from tuner.model.fields import ARCHITECTURES
from tuner.search.kernel import Array, Rows

# Doublings of a configuration's size within one length scale.
DOUBLINGS = 2.5
# Choices of a configuration, or of a workload, within one length scale.
CHOICES = 1.5
# Doublings of a workload's size within one length scale.
WORKLOAD_DOUBLINGS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """``n`` candidates and what is predicted of each.

    Arrays have shape ``(n,)`` if no other is said. ``eq=False``: a prior is the key of caches by
    its own identity.
    """

    settings: Sequence[Settings]  # the candidates; all legal, each once
    features: Array  # shape ``(n, d)``, from :func:`settings_features`
    experts: Array
    """Natural logarithm of the predicted seconds of an optimizer step; ``nan`` where unknown. Shape
    ``(k, n)``: each expert is the cost model with constants of its own, and the first is shown."""
    log_need: Array  # natural logarithm of the bytes that one device is predicted to need
    need_error: Array  # standard deviation of that prediction
    runs: Array  # probability that they run at all, if memory suffices
    simplicity: Array  # larger is simpler; decides between candidates of equal expectation
    log_limit: float  # natural logarithm of the bytes that one device may need
    workload: Array  # shape ``(w,)``, from :func:`workload_features`

    @property
    def log_seconds(self) -> Array:
        """The first expert's, shape ``(n,)``."""
        return np.asarray(self.experts[0])

    @property
    def limit_bytes(self) -> float:
        """Bytes that one device may need; infinite where nothing is known of memory."""
        # The logarithm's own error would call a need of exactly the limit too large.
        return inf if self.log_limit == inf else round(exp(self.log_limit))


class Result(Enum):
    """How a trial ended, as far as a search needs to know."""

    RAN = "ran"  # its steps were done, whether it fits the limit or not
    TOO_LARGE = "too_large"  # out of memory
    SLOW = "slow"  # its steps ran, and it was ended before all were done
    TIMED_OUT = "timed_out"  # its time was up, and none of its steps are known to have run
    FAILED = "failed"  # it did not run, and nobody knows whether for want of memory
    REFUSED = "refused"  # it does not run, whatever the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate that was tried."""

    index: int  # row of the candidate
    result: Result  # how it ended
    seconds: float | None = None
    """Seconds of an optimizer step; where it was slow or timed out, at least so many."""
    error: float = 0.0  # standard deviation of the logarithm of ``seconds``
    need_bytes: float | None = None
    """Bytes that one device needed; where it was too large, at least so many."""
    indirect: bool = False
    """Run in another way than those of this search, so that it is no answer to it, and its time has
    an error that all such trials share."""
    is_wrong: bool = False
    """It trains something else, so that it is no answer: its time still tells of others'."""
    is_believed: bool = False
    """It runs still, and its time is what is believed of it: that bears nobody out."""

    @property
    def is_value(self) -> bool:
        """Its seconds are what this search makes small."""
        answers = self.result is Result.RAN and not (self.indirect or self.is_wrong)
        return answers and self.seconds is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """``p`` trials of earlier searches for the same stack on the same kind of cluster."""

    study: Array  # shape ``(p,)``: the number of the search that each belongs to
    features: Array  # shape ``(p, d)``: their configurations'
    workload: Array  # shape ``(p, w)``: their searches'
    excess: Array
    """Shape ``(p, k)``: logarithm of seconds over those that each expert predicts for them; ``nan``
    if not timed."""
    ran: Array  # shape ``(p,)``: 1 where the steps were done, 0 where not
    expected: Array  # shape ``(p,)``: the probability of that as it was predicted

    @property
    def size(self) -> int:
        return len(self.study)

    @property
    def log_excess(self) -> Array:
        """The first expert's, shape ``(p,)``."""
        return np.asarray(self.excess[:, 0])

    def take(self, rows: Rows) -> "Past":
        return Past(**{name: getattr(self, name)[rows] for name in self.__slots__})


def joined(parts: Sequence[Past]) -> Past | None:
    if not parts:
        return None
    names = Past.__slots__
    return Past(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


# Activation checkpointing by how much is computed again: ``none`` and ``full`` are as far apart as
# the values of any other choice.
RUNGS = tuple(Checkpointing)


def settings_features(settings: Sequence[Settings], workload: Workload, cluster: Cluster) -> Array:
    """One row for each configuration, shape ``(len(settings), features)``, in length scales.

    Of the workload there is the format of gradient reduction, which may depend on sharding.
    """
    rows = [_row(one, workload, cluster) for one in settings]
    return np.array(rows, dtype=float).reshape(len(rows), len(_row(Settings(), workload, cluster)))


def _row(settings: Settings, workload: Workload, cluster: Cluster) -> list[float]:
    axes, pp = axis_sizes(settings, cluster), settings.pp_size
    tp, dp = axes.tp, axes.dp
    batch = settings.micro_batch_size, settings.gradient_accumulation_steps
    sizes = (tp, pp, axes.cp, *batch, max(dp, 1))
    choices = (
        tp > 1,
        pp > 1,
        tp > cluster.gpus_per_node,
        settings.tp_recompute_allgather,
        settings.sync_each_batch,
        settings.defer_all_reduce,
        RUNGS.index(settings.activation_checkpointing) / RUNGS.index(Checkpointing.FULL),
        settings.cpu_offload,
        settings.fused_loss,
    )
    return [
        *(log2(size) / DOUBLINGS for size in sizes),
        *(choice / CHOICES for choice in choices),
        *_one_hot(settings.sharding, Sharding),
        *_one_hot(reduced_in(workload, axes), ReduceDtype),
    ]


def _one_hot(value: object, kinds: Iterable[object]) -> list[float]:
    # Any two kinds are as far apart as the two values of any other choice.
    apart = 1 / CHOICES / 2**0.5
    return [apart * (value == kind) for kind in kinds]


def workload_features(workload: Workload, cluster: Cluster) -> Array:
    """One point, shape ``(features,)``, in length scales: how alike two studies are.

    The optimizer, the loss, the task, the model's architecture, and what is trained in its place,
    are choices. They change what a step does, and so where the cost model may be wrong about it.
    """
    model, adapter = workload.model, workload.adapter
    sizes = (
        cluster.world_size,
        1 if model.is_traced else counts(model).parameters,
        workload.sequence_length,
        workload.global_batch_size,
    )
    return np.array(
        [
            *(log2(size) / WORKLOAD_DOUBLINGS for size in sizes),
            *_one_hot(workload.optimizer, Optimizer),
            *_one_hot(workload.loss, Loss),
            *_one_hot(model.task, Task),
            *_one_hot(workload.tensor_parallel, TensorParallel),
            *_one_hot(adapter and adapter.method, (None, *AdapterMethod)),
            # how many times fewer elements are trained than the model has, where that is known
            log2(counts(model).parameters / trained_elements(model, adapter)) / WORKLOAD_DOUBLINGS
            if adapter and not workload.is_traced
            else 0.0,
            bool(adapter and adapter.dropout) / CHOICES,
            *_one_hot(workload.packing and workload.packing.variant, PackingVariant),
            log2(max(workload.row)) / WORKLOAD_DOUBLINGS if workload.packing else 0.0,
            *_one_hot(model.model_type, sorted(ARCHITECTURES)),
            # of models that no arithmetic knows nothing tells how alike they are: all are far apart
            int(model.fingerprint[:8], 16) / 2**20 if model.is_traced else 0.0,
        ]
    )
