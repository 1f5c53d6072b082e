"""Nodes and ranks, and the command that starts them."""

from tuner.cluster import Device
from tuner.settings import Settings
from tuner.study import Question

PORT = 29500
"""Where ranks of several nodes meet: torch's own default."""


def has_data_parallel_ranks(question: Question, settings: Settings) -> bool:
    """Whether ranks see different data."""
    return settings.data_parallel_size(question.cluster.world_size) > 1


def sync_acts(question: Question, settings: Settings) -> bool:
    """Whether it makes a difference when gradients are synchronized."""
    return settings.gradient_accumulation_steps > 1 and has_data_parallel_ranks(question, settings)


def torchrun(question: Question, *script: str, host: str = "HOST") -> list[str]:
    """The command that starts the cluster's ranks, to be given on each node.

    Args:
        question: with the cluster.
        script: the script and its arguments.
        host: one of the nodes, the same for all; not used where there is one only.
    """
    cluster = question.cluster
    ranks = ["--nproc-per-node", str(cluster.gpus_per_node)]
    if cluster.nodes == 1:
        return ["torchrun", "--standalone", *ranks, *script]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{PORT}"]
    return ["torchrun", "--nnodes", str(cluster.nodes), *ranks, *meeting, *script]


def threads(question: Question) -> int | None:
    """Threads of one CPU rank, as its probes have them; ``None`` where that is not known.

    Without it torchrun sets one.
    """
    gpu = question.cluster.gpu
    if gpu.device is not Device.CPU or not gpu.cores:
        return None
    return max(1, gpu.cores // question.cluster.gpus_per_node)


def batch_text(question: Question, settings: Settings) -> str:
    """How the global batch is made, as a product."""
    ranks = settings.data_parallel_size(question.cluster.world_size)
    return (
        f"an optimizer step: {settings.micro_batch_size} (micro-batch)"
        f" x {settings.gradient_accumulation_steps} (accumulation) x {ranks} (processes)"
        f" = {question.workload.global_batch_size} sequences"
    )
