"""What the cost model does not cover: of it nothing is predicted, and the reason is told."""

from tuner.catalog.versions import meets
from tuner.cluster import Cluster
from tuner.cost.axes import axis_sizes
from tuner.framework import Framework, FrameworkName
from tuner.settings import Settings
from tuner.workload import Optimizer, Precision, Workload

NANOTRON_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2"})
"""Dense decoders with a gated MLP: nanotron's constants are fitted on Llamas."""


def uncovered(workload: Workload, framework: Framework) -> str:
    """Why nothing is known of a workload under a framework; empty where it is covered.

    nanotron's step is not run here. Its constants are fitted on runs in bf16 with AdamW,
    fp32 master weights and fp32 gradients, and say nothing of other formats and optimizers.
    """
    return _uncovered_nanotron(workload) if framework.name is FrameworkName.NANOTRON else ""


def uncovered_settings(
    workload: Workload, framework: Framework, cluster: Cluster, settings: Settings
) -> str:
    """Why nothing is known of settings of a workload that is covered; empty where they are too.

    FSDP2 pads packed experts, and this is counted. FSDP1 does not, for it shards flat parameters;
    nor does FSDP2 with transformers before 5, which keeps the matrices of experts apart.
    """
    experts, ranks = workload.model.experts, axis_sizes(settings, cluster).shard
    if not experts or experts % ranks == 0 or framework.name is FrameworkName.NANOTRON:
        return ""
    split = f"splits {experts} experts over {ranks} ranks is not covered"
    if framework.fsdp_version == 1:
        return f"how FSDP1 {split}; FSDP2, of accelerate 1.6 and later, is"
    if "transformers" in framework.versions and meets(framework.versions["transformers"], "<5"):
        return (
            f"how FSDP2 {split} with transformers before 5, which keeps each expert's matrices"
            " apart; with 5 and later, which packs them, it is"
        )
    return ""


def _uncovered_nanotron(workload: Workload) -> str:
    model_type = workload.model.model_type
    if model_type not in NANOTRON_MODEL_TYPES:
        covered = ", ".join(sorted(NANOTRON_MODEL_TYPES))
        return f"nanotron is covered for {covered}, and not for {model_type}"
    if workload.precision is not Precision.BF16 or workload.optimizer is not Optimizer.ADAMW:
        asked = f"{workload.precision} with {workload.optimizer}"
        return f"nanotron is covered in bf16 with adamw, and not for {asked}"
    return ""
