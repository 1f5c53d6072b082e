"""Counts what a training script keeps alive beside the step itself.

The probe program and the scripts that are written for accelerate drop the model's outputs before
backward and switch its key-value cache off. A user's own loop may do neither, and a case can say
so. Both facts are of the script; no number here is fitted to a measurement.

Sources, all read:

* ``use_cache`` is true in the published ``config.json`` of most decoders. transformers turns it
  off only with its own ``gradient_checkpointing``; a checkpoint wrapper around the layers, such as
  torch's ``apply_activation_checkpointing``, leaves it on.
* In ``outputs = model(**batch); outputs.loss.backward()`` the name is bound anew only after the
  next forward has returned, so the last outputs are alive beside those that are being computed.
* transformers, ``LlamaForCausalLM.forward`` and ``loss/loss_utils.py`` (4.38.2, 4.44.2, 4.45.2,
  4.46.3, 4.48.3, 4.49.0, 4.50.3, 5.23.0): before 4.46 the model itself turns its logits into
  fp32; before 4.49 the loss copies them, shifted by one token.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from packaging.version import Version

from tuner.catalog.versions import meets
from tuner.core.bounds import choice
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.framework import Framework, FrameworkName, flag_differs, usual_loss_kernel
from tuner.core.measurement import Category, Phase
from tuner.core.workload import Loss, LossKernel, Precision, Workload
from tuner.cost.constants import TorchCosts
from tuner.cost.memory.attention import AMPERE
from tuner.cost.memory.shards import COMPUTE_BYTES, autocasts, logit_ranks
from tuner.cost.memory.step import LOSS_PARTS
from tuner.cost.memory.zero import Zero
from tuner.cost.time.compute import logit_bytes, loss_traffic
from tuner.errors import UsageError

# Releases of transformers whose models return fp32 logits.
FP32_IN_MODEL = "<4.46"
# Releases of transformers whose loss copies the logits, shifted by one token.
SHIFTED_COPY = "<4.49"
# Releases of transformers that give attention contiguous queries (``sdpa_attention_forward`` in
# integrations/sdpa_attention.py; wheels of 4.48.3 to 4.56.2 read, 4.52.4 and 5.2.0 run). Kernels of
# 2-byte formats return what is laid out like the queries, so that the heads are put together by a
# copy, which the output projection keeps beside what attention keeps.
COPIED_HEADS = ">=4.48,<4.56"
# Tensors of sequence x hidden size that accelerate 1.8 to 1.14 keeps of each layer where FSDP2's
# option checkpoints, beyond the layer's input, by model type: it wraps the children of a layer, and
# the input of each is kept. Counted by running ``fsdp2_apply_ac`` of 1.14.0 on small models of all
# types with transformers 5.23 (gemma2 by gemma3_text, whose layers have the same parts).
KEPT_OF_PARTS: Mapping[str, int] = {"gemma2": 5, "gemma3_text": 5, "gpt_neox": 2, "phi": 1}
USUALLY_KEPT_OF_PARTS = 3
# Releases of accelerate whose FSDP2 wraps layers alone; later ones wrap embedding and head too
# (``fsdp2_prepare_model`` in utils/fsdp_utils.py: wheels of 1.6.0 to 1.15.0 read; 1.8.1, 1.11.0 and
# 1.15.0 run on 2 ranks).
ENDS_IN_ROOT = "<1.14"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the user's training loop is written; the defaults are what is probed and exported. Raises
    UsageError: a field that is neither true nor false, or another kernel."""

    use_cache: bool = False
    """The model returns keys and values of all layers with its outputs (``use_cache=True``)."""
    keeps_outputs: bool = False
    """A name holds the model's outputs until the next micro-batch's forward has returned."""
    fsdp_checkpointing: bool = False
    """FSDP's own option (``fsdp_activation_checkpointing``) checkpoints, not the model's method."""
    selects_every_2nd: bool = False
    """Selective checkpointing keeps every second matrix product only, as torchtitan's of operators
    does (``_get_custom_policy`` in parallelisms/parallelize_llama.py, December 2024)."""
    one_root_unit: bool = False
    """FSDP wraps the layers alone: the rest is the root's, which stays gathered to the end of
    backward (``apply_fsdp`` in the same file; ``FSDPState._lazy_init`` in torch)."""

    loss_kernel: LossKernel | None = None
    """What computes the loss where ``fused_loss`` is true; ``None`` for what the framework has."""
    zero: Zero | None = None
    """Sizes of DeepSpeed's buckets, as its file says them; ``None`` for its defaults."""

    def __post_init__(self) -> None:
        for field in fields(self):
            given, path = getattr(self, field.name), f"script.{field.name}"
            if field.name == "loss_kernel":
                kernel = None if given is None else choice(path, LossKernel, given)
                object.__setattr__(self, field.name, kernel)
            elif field.name == "zero":
                if not isinstance(given, Zero | None):
                    raise UsageError(path, given, "is taken from a file of DeepSpeed's alone")
            elif not isinstance(given, bool):
                raise UsageError(path, given, "must be true or false")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, without a kernel that is the framework's."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Any) -> "Script":
        """The reverse of :meth:`as_dict`; fields that are left out have their defaults. Raises
        UsageError: not a table, an unknown field, or a value that a field cannot have."""
        if not isinstance(values, Mapping):
            raise UsageError("script", values, "must be a table")
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise UsageError(f"script.{name}", values[name], "no such field")
        return cls(**values)


# A loop that keeps nothing, as the probe program's and the exported ones.
PLAIN = Script()


def script_bytes(
    workload: Workload, settings: Settings, tp: int, framework: Framework, script: Script
) -> dict[Phase, dict[Category, float]]:
    """Bytes to add to each phase of a rank's step, by category; all phases are there.

    The step without them is that of the newest known transformers, with the defaults of
    :class:`Script`. The loss's bytes of logits may be negative: releases that return fp32 logits
    do not keep those in the compute precision beside them. A framework without a stated release
    of transformers means the newest. Of another loss than transformers' own the releases say
    nothing.
    """
    compute = COMPUTE_BYTES[workload.precision]
    release = framework.versions.get("transformers") if workload.loss is Loss.HF else None
    wide = release is not None and meets(release, FP32_IN_MODEL)
    shifted = release is not None and meets(release, SHIFTED_COPY)
    model, tokens = workload.model, settings.micro_batch_size * workload.sequence_length
    logits = tokens * model.vocab_size / logit_ranks(workload, settings)
    # keys and values of all layers, of one micro-batch
    channels = 2 * model.layers * model.kv_heads * model.head_dim / tp
    cache = compute * channels * tokens if script.use_cache else 0.0
    returned = (4 if wide else compute) * logits
    # per logit, what this release's loss needs beyond the newest release's
    loss = 4 * shifted - (compute if compute < 4 and wide else 0)
    # Without checkpointing, attention keeps the very same keys and values for its backward.
    checkpointed = settings.activation_checkpointing.layers_again(model.layers)
    own_cache = cache * checkpointed / model.layers
    kept_cache = cache if script.keeps_outputs else 0.0
    kept_logits = returned if script.keeps_outputs else 0.0
    # of all layers until backward has passed them; less is computed again at once then, which is
    # not taken off
    heads = _copied_heads(workload, framework) * (model.layers - checkpointed) / tp
    parts = compute * tokens * (_parts_kept(workload, settings, framework, script) + heads)
    embedding = compute * model.vocab_size * model.hidden_size / tp
    embedding *= not model.tied_embeddings  # which is gathered with the head anyway
    root = embedding if script.one_root_unit and settings.sharding in FSDP else 0.0
    # The root of these releases is gathered again for backward, and to its end: the head too, and
    # where each micro-batch reduces, the head's gradient waits for the embedding's.
    ends = embedding if _ends_in_root(settings, framework) else 0.0
    again = ends * (settings.sharding is not Sharding.SHARD_GRAD_OP)
    reduces = settings.sync_each_batch or settings.gradient_accumulation_steps == 1
    in_forward = {
        Category.ACTIVATIONS: own_cache + kept_cache + parts,
        Category.GATHERED_PARAMETERS: max(root, again),
    }
    return {
        Phase.FORWARD: {**in_forward, Category.LOGITS_AND_LOSS: kept_logits},
        Phase.LOSS: {**in_forward, Category.LOGITS_AND_LOSS: kept_logits + loss * logits},
        Phase.BACKWARD: {
            Category.ACTIVATIONS: parts + (own_cache if script.keeps_outputs else 0.0),
            Category.LOGITS_AND_LOSS: kept_logits,
            Category.GATHERED_PARAMETERS: max(root, again + ends),
            Category.GRADIENTS_UNSHARDED: ends * reduces,
        },
        Phase.OPTIMIZER: {Category.ACTIVATIONS: kept_cache, Category.LOGITS_AND_LOSS: kept_logits},
    }


def _ends_in_root(settings: Settings, framework: Framework) -> bool:
    """Tells whether the stated release of accelerate leaves embedding and head to the root."""
    if settings.sharding not in FSDP:
        return False
    built = framework.name in (FrameworkName.ACCELERATE, FrameworkName.TRAINER)
    release = framework.versions.get("accelerate")
    is_old = release is not None and meets(release, ENDS_IN_ROOT)
    return built and is_old and framework.fsdp_version == 2


def _parts_kept(
    workload: Workload, settings: Settings, framework: Framework, script: Script
) -> int:
    """Channels of a token that all layers keep together because their parts are checkpointed."""
    full = settings.activation_checkpointing in (Checkpointing.FULL, Checkpointing.OFFLOAD)
    if not (script.fsdp_checkpointing and full and settings.sharding in FSDP):
        return 0
    if not flag_differs(framework):
        return 0
    model = workload.model
    kept = KEPT_OF_PARTS.get(model.model_type, USUALLY_KEPT_OF_PARTS)
    return kept * model.layers * model.hidden_size


def _copied_heads(workload: Workload, framework: Framework) -> int:
    """Channels of a token that each layer that is not checkpointed keeps a second time, because
    the stated release of transformers lays attention's queries out anew."""
    release, model = framework.versions.get("transformers"), workload.model
    if release is None or not meets(release, COPIED_HEADS):
        return 0
    by_operators = model.has_capped_scores or model.has_biased_scores
    by_flash_attention = workload.packing is not None  # its package's functions, not torch's
    if by_operators or by_flash_attention or COMPUTE_BYTES[workload.precision] != 2:
        return 0
    return model.heads * model.head_dim


# What Liger-Kernel's fused linear cross entropy takes, beside the probe program's chunked loss.
#
# Both have a part's logits at a time and leave both gradients in forward. Dry runs are of the
# chunked loss, for Liger's is in Triton: this is the difference, by arithmetic from its source,
# ``ops/fused_linear_cross_entropy.py`` (tags v0.6.5 to v0.8.2, wheels of 0.8.3 to 0.8.5, read). Its
# parts are as many as the hidden size goes into the vocabulary, of tokens rounded up to a power of
# two; their gradients replace the logits in place, in the format of compute. Run by Triton's
# interpreter on a CPU, where 0.8.5 adds by copies as 0.8.0 does on GPUs, the probe's allocations
# differ from the chunked loss's by what is computed here, in each precision to 5%.

# The first release that adds a part to the weight's gradient in place, by that gradient's format
# (``torch.addmm(..., out=grad_weight)``); before, and on GPUs without bf16, there are the part's
# product and its copy in fp32 beside it.
IN_PLACE_FP32 = Version("0.8.1")
IN_PLACE_BF16 = Version("0.8.3")
# Share of the difference by which it may be off: the 5% above.
MORE_BYTES_OFF = 0.05


def runs_liger(settings: Settings, framework: Framework, script: Script) -> bool:
    kernel = script.loss_kernel or usual_loss_kernel(framework.name)
    return settings.fused_loss and kernel is LossKernel.LIGER


def parts_of(workload: Workload, settings: Settings) -> tuple[int, int]:
    """How many parts of a micro-batch there are, and how many tokens are in one."""
    tokens = settings.micro_batch_size * workload.sequence_length
    model = workload.model
    factor = -(-model.vocab_size // model.hidden_size)
    size = min(1 << (-(-tokens // factor) - 1).bit_length(), tokens)
    return -(-tokens // size), size


def more_bytes(
    workload: Workload, settings: Settings, cluster: Cluster, framework: Framework
) -> float:
    """Bytes that it has at the loss's highest moment beyond the chunked loss; may be negative."""
    model, compute = workload.model, COMPUTE_BYTES[workload.precision]
    tokens = settings.micro_batch_size * workload.sequence_length
    head, hidden = model.vocab_size * model.hidden_size, tokens * model.hidden_size
    casts = autocasts(workload, settings, cluster)
    gradient = 4 if casts else compute
    has_place = _adds_in_place(workload, cluster, framework, gradient)
    beside = 0 if has_place else 4 if compute == 4 else compute + 4
    logits = compute * parts_of(workload, settings)[1] * model.vocab_size
    chunked = (12 if model.fields.get("final_logit_softcapping") else 8) / LOSS_PARTS
    more = logits - chunked * tokens * model.vocab_size
    if not casts:
        return more + beside * head
    # The hidden states are not cast as a whole, and their gradient is in fp32. Autocast keeps the
    # weight's cast; it makes another of its transpose for each part, which is no leaf. The latter
    # is gone when the weight's gradient, in fp32 too, is added to.
    weight = compute + 4 + max(compute, beside)
    return more + 4 * hidden + weight * head - 2 * compute * (hidden + head)


def more_seconds(
    workload: Workload, settings: Settings, cluster: Cluster, costs: TorchCosts
) -> float:
    """Seconds of an optimizer step that it takes beyond the chunked loss; may be negative.

    The weight is read twice, and its gradient read and written, for each part. Its kernel reads a
    logit twice, and writes its gradient.
    """
    rate, compute = cluster.gpu.memory_bytes_per_s, COMPUTE_BYTES[workload.precision]
    assert rate is not None
    model, (parts, _) = workload.model, parts_of(workload, settings)
    logits = settings.micro_batch_size * workload.sequence_length * model.vocab_size
    share = 4 * compute / logit_bytes(compute, 4) - loss_traffic(workload, settings, cluster)
    moved = 4.0 * (parts - LOSS_PARTS) * compute * model.vocab_size * model.hidden_size
    moved += costs.logit_traffic * share * logits
    return settings.gradient_accumulation_steps * moved / rate


def _adds_in_place(
    workload: Workload, cluster: Cluster, framework: Framework, gradient: int
) -> bool:
    """Tells whether a part's product is added to the weight's gradient without a copy.

    A release that is not stated means the newest; in fp32 no release does.
    """
    stated = framework.versions.get("liger-kernel")
    needed = IN_PLACE_FP32 if gradient == 4 else IN_PLACE_BF16
    return (
        workload.precision is not Precision.FP32
        and (stated is None or Version(stated) >= needed)
        and cluster.gpu.device is Device.CUDA
        and cluster.gpu.capability >= AMPERE
    )
