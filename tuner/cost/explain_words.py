"""The words of memory's explanation: names of categories and phases, and each knob's reason."""

from collections.abc import Mapping

from tuner.cost.axes import shard_ranks
from tuner.settings import FSDP, Checkpointing, Settings, Sharding
from tuner.sizes import size_text
from tuner.study import Question
from tuner.workload import Optimizer

CATEGORY_WORDS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients_sharded": "sharded gradients",
    "gradients_unsharded": "unsharded gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "gathered_parameters": "gathered or cast parameters",
    "logits_and_loss": "logits and loss",
    "ddp_buckets": "DDP's buckets",
    "temporaries": "temporaries",
    "library_workspaces": "cuBLAS's workspaces",
    "unsplit_blocks": "blocks larger than their tensors",
}
"""How a category is called in a sentence."""

PHASE_WORDS: Mapping[str, str] = {
    "forward": "forward",
    "loss": "the loss",
    "backward": "backward",
    "optimizer": "the optimizer's step",
}
"""How a phase is called in a sentence."""

EIGHT_BIT = "its two moments take a byte each per parameter, and no copy of all is made"
NOT_EIGHT_BIT = "its two moments are kept in the parameters' precision"

_STATES = frozenset(
    {"parameters", "gradients_sharded", "gradients_unsharded", "optimizer_state"}
    | {"gathered_parameters", "ddp_buckets"}
)
_GRADIENTS = frozenset({"gradients_sharded", "gradients_unsharded"})
_OF_TOKENS = frozenset({"activations", "logits_and_loss", "temporaries"})
ABOUT: Mapping[str, frozenset[str]] = {
    "sync_each_batch": _GRADIENTS,
    "tp_recompute_allgather": _OF_TOKENS,
    "activation_checkpointing": _OF_TOKENS,
    "sharding": _STATES | {"temporaries"},
    "micro_batch_size": _OF_TOKENS,
    "tp_size": frozenset(CATEGORY_WORDS),
    "pp_size": frozenset(CATEGORY_WORDS),
    "cpu_offload": _STATES,
    "optimizer": frozenset({"optimizer_state", "temporaries"}),
}
"""The categories that the reason of each knob speaks of."""


def reason(
    question: Question,
    settings: Settings,
    other: Settings,
    knob: str,
    differences: Mapping[str, float],
) -> str:
    """Why a knob's other value takes more memory, or less.

    It is the knob's own reason where that is what changes most, and in its direction. Otherwise
    it is the category that changes most, and what else decides it.

    Args:
        question: what they are for.
        settings: as they are.
        other: with the other value, and whatever changes with it.
        knob: the one that differs.
        differences: bytes by category at the peak, of the other less the settings' own.
    """
    name, saves = _largest(differences)
    expected = _should_save(settings, other, knob)
    unsplit = knob == "tp_size" and question.workload.model.experts and name in _STATES
    padded = not saves and name in _STATES and _more_padded(question, settings, other)
    if expected in (saves, None) and name in ABOUT[knob] and not unsplit and not padded:
        return _own(question, settings, other, knob, saves=saves)
    return _bare(differences) + _cause(question, settings, other, name)


def optimizer_reason(other: Optimizer, differences: Mapping[str, float]) -> str:
    """The same for the other of AdamW's two precisions of state."""
    name, saves = _largest(differences)
    eight_bit = other is Optimizer.ADAMW_8BIT
    if saves is not eight_bit or name not in ABOUT["optimizer"]:
        return _bare(differences)
    return EIGHT_BIT if eight_bit else NOT_EIGHT_BIT


def _largest(differences: Mapping[str, float]) -> tuple[str, bool]:
    """The category that changes most in the direction of the whole, and whether that is down."""
    saves = sum(differences.values()) < 0
    return max(differences, key=lambda name: differences[name] * (-1 if saves else 1)), saves


def _bare(differences: Mapping[str, float]) -> str:
    """Only what changes."""
    name, saves = _largest(differences)
    size = size_text(abs(differences[name]))
    return f"{size} {'less' if saves else 'more'} of {CATEGORY_WORDS[name]} at the peak"


def beside(settings: Settings, other: Settings, knob: str) -> str:
    """The other knobs that change with one, as a user writes them; empty when none matters.

    A number of micro-batches matters where there is one only: gradients then wait for nothing.
    """
    counts = {settings.gradient_accumulation_steps, other.gradient_accumulation_steps}
    alike = {knob} | (set() if 1 in counts and len(counts) > 1 else {_COUNT})
    if 1 in counts:
        alike |= {"sync_each_batch"}  # which is dead there
    old, new = settings.as_dict(), other.as_dict()
    changed = (name for name in new if name not in alike and new[name] != old[name])
    return ", ".join(f"{name}={_text(new[name])}" for name in changed)


_COUNT = "gradient_accumulation_steps"
_STRENGTH = (
    *(Sharding.DDP, Sharding.ZERO1, Sharding.SHARD_GRAD_OP),
    *(Sharding.HYBRID_SHARD, Sharding.FULL_SHARD),
)
"""Shardings by what a rank holds, most first."""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _should_save(settings: Settings, other: Settings, knob: str) -> bool | None:
    """Whether a knob's own reason is one to need less; ``None`` where it has reasons for both."""
    if knob == "sharding":
        if {settings.sharding, other.sharding} == {Sharding.HYBRID_SHARD, Sharding.SHARD_GRAD_OP}:
            return None
        return _STRENGTH.index(other.sharding) > _STRENGTH.index(settings.sharding)
    old, new = getattr(settings, knob), getattr(other, knob)
    if knob in ("tp_size", "pp_size"):
        return bool(new > old)
    if knob == "micro_batch_size":
        return bool(new < old)
    if knob == "activation_checkpointing":
        return bool(new is Checkpointing.FULL)
    return bool(new)  # sync_each_batch, tp_recompute_allgather, cpu_offload


def _cause(question: Question, settings: Settings, other: Settings, name: str) -> str:
    """What makes a category larger or smaller beside the knob's own doing; empty if not known."""
    old, new = settings.gradient_accumulation_steps, other.gradient_accumulation_steps
    if name in _GRADIENTS and old == 1 < new:
        return ", for those of one micro-batch wait for the next"
    if name in _GRADIENTS and new == 1 < old:
        return ", for with one micro-batch none wait for the next"
    experts, (old, new) = question.workload.model.experts, _shards(question, settings, other)
    if name in _STATES and old != new and 0 < experts < max(old, new):
        return (
            f", for tensors of {experts} experts are padded to a multiple of the ranks that shard"
            f" them, {new} instead of {old}"
        )
    world = question.cluster.world_size
    old, new = settings.data_parallel_size(world), other.data_parallel_size(world)
    if name in _STATES and old != new:
        return f", for what tp_size does not split is split over {new} ranks instead of {old}"
    return ""


def _more_padded(question: Question, settings: Settings, other: Settings) -> bool:
    """Whether experts are split over more ranks than before, and than there are experts."""
    old, new = _shards(question, settings, other)
    return 0 < question.workload.model.experts < new and old < new


def _shards(question: Question, settings: Settings, other: Settings) -> tuple[int, int]:
    """Ranks that shard in both."""
    return shard_ranks(settings, question.cluster), shard_ranks(other, question.cluster)


def _own(question: Question, settings: Settings, other: Settings, knob: str, *, saves: bool) -> str:
    """The reason that a knob is there for."""
    if knob == "sync_each_batch":
        return _sync(other)
    if knob == "tp_recompute_allgather":
        return (
            "backward gathers the input of each layer's linears again, and only this rank's part"
            " of it is kept"
            if other.tp_recompute_allgather
            else "the gathered input of each layer's linears is kept for backward"
        )
    if knob == "activation_checkpointing":
        return (
            "only each layer's input is kept, and backward computes the rest again"
            if other.activation_checkpointing is Checkpointing.FULL
            else "everything that backward needs of each layer is kept, not only its input"
        )
    if knob == "sharding":
        return _sharding(question, other, saves=saves)
    if knob == "micro_batch_size":
        times = "twice" if other.micro_batch_size > settings.micro_batch_size else "half"
        return f"activations and logits are of {times} as many tokens at once"
    return _sizes(other, knob)


def _sync(other: Settings) -> str:
    if other.sharding not in FSDP:
        return "every rank keeps whole gradients either way"
    if other.sync_each_batch:
        return "FSDP reduces each micro-batch's gradients at once, and keeps its own shard of them"
    return "FSDP keeps the unsharded gradients until the last micro-batch"


def _sharding(question: Question, other: Settings, *, saves: bool) -> str:
    ranks = shard_ranks(other, question.cluster)
    if other.sharding is Sharding.DDP:
        return "every rank holds all parameters, gradients and optimizer state"
    if other.sharding is Sharding.ZERO1:
        ranks = other.data_parallel_size(question.cluster.world_size)
        return f"optimizer state is split over {ranks} ranks"
    if other.sharding is Sharding.HYBRID_SHARD:
        return f"parameters, gradients and optimizer state are split over {ranks} ranks of a node"
    if other.sharding is Sharding.FULL_SHARD:
        return (
            f"parameters are split over {ranks} ranks, and a layer's are gathered only while it"
            " computes"
        )
    if saves:
        return f"parameters, gradients and optimizer state are split over {ranks} ranks"
    return "gathered parameters stay from forward to backward"


def _sizes(other: Settings, knob: str) -> str:
    if knob == "cpu_offload":
        return "parameters, gradients and optimizer state are on the device, not in host memory"
    what = "the layers" if knob == "pp_size" else "each layer and its activations"
    size = other.pp_size if knob == "pp_size" else other.tp_size
    part = f"1/{size} of {what}" if size > 1 else f"all of {what}"
    return f"each rank holds {part}"
