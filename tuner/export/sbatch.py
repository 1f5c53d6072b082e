"""A job script for Slurm: ``sbatch tuned.sbatch SCRIPT.py``.

One task on each node starts that node's ranks by torchrun. Options are those of Slurm 23's
``sbatch`` and ``srun``; ``--gpus-per-node`` is of 19.05 and later.
"""

from collections.abc import Iterator

from tuner.cluster import Device
from tuner.export.contract import About, Format, Stack
from tuner.export.header import comments, header, provenance
from tuner.export.shell import MEDIA_TYPE, command, exports
from tuner.export.torchrun import in_force
from tuner.export.variables import job_name, surroundings, variables
from tuner.settings import Settings
from tuner.study import Question

FILE_NAME = "tuned.sbatch"


def _why_not(question: Question, settings: Settings) -> str | None:
    return None


def _render(question: Question, settings: Settings, about: About) -> str:
    use = comments(
        f"sbatch {FILE_NAME} SCRIPT.py ARGUMENTS, with options of your site's, such as --partition,"
        " --time and --cpus-per-task, before the file's name."
    )
    top = header(provenance(question, settings, about), use, comments(in_force(question)))
    options = [f"#SBATCH {option}" for option in _options(question, about)]
    values = {**variables(question, settings), **surroundings(question)}
    return "\n".join(
        ["#!/bin/bash", *options, top, "set -eu", *exports(values), *_start(question), ""]
    )


def _options(question: Question, about: About) -> Iterator[str]:
    cluster = question.cluster
    yield f"--job-name={job_name(about.study_id)}"
    yield f"--nodes={cluster.nodes}"
    yield "--ntasks-per-node=1"
    if cluster.gpu.device is Device.CUDA:
        yield f"--gpus-per-node={cluster.gpus_per_node}"
    elif cluster.gpu.cores:
        yield f"--cpus-per-task={cluster.gpu.cores}"


def _start(question: Question) -> Iterator[str]:
    yield f': "${{1:?usage: sbatch {FILE_NAME} SCRIPT.py ARGUMENTS}}"'
    if question.cluster.gpu.device is Device.CPU and question.cluster.gpu.cores:
        # since Slurm 22.05 srun does not inherit it
        yield f"export SRUN_CPUS_PER_TASK={question.cluster.gpu.cores}"
    if question.cluster.nodes > 1:
        yield ': "${MASTER_ADDR:=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}"'
    # when one node's ranks fail, the others would wait for them
    yield f"exec srun --kill-on-bad-exit=1 {command(question)}"


def _argv(question: Question, path: str) -> tuple[str, ...]:
    return ("sbatch", path, "SCRIPT.py")


FORMAT = Format(
    name="sbatch",
    file_name=FILE_NAME,
    stack=Stack.ANY,
    media_type=MEDIA_TYPE,
    why_not=_why_not,
    render=_render,
    argv=_argv,
)
