"""``tuner worker --slurm``: a worker as a batch job, shown until it ends."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from tuner.asking.worker import Signals
from tuner.batch_job import batch_options, batch_script
from tuner.errors import ProbeError, UsageError

LOOK_S = 3.0
"""Between two questions to Slurm."""
READ_S = 0.3
"""Between two looks at what the worker says."""
COMMAND_S = 60.0
"""For one of Slurm's commands."""
LARGEST_TAIL_BYTES = 64 * 2**10
OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States of a job that is not coming back (squeue(1))."""
FORGOTTEN = "forgotten"
"""Ended at a time when nobody asked: Slurm forgets a job some minutes after its end (MinJobAge)."""
INTERRUPTED = 130


def submit(argv: Sequence[str], options: str, folder: Path) -> "BatchJob":
    """Submit a worker.

    Args:
        argv: its command.
        options: of sbatch, as one text.
        folder: for what it says; the job's nodes must see it.

    Raises:
        UsageError: an option is not for it.
        ProbeError: there is no sbatch, or it refuses; with its words.
    """
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
    """Slurm's number of it."""
    output: Path
    """The file for what it says."""
    _shown: int = 0
    _last: str = ""
    _state: str = ""

    def follow(self, signals: Signals) -> int:
        """Show its state and what it says until it ends; cancel it at a signal.

        Returns:
            0 when it has completed, 130 when it was cancelled at a signal, else 1.

        Raises:
            ProbeError: Slurm does not answer, at a signal.
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
        try:
            fields = f"--format={'|'.join(('%T', '%P', '%N', '%S', '%r'))}"
            found = _slurm("squeue", "--noheader", "--states=all", f"--jobs={self.job_id}", fields)
        except ProbeError as error:
            if "Invalid job id" in str(error):
                self._forget()
            else:
                self._tell(str(error))
            return
        lines = found.strip().splitlines()
        if not lines:
            self._forget()
            return
        self._state, partition, nodes, start, reason = lines[0].split("|", 4)
        self._tell(self._words(reason, partition, nodes, start))

    def _forget(self) -> None:
        self._state = FORGOTTEN
        self._tell("Slurm knows it no more, nor how it ended")

    def _words(self, reason: str, partition: str, nodes: str, start: str) -> str:
        if self._state == "PENDING":
            place = _place(self.job_id, partition)
            expected = "" if start == "N/A" else f", expected to start at {start}"
            return f"pending in partition {partition} ({reason}){place}{expected}"
        on = f" on {nodes}" if nodes and self._state == "RUNNING" else ""
        why = f" ({reason})" if reason not in ("None", "") else ""
        return f"{self._state.lower()}{on}{why}"

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
    """Where a job stands among those that wait in its partition; empty where that is not told."""
    listing = ("--states=PENDING", f"--partition={partition}", "--sort=-p,i", "--format=%A")
    try:
        waiting = _slurm("squeue", "--noheader", *listing).split()
    except ProbeError:
        return ""
    if job_id not in waiting:
        return ""
    return f", {waiting.index(job_id) + 1} of {len(waiting)} that wait there by priority"


def _slurm(*argv: str, text: str = "") -> str:
    """What a command of Slurm's prints; a job's environment is this process's.

    Options that stand in variables are left out, as those of an allocation that this may be in.

    Raises:
        UsageError: it is not on the PATH.
        ProbeError: it fails; with its words.
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
