"""A worker as a batch job of Slurm's: the options that it may have, and its script."""

import re
import shlex
from collections.abc import Sequence

from tuner.errors import UsageError

VALUED = (
    "account",
    "acctg-freq",
    "batch",
    "bb",
    "bbf",
    "begin",
    "cluster-constraint",
    "comment",
    "constraint",
    "container",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "dependency",
    "exclude",
    "extra",
    "extra-node-info",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "job-name",
    "licenses",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "nodefile",
    "nodelist",
    "nodes",
    "ntasks-per-node",
    "ntasks-per-socket",
    "partition",
    "power",
    "prefer",
    "priority",
    "profile",
    "qos",
    "reservation",
    "signal",
    "sockets-per-node",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "wait-all-nodes",
    "wckey",
)
"""Options of sbatch(1), Slurm 22.05 to 24.05, that take a value, but for those of :data:`OURS`."""
FLAGS = (
    "contiguous",
    "exclusive",
    "get-user-env",
    "hold",
    "nice",
    "no-requeue",
    "oversubscribe",
    "reboot",
    "requeue",
    "spread-job",
    "use-min-nodes",
)
"""Those that need none; some may have one after ``=``."""
SHORT = {
    "A": "account",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "d": "dependency",
    "F": "nodefile",
    "G": "gpus",
    "J": "job-name",
    "L": "licenses",
    "N": "nodes",
    "p": "partition",
    "q": "qos",
    "S": "core-spec",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
"""Letters of options that take a value."""
OURS = {
    "array": "one worker serves all studies; submit several for more",
    "clusters": "the worker's own cluster is meant",
    "chdir": "the worker needs no folder of its own",
    "error": "what the worker says is shown, and kept in one file",
    "export": "the worker's environment says where the database is",
    "input": "the worker reads nothing",
    "ntasks": "how many ranks there are is a study's matter",
    "open-mode": "what a worker that was queued again says follows the rest",
    "output": "what the worker says is shown, and kept in one file",
    "parsable": "the job's number is needed",
    "quiet": "what sbatch says is needed",
    "wait": "the worker is waited for anyway",
    "wrap": "the job is a worker",
}
"""Options that are not to be given, and why."""
DEFAULTS = {
    "--job-name=tuner": ("job-name",),
    "--exclusive": ("exclusive", "oversubscribe"),
    "--mem=0": ("mem", "mem-per-cpu", "mem-per-gpu"),
    "--no-kill": (),
    "--requeue": ("requeue", "no-requeue"),
    "--open-mode=append": (),
}
"""Options of the script, and those that stand in their place where they are given.

Nodes without neighbours, which would be timed too, and all of their memory; a worker that outlives
the failure of another node than its own, and is queued again when its own fails or it is preempted.
Nothing is lost by that: studies are in the database.
"""


def batch_options(text: str) -> tuple[str, ...]:
    """Options of sbatch, as one text, in the form ``--name=value`` that cannot be misread.

    Args:
        text: such as ``--partition=gpu -N 2 --time 8:00:00``, quoted as for a shell.

    Raises:
        UsageError: it has something else than options that a worker's job may have.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError("slurm", text, f"is not quoted as for a shell: {error}") from error
    found = []
    while words:
        word = words.pop(0)
        name, value = _name_and_value(word)
        _check(name, word)
        if value is None and name in VALUED:
            if not words:
                raise UsageError("slurm", word, "needs a value")
            value = words.pop(0)
        if value is not None and not value.isprintable():
            raise UsageError("slurm", word, "must be of printable characters")
        found.append(f"--{name}" if value is None else f"--{name}={value}")
    return tuple(found)


def _name_and_value(word: str) -> tuple[str, str | None]:
    if long := re.fullmatch(r"--([a-z][a-z-]*)(?:=(.*))?", word, re.DOTALL):
        return long[1], long[2]
    if (short := re.fullmatch(r"-([A-Za-z])=?(.*)", word, re.DOTALL)) and short[1] in SHORT:
        return SHORT[short[1]], short[2] or None
    raise UsageError("slurm", word, "must be an option of sbatch, such as --partition=NAME")


def _check(name: str, word: str) -> None:
    if name in OURS:
        raise UsageError("slurm", word, f"cannot be given: {OURS[name]}")
    if name not in (*VALUED, *FLAGS):
        allowed = (
            "is no option of sbatch for a worker's job, such as --partition=NAME or --time=8:00:00"
        )
        raise UsageError("slurm", word, allowed)


def batch_script(argv: Sequence[str], options: Sequence[str], *, output: str) -> str:
    """The script of a job that is a worker.

    The worker takes the shell's place, so that signals for the job's script are for it.

    Args:
        argv: the worker's command.
        options: of :func:`batch_options`, which sbatch is given beside the script.
        output: path of the file for what it says; ``%j`` is the job's number.
    """
    for name, text in (("output", output), *(("worker", part) for part in argv)):
        if not text.isprintable():
            raise UsageError(name, text, "must be of printable characters")
    if {'"', "\\"} & {*output}:
        raise UsageError("output", output, "must have no quote and no backslash: sbatch reads them")
    given = {option.removeprefix("--").partition("=")[0] for option in options}
    own = [option for option, instead in DEFAULTS.items() if not given & {*instead}]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in own)]
    lines += [f'#SBATCH --output="{output}"', f"exec {shlex.join(argv)}"]
    return "\n".join(lines) + "\n"
