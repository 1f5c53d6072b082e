"""The result of one probe: its outcome and the evidence, as the workers record it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any

from pydantic import Field

from tuner.serialization import Plain

Count = Annotated[int, Field(ge=0)]


class Fidelity(StrEnum):
    """How a probe is run."""

    MEASURED = "measured"  # on every rank of the cluster
    EMULATED = "emulated"  # as rank 0 of the cluster's, alone on one device of its kind
    REHEARSED = "rehearsed"  # as that rank, over torch's CUDA allocator without a GPU: not timed
    PREDICTED = "predicted"  # as a dry run: one rank's step on fake tensors, without a device


# Fidelities whose probes run steps on devices, the stronger first: they are timed.
PROBED = (Fidelity.MEASURED, Fidelity.EMULATED)


class Outcome(StrEnum):
    """How a probe ended. A probe has one outcome, whatever its attempts went through."""

    OK = "ok"  # all steps done
    OOM = "oom"  # the device was out of memory
    HOST_OOM = "host_oom"  # the host was out of memory
    TIMEOUT = "timeout"  # the deadline passed
    STOPPED_EARLY = "stopped_early"  # slower than the fastest known could be: not timed further
    COMMUNICATION_ERROR = "communication_error"  # a collective failed
    KNOB_INACTIVE = "knob_inactive"  # a knob did not act
    WRONG_RESULT = "wrong_result"  # it trains something else
    NON_FINITE = "non_finite"  # the loss is not finite
    INVALID = "invalid"  # the stack refused the settings
    CRASHED = "crashed"  # an exception or a signal
    DEVICE_LOST = "device_lost"  # a device disappeared
    WORKER_LOST = "worker_lost"  # its worker vanished, as often as it was tried
    CANCELLED = "cancelled"  # somebody asked for it

    @property
    def words(self) -> str:
        """The outcome as people read it: ``host out of memory`` of ``host_oom``."""
        return self.replace("_", " ").replace("oom", "out of memory")


class CheckState(StrEnum):
    """What the guard knows of a configuration's training."""

    PASSED = "passed"  # its ranks train what one process trains
    FAILED = "failed"  # they do not, or a knob does not act
    NOT_CHECKED = "not_checked"  # nothing was trained, or it could not be judged


# How often a probe is attempted once more after an outcome that may be an accident.
TRIED_AGAIN: Mapping[Outcome, int] = dict.fromkeys(
    (Outcome.COMMUNICATION_ERROR, Outcome.CRASHED, Outcome.DEVICE_LOST), 1
)

# Outcomes of probes whose steps ran: their memory is known, and the time of some steps.
RAN = frozenset({Outcome.OK, Outcome.STOPPED_EARLY})

# Outcomes after which settings that had device memory enough did not run: they are closed.
BROKEN = frozenset({Outcome.HOST_OOM, Outcome.NON_FINITE, Outcome.CRASHED})

# Outcomes of settings that train something else than they say.
TRAINS_WRONGLY = frozenset({Outcome.KNOB_INACTIVE, Outcome.WRONG_RESULT})

# Outcomes that say something about every micro-batch size of the same class.
CLOSES_CLASS = frozenset({Outcome.INVALID, *TRAINS_WRONGLY})

# Phases in which a crash says little of settings: files, packages and networks are looked for.
BEGINNING = frozenset({"start", "build"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Place where memory ran out. The step needs at least ``needed_bytes`` on one device."""

    rank: Count = 0  # the rank that ran out first
    phase: str  # what the step was doing: build, forward, backward, optimizer, ..
    requested_bytes: Count  # the allocation that failed
    allocated_bytes: Count  # what was allocated then
    reserved_bytes: Count  # what the caching allocator held then; as allocated where there is none
    limit_bytes: Count  # the limit that was hit

    @property
    def needed_bytes(self) -> int:
        """A lower bound of the step's peak."""
        return self.allocated_bytes + self.requested_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collectives of one kind in one optimizer step of one rank."""

    op: str  # all_gather, reduce_scatter, all_reduce, broadcast, ..
    axis: str  # the mesh axis that communicates: dp, dp_shard, dp_replicate, tp, or world
    phase: str  # what the step was doing
    count: int  # calls
    bytes: int  # bytes of their whole (gathered or unreduced) tensors, summed
    overlap: str = ""
    """What hides them: prefetched, behind_backward or exposed; empty where that is not noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Seconds by which communication makes a step longer; by the cost model, with its interval."""

    value_s: float  # the best estimate
    low_s: float  # lower end of the 80% interval
    high_s: float  # upper end of the 80% interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Parts of an emulated probe's step times, by accumulation count that was run."""

    compute_s: Mapping[int, tuple[float, ...]]  # seconds that each timed step computed
    exposed_s: Mapping[int, Exposed]
    """Seconds of communication that computing waits for; none where links are not known."""
    collectives: Mapping[int, tuple[Collective, ...]]  # those of one step, which are priced
    stands_in: bool = False
    """Whether the device was not of the cluster's kind: its computing only predicts the time."""
    unpriced: str = ""
    """Why communication has no price, and the steps no time; empty where they have."""
    phases_s: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Seconds that a typical timed step computed in each phase; none of earlier versions."""
    priced_at: str = ""
    """When the rates of the price were calibrated, UTC in ISO 8601; empty where they were not."""
    copies_left_out: str = ""
    """Why copies in the place of what is received are in the time of computing, if some are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks over the steps, of the rank that needed most."""

    allocated_bytes: Count
    """Peak of allocated tensors: on CUDA the allocator's, on CPU of tracked storages."""
    allocated_low_bytes: Count
    """The smallest peak that one of the tracked steps reached in steady state."""
    reserved_bytes: Count
    """Peak held by the caching allocator; on CPU, where there is none, as allocated."""
    device_bytes: Count  # what the device's own tool shows for the process (CPU: peak resident set)
    overhead_bytes: Count  # CUDA context and communicator buffers, outside the allocator; 0 on CPU
    by_phase: Mapping[str, Count]  # peak allocated bytes of each phase
    by_category: Mapping[str, Count]
    """Bytes held between steps: parameters, gradients, optimizer; and at the peak, other."""
    per_rank_bytes: tuple[Count, ...] = ()  # peak allocated bytes of every rank, by rank
    allocation_retries: Count = 0
    """Near misses: allocations that succeeded only after the allocator gave cached memory back."""

    @property
    def needed_bytes(self) -> int:
        """What must be free on a device."""
        return self.allocated_bytes + self.overhead_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a rank sees of its own steps; a measurement has those of one rank for all."""

    collectives: tuple[Collective, ...] = ()
    """Collectives of one optimizer step of rank 0, at ``tracked_accumulation``."""
    tracked_accumulation: Count = 0
    """Micro-batches in the step whose collectives and memory were tracked."""
    reducing_micro_batches: Count = 0
    """Micro-batches of that step whose backward reduced gradients over data-parallel ranks."""
    recomputed_layers: Count | None = None
    """Decoder layers that backward of that step computed again; ``None`` where not counted."""
    whole_logits: bool | None = None
    """Whether the output head returned the logits of all tokens, and not the loss; ``None`` where
    that was not looked at."""
    loss_kernel: str = ""
    """What computed a fused loss: chunked (the probe program's) or liger; empty where none did."""
    recomputed_products: Count | None = None
    """Matrix products in them that were computed again; ``None`` where not counted."""
    host_bytes: Count | None = None
    """Bytes of layers' inputs that forward of a micro-batch copied to host memory for backward;
    ``None`` where not counted."""
    attention: Mapping[str, Count] = field(default_factory=dict)
    """Layers of one forward pass by the kernel that torch computed their attention with: cudnn,
    flash, efficient or math; none where that is not noted, or transformers does it itself."""
    losses: tuple[float, ...] = ()  # mean loss of each optimizer step, in order
    gradient_norms: tuple[float, ...] = ()
    """Total gradient norm of each tracked optimizer step, in order."""
    optimizer_steps: Count = 0  # times that the optimizer really stepped
    expected_optimizer_steps: Count = 0  # times that it had to step
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of python, torch, accelerate, transformers, ... in the ranks."""
    hardware: Mapping[str, Any] = field(default_factory=dict)
    """What rank 0, or the one that failed, ran on; with what its GPU ran at after the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Findings, Plain):
    """A probe's result. ``as_dict`` and ``from_dict`` are its JSON, which crosses processes."""

    outcome: Outcome  # how it ended
    detail: str = ""  # one line for people: what happened, where
    phase: str = ""
    """What the rank that failed was doing: start, build, forward, ...; empty where that is not
    known, or none failed."""
    knob: str = ""  # the knob that did not act, of ``knob_inactive``
    memory: Memory | None = None  # memory, when steps were done
    step_times_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Seconds of each timed optimizer step (slowest rank), by accumulation count that was run.

    Of an emulated probe, computing and exposed communication together; none without a price.
    """
    emulation: Emulation | None = None  # of an emulated probe: both apart
    oom: OutOfMemory | None = None  # where memory ran out, when it did
    log_tails: Mapping[int, str] = field(default_factory=dict)
    """The end of each rank's log, by rank; of failed probes only."""
    notes: tuple[str, ...] = ()
    """What may have made its times longer than the settings do, for people: throttled GPUs."""
    wall_s: float = 0.0  # from the first rank's start to the last one's end
    device_s: float = 0.0  # ``wall_s`` times the devices held
    dry_run: str = ""
    """Of a predicted probe: the key of the dry run that it is from, which the store keeps."""
    lost_devices: tuple[str, ...] = ()
    """Names of the devices of nodes where one was lost; none where it is not known which."""

    @property
    def needed_bytes(self) -> int | None:
        """What must be free on a device; where memory ran out, at least that."""
        seen = self.memory or self.oom
        return seen.needed_bytes if seen else None


def believable(found: Measurement) -> Measurement:
    """Returns the measurement, if its times are times; else ``crashed`` without them, with the
    reason.

    A step takes a finite time above zero, and the whole a finite one that is not below. Nothing
    can be learned from any other, and a single one would spoil all means.
    """
    whole = (("probe", found.wall_s), ("devices", found.device_s))
    wrong = [
        *(f"step of {count} micro-batches in {seconds:g} s"
          for count, steps in found.step_times_s.items()
          for seconds in steps if not seconds or not _is_duration(seconds)),
        *(f"computing of {count} micro-batches in {seconds:g} s"
          for count, steps in (found.emulation.compute_s if found.emulation else {}).items()
          for seconds in steps if not _is_duration(seconds)),
        *(f"{what} in {seconds:g} s" for what, seconds in whole if not _is_duration(seconds)),
    ]  # fmt: skip
    if not wrong:
        return found
    return Measurement(
        outcome=Outcome.CRASHED,
        detail=f"a time that cannot be: {wrong[0]}",
        versions=found.versions,
        wall_s=found.wall_s if _is_duration(found.wall_s) else 0.0,
        device_s=found.device_s if _is_duration(found.device_s) else 0.0,
    )


def _is_duration(seconds: float) -> bool:
    return isfinite(seconds) and seconds >= 0


class Category(StrEnum):
    """Purposes of memory."""

    PARAMETERS = "parameters"  # this rank's parameters and buffers, between steps
    GRADIENTS_SHARDED = "gradients_sharded"  # this rank's part of reduced gradients
    GRADIENTS_UNSHARDED = "gradients_unsharded"  # whole gradients: of DDP, or on their way
    OPTIMIZER_STATE = "optimizer_state"  # what the optimizer keeps between steps
    ACTIVATIONS = "activations"  # what forward leaves for backward
    GATHERED_PARAMETERS = "gathered_parameters"  # gathered or cast, and the gathering's buffers
    LOGITS_AND_LOSS = "logits_and_loss"  # logits, the loss's copies of them, their gradients
    DDP_BUCKETS = "ddp_buckets"  # buffers of gradients, of DDP or ZeRO
    TEMPORARIES = "temporaries"  # all else: it dies in the phase that made it


class Phase(StrEnum):
    """Parts of an optimizer step, in order; the first three happen in each micro-batch."""

    FORWARD = "forward"  # embedding and decoder layers
    LOSS = "loss"  # forward from the output head on
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Basis(StrEnum):
    """Sources of a memory figure that no device has shown."""

    REHEARSED = "rehearsed"  # torch's CUDA allocator, over the step itself without a GPU
    DRY_RUN = "dry_run"  # the step itself, run on tensors without memory
    ARITHMETIC = "arithmetic"  # the cost model's formulas
