"""Settings in a few words, for lines that people skim; tables and files have the knobs' names."""

from tuner.settings import Checkpointing, Settings


def settings_parts(settings: Settings) -> tuple[str, ...]:
    """``full shard``, ``micro-batch 2 × 4``, ``sync at the end``, ...: what is off its default.

    No part should be broken over two lines.
    """
    batch = f"micro-batch {settings.micro_batch_size}"
    if settings.gradient_accumulation_steps > 1:
        batch += f" × {settings.gradient_accumulation_steps}"
    parts = [str(settings.sharding).replace("_", " ")]
    if settings.tp_size > 1:
        parts.append(f"tensor parallel {settings.tp_size}")
    if settings.tp_recompute_allgather:
        parts.append("gather again")
    if settings.pp_size > 1:
        parts.append(f"pipeline {settings.pp_size}")
    parts.append(batch)
    if not settings.sync_each_batch:
        parts.append("sync at the end")
    if settings.activation_checkpointing is Checkpointing.FULL:
        parts.append("checkpointing")
    if settings.cpu_offload:
        parts.append("offload")
    return tuple(parts)
