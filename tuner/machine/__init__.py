"""The machine that this runs on: what it has, what it can do, and what is wrong with it."""

from tuner.machine.facts import (
    MEMORY_STEP_BYTES,
    Machine,
    ReportedGpu,
    boot_id,
    memory_bytes,
    processor,
    this_machine,
    together,
    usable_cores,
    visible_gpus,
)

__all__ = [
    "MEMORY_STEP_BYTES",
    "Machine",
    "ReportedGpu",
    "boot_id",
    "memory_bytes",
    "processor",
    "this_machine",
    "together",
    "usable_cores",
    "visible_gpus",
]
