"""The words of memory's explanation: names of categories and phases, and each knob's reason."""

from collections.abc import Mapping

from tuner.cost.shards import FSDP, shard_ranks
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.study import Question

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


def reason(
    question: Question, settings: Settings, other: Settings, knob: str, *, saves: bool
) -> str:
    """Why a knob's other value takes more memory, or less.

    Args:
        question: what they are for.
        settings: as they are.
        other: with the other value.
        knob: the one that differs.
        saves: whether the other value needs less.
    """
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
    return _sizes(other, knob, saves=saves)


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


def _sizes(other: Settings, knob: str, *, saves: bool) -> str:
    if knob == "cpu_offload":
        return "parameters, gradients and optimizer state are on the device, not in host memory"
    what = "the layers" if knob == "pp_size" else "each layer and its activations"
    size = other.pp_size if knob == "pp_size" else other.tp_size
    part = f"1/{size} of {what}" if size > 1 else f"all of {what}"
    if not saves and knob == "tp_size" and size > 1:
        return f"each rank holds {part}, but what it holds is split over fewer replicas"
    return f"each rank holds {part}"
