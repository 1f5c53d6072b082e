"""What every launcher does: start the ranks of a job, watch them, and leave none behind."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

WATCH_FD = "{watch_fd}"
"""In a job's argv: replaced by the number of the rank's end of the pipe to its supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ranks to be started together."""

    argv: tuple[str, ...]
    """The command of every rank; an element :data:`WATCH_FD` is replaced."""
    directory: Path
    """For the records and logs of the ranks (``workers/files.py`` names them)."""
    ranks: int
    """How many."""
    device: str
    """cpu or cuda."""
    deadline_s: float
    """Seconds after which all ranks are ended, whatever they do."""
    sharing: int | None = None
    """Ranks that share this machine's cores, where they are not those that are started."""
    visible: tuple[str, ...] = ()
    """GPUs that all ranks see, as CUDA_VISIBLE_DEVICES names them; those that this process sees
    where there are none."""
    peer_grace_s: float = 5.0
    """Seconds that the others get for their own records when one rank has failed: they may hang
    in a collective for good."""
    term_grace_s: float = 3.0
    """Seconds from SIGTERM to SIGKILL."""


class Why(StrEnum):
    """Why a job is over."""

    ENDED = "ended"  # every rank ended by itself
    PEER_FAILED = "peer_failed"  # a rank failed, and others did not end in the grace after it
    DEADLINE = "deadline"  # the deadline passed
    CANCELLED = "cancelled"  # cancel() was called


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    """Which."""
    code: int
    """Exit code, or minus the signal's number, as subprocess has it."""
    ended_at: float
    """Unix seconds when its end was seen."""
    stopped: bool
    """Whether the launcher ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended. Nothing of it is left."""

    why: Why
    """What ended it."""
    ranks: tuple[RankEnd, ...]
    """How each rank ended, by rank."""
    wall_s: float
    """Seconds from the first rank's start to the last one's end."""
    host_oom_kills: int = 0
    """Processes that the kernel killed meanwhile for want of host memory."""


class Run(Protocol):
    """A job that was started. It is supervised only while :meth:`poll` is called every second."""

    def poll(self) -> Ended | None:
        """Supervise; how the job ended, once it is over and nothing of it is left."""

    def cancel(self) -> Ended:
        """End the job; returns when nothing of it is left."""

    def logs(self) -> Mapping[int, str]:
        """The end of each rank's output, by rank, without terminal colors."""


class Launcher(Protocol):
    """A way to start ranks."""

    def start(self, job: Job) -> Run:
        """Start all ranks of ``job``.

        Raises:
            OSError: a rank could not be started; none is left.
        """
