"""A worker as a batch job of Slurm's: the options that it may have, and its script."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from tuner.client.worker_process import Signals
from tuner.errors import ProbeError, UsageError

# Letters of options that what follows tells apart from flags, or that ours stand in the place of.
SHORT = {
    "a": "array", "D": "chdir", "e": "error", "h": "help", "i": "input", "J": "job-name",
    "M": "clusters", "n": "ntasks", "o": "output", "Q": "quiet", "s": "oversubscribe",
    "V": "version", "W": "wait",
}  # fmt: skip
# Letters that take no value: sbatch would read more letters behind them as options too, and the
# next word as the job's script.
FLAGS = frozenset("HIKOXhkrsuv")
# Letters that must have a value, beside those above.
VALUED = frozenset("ABCFGLNSbcdmpqtwx")
NOTHING = "no job would be submitted"
# Options that would break the worker, or its being followed, and why. Slurm judges all others.
OURS = {
    "array": "one worker serves all studies; submit several for more",
    "clusters": "the worker's own cluster is meant",
    "chdir": "the worker needs no folder of its own",
    "error": "what the worker says is shown, and kept in one file",
    "export": "the worker's environment says where the database is",
    "export-file": "the worker's environment says where the database is",
    "help": NOTHING,
    "input": "the worker reads nothing",
    "ntasks": "how many ranks there are is a study's matter",
    "open-mode": "what a worker that was queued again says follows the rest",
    "output": "what the worker says is shown, and kept in one file",
    "parsable": "the job's number is needed",
    "quiet": "what sbatch says is needed",
    "test-only": NOTHING,
    "usage": NOTHING,
    "version": NOTHING,
    "wait": "the worker is waited for anyway",
    "wrap": "the job is a worker",
}
# Options of the script, and those that stand in their place where they are given.
#
# Nodes without neighbours, which would be timed too, and all of their memory; a worker that
# outlives the failure of another node than its own, and is queued again when its own fails or it is
# preempted. Nothing is lost by that: studies are in the database.
DEFAULTS = {
    "--job-name=tuner": ("job-name",),
    "--exclusive": ("exclusive", "oversubscribe"),
    "--mem=0": ("mem", "mem-per-cpu", "mem-per-gpu"),
    "--no-kill": (),
    "--requeue": ("requeue", "no-requeue"),
    "--open-mode=append": (),
}


def batch_options(text: str) -> tuple[str, ...]:
    """Options of sbatch, each with its value: nothing in them can be a script or a command."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError("slurm", text, f"is not quoted as for a shell: {error}") from error
    found: list[str] = []
    while words:
        word = words.pop(0)
        if long := re.fullmatch(r"--([a-z][a-z-]+)(?:=(.*))?", word, re.DOTALL):
            name, value, flag = long[1], long[2], False
        elif short := re.fullmatch(r"-([A-Za-z])=?(.*)", word, re.DOTALL):
            name, value = SHORT.get(short[1], short[1]), short[2] or None
            flag = short[1] in FLAGS
            if value is not None and flag:
                raise UsageError("slurm", word, "must be one option, and not several letters")
            if short[1] not in FLAGS | VALUED | SHORT.keys():
                raise UsageError("slurm", word, "is not known; give the option's long name")
        else:
            raise UsageError("slurm", word, "must be an option of sbatch, such as --partition=NAME")
        # sbatch takes the beginning of a long name for it
        refused = next((one for one in OURS if one.startswith(name)), None)
        if refused and len(name) > 1:
            raise UsageError("slurm", word, f"cannot be given: {OURS[refused]}")
        if value is None and not flag and words and not words[0].startswith("-"):
            value = words.pop(0)
        if value is None and name in VALUED:
            raise UsageError("slurm", word, "must have a value")
        if value is not None and not value.isprintable():
            raise UsageError("slurm", word, "must be of printable characters")
        if len(name) == 1:
            found += [f"-{name}"] if value is None else [f"-{name}", value]
        else:
            found.append(f"--{name}" if value is None else f"--{name}={value}")
    return tuple(found)


def batch_script(argv: Sequence[str], options: Sequence[str], *, output: str) -> str:
    """The script of a job that is a worker.

    The worker takes the shell's place, so that signals for the job's script are for it.
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


# Between two questions to Slurm.
LOOK_S = 3.0
# Between two looks at what the worker says.
READ_S = 0.3
# For one of Slurm's commands.
COMMAND_S = 60.0
LARGEST_TAIL_BYTES = 64 * 2**10
# States of a job that is not coming back (squeue(1)).
OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "REVOKED", "TIMEOUT",
})  # fmt: skip
# Ended at a time when nobody asked: Slurm forgets a job some minutes after its end (MinJobAge).
FORGOTTEN = "forgotten"
INTERRUPTED = 130


def submit(argv: Sequence[str], options: str, folder: Path) -> "BatchJob":
    given = batch_options(options)
    literal = str(folder).replace("%", "%%")  # other than this %, all stands for itself
    script = batch_script(argv, given, output=f"{literal}/%j.log")
    folder.mkdir(parents=True, exist_ok=True)
    answer = _slurm("sbatch", "--parsable", *given, text=script)
    job_id = answer.strip().splitlines()[-1].partition(";")[0]
    return BatchJob(job_id=job_id, output=folder / f"{job_id}.log")


@dataclass(slots=True, kw_only=True)
class BatchJob:
    """A worker's job."""

    job_id: str
    output: Path
    """The file for what it says."""
    _shown: int = 0
    _last: str = ""
    _state: str = ""

    def follow(self, signals: Signals) -> int:
        """Show its state and what it says until it ends; cancel it at a signal.

        Returns:
            0 when it has completed, 130 when it was cancelled at a signal, else 1.
        """
        cancelled, looked = False, 0.0
        while self._state not in (*OVER, FORGOTTEN):
            if signals.noted and not cancelled:
                cancelled = True
                typer.echo(f"cancelling Slurm job {self.job_id}", err=True)
                _slurm("scancel", "--quiet", self.job_id)
            begins = self._state in ("", "PENDING") and self.output.exists()
            if begins or time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                self._look()
            self._show()
            time.sleep(READ_S)
        self._show()
        if cancelled:
            return INTERRUPTED
        if self._state != "COMPLETED" and not self._shown:
            typer.echo(
                f"it has said nothing in {self.output}: if its nodes do not see that folder, name"
                " one that they share (--probes)",
                err=True,
            )
        return 0 if self._state == "COMPLETED" else 1

    def _look(self) -> None:
        """Ask for its state, and tell a new one."""
        fields = f"--format={'|'.join(('%T', '%P', '%N', '%S', '%r'))}"
        try:
            found = _slurm("squeue", "--noheader", "--states=all", f"--jobs={self.job_id}", fields)
        except ProbeError as error:
            if "Invalid job id" not in str(error):
                self._tell(str(error))
                return
            found = ""
        if not (lines := found.strip().splitlines()):
            self._state = FORGOTTEN
            self._tell("Slurm knows it no more, nor how it ended")
            return
        self._state, partition, nodes, start, reason = lines[0].split("|", 4)
        if self._state == "PENDING":
            place = _place(self.job_id, partition)
            expected = "" if start == "N/A" else f", expected to start at {start}"
            self._tell(f"pending in partition {partition} ({reason}){place}{expected}")
        else:
            on = f" on {nodes}" if nodes and self._state == "RUNNING" else ""
            why = f" ({reason})" if reason not in ("None", "") else ""
            self._tell(f"{self._state.lower()}{on}{why}")

    def _tell(self, words: str) -> None:
        if words != self._last:
            self._last = words
            typer.echo(f"Slurm job {self.job_id}: {words}", err=True)

    def _show(self) -> None:
        """Print what it has said since the last time."""
        try:
            with self.output.open("rb") as file:
                file.seek(self._shown)
                while said := file.read(LARGEST_TAIL_BYTES):
                    self._shown += len(said)
                    sys.stderr.write(said.decode("utf-8", errors="replace"))
        except OSError:
            return  # it has said nothing yet
        sys.stderr.flush()


def _place(job_id: str, partition: str) -> str:
    """Says where a job stands in its partition's queue; empty where that is not told."""
    listing = ("--states=PENDING", f"--partition={partition}", "--sort=-p,i", "--format=%A")
    try:
        waiting = _slurm("squeue", "--noheader", *listing).split()
    except ProbeError:
        return ""
    if job_id not in waiting:
        return ""
    return f", {waiting.index(job_id) + 1} of {len(waiting)} that wait there by priority"


def _slurm(*argv: str, text: str = "") -> str:
    """Runs a command of Slurm's and returns its output; a job's environment is this process's.

    Options that stand in variables are left out, as those of an allocation that this may be in.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))
    }
    try:
        done = subprocess.run(
            argv,
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            env=own,
            check=False,
        )
    except FileNotFoundError as error:
        allowed = "is for where Slurm is: there is no sbatch on the PATH"
        raise UsageError("slurm", argv[0], allowed) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"{argv[0]}: {error}") from error
    if done.returncode:
        words = done.stderr.strip() or f"it ended with {done.returncode}"
        raise ProbeError(f"{argv[0]}: {words}")
    return done.stdout
