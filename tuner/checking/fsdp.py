"""FSDP2's options, as accelerate's YAML and the Trainer's JSON spell them."""

from typing import Any

from tuner.checking.fields import Fields
from tuner.settings import Checkpointing, Sharding

VERSION = (
    "must be 2: figures are of FSDP2, and FSDP1 needs and takes others; accelerate to-fsdp2 writes"
    " the file anew"
)
KNOWN = frozenset({
    "version", "reshard_after_forward", "auto_wrap_policy", "transformer_layer_cls_to_wrap",
    "activation_checkpointing", "offload_params", "cpu_offload", "cpu_ram_efficient_loading",
    "state_dict_type", "sync_module_states", "use_orig_params", "backward_prefetch",
    "backward_prefetch_policy", "forward_prefetch",
})  # fmt: skip
"""Of accelerate 1.15's ``FullyShardedDataParallelPlugin``; those of loading and saving, and of
FSDP1, change nothing here."""


def read_fsdp(fields: Fields, prefix: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Knobs that the options decide, and the classes of the layers that they name.

    Args:
        fields: the options.
        prefix: what may go before each name: ``fsdp_``.

    Raises:
        UsageError: they are of FSDP1, or of another use of FSDP2 than is predicted.
    """
    names = {name: fields.any_of(f"{prefix}{name}", name) for name in KNOWN}
    if fields.whole(names["version"]) != 2:
        raise fields.error(names["version"], VERSION)
    fields.refuse_others({*names.values(), *KNOWN, *(f"{prefix}{name}" for name in KNOWN)})
    wrapped = {"transformer_based_wrap": True}
    fields.choice(names["auto_wrap_policy"], wrapped, "transformer_based_wrap")
    reshards = fields.flag(names["reshard_after_forward"], default=True)
    knobs: dict[str, Any] = {
        "sharding": str(Sharding.FULL_SHARD if reshards else Sharding.SHARD_GRAD_OP),
        "cpu_offload": any(fields.flag(names[one]) for one in ("offload_params", "cpu_offload")),
    }
    if fields.flag(names["activation_checkpointing"]):
        knobs["activation_checkpointing"] = str(Checkpointing.FULL)
    return knobs, _layer_classes(fields.values.get(names["transformer_layer_cls_to_wrap"]))


def _layer_classes(value: object) -> tuple[str, ...]:
    if not value:
        return ()
    words = value if isinstance(value, list) else str(value).split(",")
    return tuple(str(word).strip() for word in words)
