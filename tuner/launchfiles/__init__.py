"""Settings as the file that the user's launcher reads, one module per launcher."""

from collections.abc import Mapping
from dataclasses import replace

from tuner.catalog.versions import version_table
from tuner.core.configuration import Settings
from tuner.core.framework import OF_WORKLOADS, packages_beside
from tuner.core.study import Question
from tuner.errors import UnknownNameError, UsageError
from tuner.launchfiles import (
    accelerate,
    deepspeed,
    nanotron,
    settings_json,
    shell,
    torch_module,
    torchtitan,
    trainer,
)
from tuner.launchfiles.contract import About, Format, Stack, other_stack
from tuner.launchfiles.fsdp import layer_class

__all__ = ["FORMATS", "About", "Format", "Stack", "export", "other_stack", "why_not"]

# Every format by its name.
FORMATS: Mapping[str, Format] = {
    known.name: known
    for known in (
        accelerate.FORMAT,
        trainer.FORMAT,
        trainer.FLAGS,
        torch_module.FORMAT,
        shell.TORCHRUN_FORMAT,
        nanotron.FORMAT,
        deepspeed.FORMAT,
        torchtitan.FORMAT,
        shell.SBATCH_FORMAT,
        shell.TRAIN_JOB_FORMAT,
        shell.ENV_FORMAT,
        settings_json.FORMAT,
    )
}
# Formats that are written for the classes of a model's layers.
NAMES_LAYERS = frozenset({trainer.FORMAT.name, trainer.FLAGS.name, torch_module.FORMAT.name})


def export(format_name: str, question: Question, settings: Settings, about: About) -> str:
    """The text of the launcher's file for ``settings``.

    Raises:
        UnknownNameError: there is no such format.
        UsageError: the format cannot express the settings; with the reason.
    """
    reason = why_not(format_name, question, settings)
    if reason is not None:
        raise UsageError("format", format_name, reason)
    known = FORMATS[format_name]
    about = replace(
        about,
        path=about.path or known.file_name,
        versions=_versions(known, question, about.versions),
        other_stack=other_stack(question, known.stack),
        format_name=known.name,
    )
    return known.render(question, settings, about)


def _versions(known: Format, question: Question, found: Mapping[str, str]) -> Mapping[str, str]:
    """Those of packages that train under the file; of a script of the user's own, which may import
    any, all."""
    if question.script is not None:
        return found
    mine = version_table().frameworks[question.framework.name].oldest.keys() - OF_WORKLOADS
    wanted = {*(known.packages or mine)}
    wanted.update(packages_beside(question.workload, question.cluster.gpu.device))
    return {package: version for package, version in found.items() if package in wanted}


def why_not(format_name: str, question: Question, settings: Settings) -> str | None:
    """Why the format cannot express ``settings`` and what to do about it; ``None`` if it can.

    Raises:
        UnknownNameError: there is no such format.
    """
    if format_name not in FORMATS:
        raise UnknownNameError("format", format_name, FORMATS)
    if format_name in NAMES_LAYERS and not question.workload.model.is_named:
        return "it names the model's layers, and no model is named; ask again with --model"
    if format_name in NAMES_LAYERS and not layer_class(question.workload.model):
        kind = question.workload.model.model_type
        return f"it names the model's layers, and those of {kind} are not known here"
    return FORMATS[format_name].why_not(question, settings)
