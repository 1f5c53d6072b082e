"""What several launchers cannot do: the reasons, and what to do about them."""

from tuner.export.fsdp import is_sharded
from tuner.settings import Settings, Sharding
from tuner.study import Question


def model_parallelism(launcher: str, settings: Settings, framework: str) -> str | None:
    """Of launchers that split nothing but data.

    Args:
        launcher: who cannot.
        settings: that may have tensor parallelism or pipeline stages.
        framework: whose answers the launcher can run.
    """
    if settings.tp_size > 1:
        return (
            f"{launcher} runs no tensor parallelism, and these settings have"
            f" tp_size={settings.tp_size}; ask again with --knob tp_size=1 or"
            f" --framework {framework}"
        )
    return pipelines(launcher, settings, framework)


def pipelines(launcher: str, settings: Settings, framework: str) -> str | None:
    """Of launchers without pipeline stages."""
    if settings.pp_size == 1:
        return None
    return (
        f"{launcher} runs no pipeline stages, and these settings have"
        f" pp_size={settings.pp_size}; ask again with --framework {framework}"
    )


def zero1(launcher: str, settings: Settings, framework: str) -> str | None:
    """Of launchers that shard gradients with the optimizer state, or neither."""
    if settings.sharding is not Sharding.ZERO1:
        return None
    return (
        f"{launcher} cannot shard the optimizer state alone (zero1); ask again with"
        f" --framework {framework}"
    )


def sharding(launcher: str, question: Question, settings: Settings) -> str | None:
    """Of whoever shards by FSDP2: what it cannot shard."""
    within = question.cluster.gpus_per_node // settings.tp_size
    if settings.sharding is Sharding.HYBRID_SHARD and within == 1:
        what = "GPU" if settings.tp_size == 1 else "data-parallel rank"
        return (
            f"hybrid_shard shards within a node, and a node has one {what} here; ask again with"
            " --knob sharding=ddp,shard_grad_op,full_shard"
        )
    if settings.cpu_offload and not is_sharded(question, settings):
        return f"{launcher} offloads to the CPU only what it shards; ask for another sharding"
    return None


def own_script(what: str, question: Question) -> str | None:
    """Of files that say more of a training step than is known of a user's own script.

    Args:
        what: in them, of which that is so.
        question: that may be of a script.
    """
    if question.script is None:
        return None
    return (
        f"{what}, and the study is of a script of your own; launch the script by its own command,"
        " which tuner studies show tells"
    )


def first(*reasons: str | None) -> str | None:
    """The first reason there is."""
    return next(filter(None, reasons), None)


def cpu_offload(launcher: str, settings: Settings) -> str | None:
    """Of launchers that offload nothing."""
    if not settings.cpu_offload:
        return None
    return f"{launcher} has no CPU offload; ask again with --knob cpu_offload=false"
