"""DeepSpeed's JSON, where torch has an equivalent of it.

Fields are those of DeepSpeed 0.19 (``runtime/config.py``, ``runtime/zero/config.py``). In ZeRO 2
and 3 its engine reduces gradients after every micro-batch, else at the end of an accumulation
(``allreduce_gradients`` in ``runtime/engine.py``).
"""

from collections.abc import Mapping
from typing import Any

from tuner.checking.fields import Fields
from tuner.checking.found import Found
from tuner.settings import Sharding
from tuner.workload import Optimizer

NAME = "deepspeed"
MARKS = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"})
"""Fields that other files do not have."""
STAGES = (Sharding.DDP, Sharding.ZERO1, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD)
OPTIMIZERS = {"adamw": Optimizer.ADAMW, "adam": Optimizer.ADAMW, "sgd": Optimizer.SGD}
DTYPES = {"bf16": "bf16", "bfp16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}
MASTERS = "must be true: otherwise DeepSpeed keeps fp32 copies too, which is not predicted"
PLAIN_ZERO = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
              "zero_quantized_nontrainable_weights", "mics_shard_size", "cpu_offload",
              "cpu_offload_param")  # fmt: skip
"""Options of ZeRO that change what is kept and sent."""
ENGINES = ("tensor_parallel", "sequence_parallel", "compression_training", "sparse_attention")
TOP = frozenset({
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size",
    "gradient_accumulation_steps", "optimizer", "bf16", "bfloat16", "fp16", "amp", "torch_autocast",
    "communication_data_type", *ENGINES,
})  # fmt: skip
ZERO = frozenset({"stage", "offload_param", "offload_optimizer", *PLAIN_ZERO})
"""What is read of the file, and of its ZeRO."""

NOTES = (
    "the figures are of torch's own sharding, whose equivalent this is: DeepSpeed needs other"
    " buffers and has another speed",
    "activation_checkpointing is the script's, and taken as none; where it is on, say --settings"
    " activation_checkpointing=full",
)


def read(values: Mapping[str, Any]) -> Found:
    """What the file says.

    Raises:
        UsageError: a field is wrong, or asks for what is not predicted.
    """
    fields = Fields(values)
    fields.refuse_misspelt(TOP)
    for name in ENGINES:
        fields.refuse(name, "is not predicted")
    zero = fields.part("zero_optimization")
    zero.refuse_misspelt(ZERO)
    for name in PLAIN_ZERO:
        zero.refuse(name, "is not predicted", but=(False, 0, 1, -1))
    stage = zero.values.get("stage", 0)
    if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage < len(STAGES):
        raise zero.error("stage", "must be 0, 1, 2 or 3")
    knobs: dict[str, Any] = {
        "sharding": str(STAGES[stage]),
        "tp_size": 1,
        "pp_size": 1,
        "sync_each_batch": stage >= 2,
        "cpu_offload": _offloads(zero),
    }
    for knob, name in (("micro_batch_size", "train_micro_batch_size_per_gpu"),
                       ("gradient_accumulation_steps", "gradient_accumulation_steps")):  # fmt: skip
        if (size := _whole(fields, name)) is not None:
            knobs[knob] = size
    return Found(format_name=NAME, knobs=knobs, may=_may(fields), notes=NOTES)


def _may(fields: Fields) -> dict[str, tuple[Any, ...]]:
    may: dict[str, tuple[Any, ...]] = {
        "framework": ("torch", "accelerate", "trainer"),
        "precision": (_precision(fields),),
    }
    if (batch := _whole(fields, "train_batch_size")) is not None:
        may["global_batch_size"] = (batch,)
    if "optimizer" in fields:
        may["optimizer"] = (str(fields.part("optimizer").choice("type", OPTIMIZERS)),)
    if "communication_data_type" in fields:
        may["reduce_dtype"] = (fields.choice("communication_data_type", DTYPES),)
    return may


def _whole(fields: Fields, name: str) -> int | None:
    """A number; ``auto`` is for the Trainer to fill in."""
    return None if fields.values.get(name) == "auto" else fields.whole(name)


def _precision(fields: Fields) -> str:
    if fields.part("fp16").flag("enabled"):
        raise fields.part("fp16").error("enabled", "must be false: fp16 is not predicted")
    fields.part("amp").refuse("enabled", "must be false: amp is not predicted", but=(False,))
    bf16 = fields.part(fields.any_of("bf16", "bfloat16"))  # the second is its old name
    autocast = fields.part("torch_autocast")
    if autocast.flag("enabled"):
        autocast.choice("dtype", {"bfloat16": True, "torch.bfloat16": True}, "bfloat16")
        return "bf16_mixed"
    if not bf16.flag("enabled"):
        return "fp32"
    for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if not bf16.flag(name):
            raise bf16.error(name, MASTERS)
    return "bf16"


def _offloads(zero: Fields) -> bool:
    """Both parameters and the optimizer's state, or neither."""
    devices = {
        name: zero.part(name).choice("device", {"cpu": True, "none": False}, "none")
        for name in ("offload_param", "offload_optimizer")
    }
    if len(set(devices.values())) > 1:
        name = next(name for name, is_on in devices.items() if not is_on)
        raise zero.error(name, "must be offloaded too: one without the other is not predicted")
    return devices["offload_param"]
