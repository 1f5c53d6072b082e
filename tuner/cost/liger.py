"""What Liger-Kernel's fused linear cross entropy takes, beside the probe program's chunked loss.

Both have a part's logits at a time and leave both gradients in forward. Dry runs are of the chunked
loss, for Liger's is in Triton: this is the difference, by arithmetic from its source,
``ops/fused_linear_cross_entropy.py`` (tags v0.6.5 to v0.8.2, wheels of 0.8.3 to 0.8.5, read). Its
parts are as many as the hidden size goes into the vocabulary, of tokens rounded up to a power of
two; their gradients replace the logits in place, in the format of compute. Run by Triton's
interpreter on a CPU, where 0.8.5 adds by copies as 0.8.0 does on GPUs, the probe's allocations
differ from the chunked loss's by what is computed here, in each precision to 5%.
"""

from packaging.version import Version

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Settings
from tuner.core.framework import Framework, usual_loss_kernel
from tuner.core.workload import LossKernel, Precision, Workload
from tuner.cost.constants import TorchCosts
from tuner.cost.memory.attention import AMPERE
from tuner.cost.memory.shards import COMPUTE_BYTES, autocasts
from tuner.cost.memory.step import LOSS_PARTS
from tuner.cost.script import Script
from tuner.cost.time.compute import logit_bytes, loss_traffic

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
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    framework: Framework,
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
