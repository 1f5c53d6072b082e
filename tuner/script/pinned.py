"""What a script's command cannot vary: knobs that have one value, and why."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.cluster import Cluster, Device
from tuner.errors import UsageError
from tuner.framework import Framework, FrameworkName
from tuner.script.script import Launch, Script
from tuner.settings import KNOBS, Checkpointing, Settings

if TYPE_CHECKING:
    from tuner.study import Question

BATCH = ("micro_batch_size", "gradient_accumulation_steps")
"""Knobs of which a script may derive one from the other and the global batch size."""
IN_FILE = ("sharding", "cpu_offload", "activation_checkpointing")
"""Knobs that ``accelerate launch`` puts in force by its configuration file, on GPUs."""


def pinned(question: "Question", knob: str, settings: Settings | None = None) -> tuple[Any, str]:
    """The one value of a knob with the question's script, and why; nothing (``None``) and empty
    where it can vary, or there is no script.

    Args:
        question: what is asked.
        knob: one that is not of :data:`BATCH`.
        settings: which have it, where it depends on the others.
    """
    script = question.script
    if script is None or knob in script.knobs:
        return None, ""
    why = f"{{{knob}}} is used nowhere in the script's command"
    if script.launch is Launch.ACCELERATE and knob in IN_FILE:
        why = _why_not_in_file(question, knob, settings)
        if not why:
            return None, ""
    asked = question.knobs.get(knob, ())
    if len(asked) == 1:
        return asked[0], f"{why}, so it is as stated"
    return _default(question.framework, knob), f"{why}, so it is taken to be that"


def check_script(
    script: Script,
    cluster: Cluster,
    framework: Framework,
    knobs: Mapping[str, tuple[Any, ...]],
) -> None:
    """Refuse a script that could not be told its settings, or is launched as another framework's.

    Raises:
        UsageError: so it is; with what to write.
    """
    _check_launch(script, cluster, framework)
    in_file = IN_FILE if script.launch is Launch.ACCELERATE else ()
    for knob, values in knobs.items():
        if len(values) > 1 and knob not in (*script.knobs, *in_file, *BATCH):
            shown = ", ".join(map(str, values))
            allowed = f"{{{knob}}} is used nowhere in the script's command: use it, or state one"
            raise UsageError(knob, shown, allowed)
    if script.knobs.isdisjoint(BATCH) and all(len(knobs.get(k, ())) != 1 for k in BATCH):
        raise UsageError(
            "script",
            script.path,
            "its command names neither {micro_batch_size} nor {gradient_accumulation_steps}: use"
            " them, or state what it has with --knob micro_batch_size=N",
        )
    if not script.knobs and not in_file:
        known = ", ".join(f"{{{knob}}}" for knob in KNOBS)
        raise UsageError("script", script.path, f"nothing varies: its command must name of {known}")


def _check_launch(script: Script, cluster: Cluster, framework: Framework) -> None:
    built = framework.name in (FrameworkName.ACCELERATE, FrameworkName.TRAINER)
    if script.launch is Launch.ACCELERATE and not built:
        allowed = f"starts scripts with --framework accelerate or trainer, not {framework.name}"
        raise UsageError("launch", "accelerate", allowed)
    if cluster.nodes > 1:
        raise UsageError("cluster", cluster.name, "a script is probed on one node")


def _why_not_in_file(question: "Question", knob: str, settings: Settings | None) -> str:
    """Why accelerate's configuration file does not put a knob in force; empty if it does."""
    from tuner.export.fsdp import checkpoints_in_script  # it imports questions

    if question.cluster.gpu.device is Device.CPU:
        return f"accelerate ignores FSDP on a CPU, and {{{knob}}} is used nowhere in the command"
    if settings is None or knob != "activation_checkpointing":
        return ""
    full = replace(settings, activation_checkpointing=Checkpointing.FULL)
    if not checkpoints_in_script(question, full):
        return ""
    return (
        "accelerate's file checkpoints only what it shards and what draws no random numbers, and"
        " {activation_checkpointing} is used nowhere in the command"
    )


def _default(framework: Framework, knob: str) -> Any:
    """What a script has that is not told: the plain value, and what accelerate does unasked."""
    deferred = framework.name in (FrameworkName.ACCELERATE, FrameworkName.TRAINER)
    if knob == "sync_each_batch" and deferred:
        return False
    return getattr(Settings(), knob)
