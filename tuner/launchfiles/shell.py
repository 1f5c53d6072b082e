"""Starts of a script of the user's own: shell lines, a job of Slurm's, a job of Kubernetes'."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.framework import FrameworkName
from tuner.core.script import torchrun
from tuner.core.study import Question
from tuner.launchfiles.contract import (
    PREFIX,
    About,
    Format,
    Stack,
    comments,
    header,
    job_name,
    printable,
    provenance,
    shell_word,
    surroundings,
    variables,
    yaml_text,
)
from tuner.model.shape import ANONYMOUS

MEDIA_TYPE = "text/x-shellscript"


def exports(values: Mapping[str, str]) -> Iterator[str]:
    """Variables for all that is started afterwards."""
    for name, value in values.items():
        yield f"export {name}={shlex.quote(value)}"


def usage(question: Question, path: str) -> Iterator[str]:
    """Comments: how the script at a path is started."""
    nodes, file_name = question.cluster.nodes, shell_word(path)
    if nodes == 1:
        yield f"# sh {file_name} SCRIPT.py ARGUMENTS"
        return
    yield from comments(f"On each of the {nodes} nodes, with the address of one of them:")
    yield f"#     MASTER_ADDR=ADDRESS sh {file_name} SCRIPT.py ARGUMENTS"


def checks(question: Question) -> Iterator[str]:
    """Ends with what is missing: the training script, or a place for several nodes to meet."""
    yield ': "${1:?usage: sh $0 SCRIPT.py ARGUMENTS}"'
    if question.cluster.nodes > 1:
        yield ': "${MASTER_ADDR:?set it to the address of one of the nodes, the same on all}"'


def command(question: Question, flags: Sequence[str] = ()) -> str:
    """torchrun with the script's own arguments, and lines of flags after them."""
    start = shlex.join(torchrun(question.cluster)).replace("HOST:", '"$MASTER_ADDR":')
    return " \\\n    ".join([f'{start} "$@"', *flags])


def argv(question: Question, path: str) -> tuple[str, ...]:
    """The command that starts a script of this kind."""
    host = ("env", "MASTER_ADDR=HOST") if question.cluster.nodes > 1 else ()
    return (*host, "sh", path, "SCRIPT.py")


FILE_NAME = "tuned.env"


def _render(question: Question, settings: Settings, about: About) -> str:
    path = about.path if PurePath(about.path).is_absolute() else f"./{about.path}"
    use = comments(
        f"For POSIX shells (. {shell_word(path)}). The settings are in force only if the training"
        " script reads them."
    )
    origin = {
        "study_id": about.study_id,
        "date": about.date,
        "provenance": str(about.provenance),
        "model": question.workload.model.name,
        "cluster": question.cluster.name,
    }
    if question.workload.model.name == ANONYMOUS:
        del origin["model"]
    told = {f"{PREFIX}{name.upper()}": printable(value) for name, value in origin.items()}
    lines = exports({**variables(question, settings), **told})
    return "\n".join([header(provenance(question, settings, about), use), *lines, ""])


ENV_FORMAT = Format(
    name="env",
    file_name=FILE_NAME,
    stack=Stack.ANY,
    media_type=MEDIA_TYPE,
    render=_render,
    for_programs=True,
)


TORCHRUN_FILE_NAME = "torchrun.sh"


def in_force(question: Question) -> str:
    """Says, in files that start any script, how the configuration comes into force in it."""
    if question.script is not None:
        return (
            "The study is of a script of your own: the settings are in force only with the"
            " arguments by which it takes them, which tuner studies show tells as its launch."
        )
    if question.framework.name is FrameworkName.NANOTRON:
        return (
            "The script is nanotron's run_train.py, with --config-file and a configuration that"
            " has the settings (tuner's format nanotron)."
        )
    return (
        "The settings are in force only if the script applies them: from tuner's formats"
        " accelerate, trainer or torch, or from the variables below."
    )


def _torchrun_render(question: Question, settings: Settings, about: About) -> str:
    use = usage(question, about.path)
    top = header(provenance(question, settings, about), use, comments(in_force(question)))
    values = {**variables(question, settings), **surroundings(question)}
    lines = ["#!/bin/sh", top, "set -eu", *exports(values), *checks(question)]
    return "\n".join([*lines, f"exec {command(question)}", ""])


TORCHRUN_FORMAT = Format(
    name="torchrun",
    file_name=TORCHRUN_FILE_NAME,
    stack=Stack.ANY,
    media_type=MEDIA_TYPE,
    render=_torchrun_render,
    argv=argv,
)


SBATCH_FILE_NAME = "tuned.sbatch"


def _sbatch_render(question: Question, settings: Settings, about: About) -> str:
    use = comments(
        f"sbatch {shell_word(about.path)} SCRIPT.py ARGUMENTS, with options of your site's, such as"
        " --partition, --time and --cpus-per-task, before the file's name."
    )
    top = header(provenance(question, settings, about), use, comments(in_force(question)))
    cluster = question.cluster
    cores = cluster.gpu.cores if cluster.gpu.device is Device.CPU else 0
    options = [f"--job-name={job_name(about.study_id)}", f"--nodes={cluster.nodes}"]
    options.append("--ntasks-per-node=1")
    if cluster.gpu.device is Device.CUDA:
        options.append(f"--gpus-per-node={cluster.gpus_per_node}")
    elif cores:
        options.append(f"--cpus-per-task={cores}")
    start = [': "${1:?usage: sbatch THIS_FILE SCRIPT.py ARGUMENTS}"']
    if cores:
        # since Slurm 22.05 srun does not inherit it
        start.append(f"export SRUN_CPUS_PER_TASK={cores}")
    if cluster.nodes > 1:
        nodes = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        start.append(f': "${{MASTER_ADDR:={nodes}}}"')
    # when one node's ranks fail, the others would wait for them
    start.append(f"exec srun --kill-on-bad-exit=1 {command(question)}")
    values = {**variables(question, settings), **surroundings(question)}
    head = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), top, "set -eu"]
    return "\n".join([*head, *exports(values), *start, ""])


SBATCH_FORMAT = Format(
    name="sbatch",
    file_name=SBATCH_FILE_NAME,
    stack=Stack.ANY,
    media_type=MEDIA_TYPE,
    render=_sbatch_render,
    argv=lambda question, path: ("sbatch", path, "SCRIPT.py"),
)


TRAIN_JOB_FILE_NAME = "trainjob.yaml"


def _train_job_render(question: Question, settings: Settings, about: About) -> str:
    """A TrainJob of Kubeflow Trainer v2, as YAML for ``kubectl apply -f``.

    Fields are those of ``TrainJobSpec`` in Kubeflow Trainer 2.3.0
    (``pkg/apis/trainer/v1alpha1/trainjob_types.go``); 2.0.0 has the same. Its torch plugin
    (``pkg/runtime/framework/plugins/torch/torch.go``) tells torchrun nodes, ranks and where they
    meet, through ``PET_`` variables. Values here are of this program's making: Kubernetes would
    expand ``$(NAME)`` in others.
    """
    cluster, gpu = question.cluster, question.cluster.gpu
    values = {**variables(question, settings), **surroundings(question)}
    trainer: dict[str, Any] = {
        "numNodes": cluster.nodes,
        "numProcPerNode": cluster.gpus_per_node,
        "command": ["torchrun", "SCRIPT.py"],
        "env": [{"name": name, "value": value} for name, value in values.items()],
    }
    needed = {"cpu": gpu.cores} if gpu.cores else {}
    if gpu.device is Device.CUDA:
        kind = gpu_kinds().get(gpu.name)
        # names that the vendors' device plugins give
        vendor = "amd" if kind and kind.title.startswith("AMD ") else "nvidia"
        needed = {f"{vendor}.com/gpu": cluster.gpus_per_node}
    if needed:
        trainer["resourcesPerNode"] = {"requests": needed, "limits": needed.copy()}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job_name(about.study_id)},
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": "torch-distributed",
            },
            "trainer": trainer,
        },
    }
    use = comments(
        f"kubectl apply -f {shell_word(about.path)}, with Kubeflow Trainer 2.0 or newer and its"
        " runtime torch-distributed. Put your script, its arguments and, as spec.trainer.image, an"
        " image that holds them in the place of SCRIPT.py.",
        in_force(question),
    )
    return f"{header(provenance(question, settings, about), use)}\n{yaml_text(job)}"


TRAIN_JOB_FORMAT = Format(
    name="kubernetes",
    file_name=TRAIN_JOB_FILE_NAME,
    stack=Stack.ANY,
    render=_train_job_render,
    argv=lambda question, path: ("kubectl", "apply", "-f", path),
)
