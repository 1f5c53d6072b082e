"""The interface of all launchers: start the ranks of a job, watch them, and leave none behind."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf, isinf
from pathlib import Path
from typing import Any, Protocol

# In a job's argv: replaced by the number of the rank's end of the pipe to its supervisor.
WATCH_FD = "{watch_fd}"
# In a job's argv: replaced by how its ranks find each other: ``file`` or ``address``.
RENDEZVOUS = "{rendezvous}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ranks to be started together."""

    argv: tuple[str, ...]
    """The command of every rank; elements :data:`WATCH_FD` and :data:`RENDEZVOUS` are replaced."""
    directory: Path
    """For the records and logs of the ranks (``workers/measuring/files.py`` names them)."""
    ranks: int
    device: str  # cpu or cuda
    deadline_s: float  # seconds after which all ranks are ended, whatever they do
    nodes: int = 1
    """Machines that they are spread over: equally many on each, in the order of ranks."""
    sharing: int | None = None
    """Ranks that share a node's cores, where they are not those that are started there."""
    visible: tuple[str, ...] = ()
    """GPUs that all ranks see, as CUDA_VISIBLE_DEVICES names them; where there are none, those that
    whatever starts them on a node sees."""
    peer_grace_s: float = 5.0
    """Seconds that the others get for their own records when one rank has failed: they may hang
    in a collective for good."""
    term_grace_s: float = 3.0  # seconds from SIGTERM to SIGKILL

    def __post_init__(self) -> None:
        assert self.ranks >= 1 <= self.nodes, (self.ranks, self.nodes)
        assert self.ranks % self.nodes == 0, (self.ranks, self.nodes)

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one node."""
        return self.ranks // self.nodes

    def command(self, watch_fd: int) -> list[str]:
        """The command of a rank whose end of the pipe to its supervisor has this number."""
        how = "address" if self.nodes > 1 else "file"
        values = {WATCH_FD: str(watch_fd), RENDEZVOUS: how}
        return [values.get(part, part) for part in self.argv]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, in which no deadline is ``None``."""
        deadline_s = None if isinf(self.deadline_s) else self.deadline_s
        return {**asdict(self), "directory": str(self.directory), "deadline_s": deadline_s}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Job":
        """The reverse of :meth:`as_dict`, also after JSON."""
        lists = {name: tuple(values[name]) for name in ("argv", "visible")}
        deadline_s = inf if values["deadline_s"] is None else values["deadline_s"]
        directory = Path(values["directory"])
        return cls(**{**values, **lists, "directory": directory, "deadline_s": deadline_s})


class Why(StrEnum):
    """Why a job is over."""

    ENDED = "ended"  # every rank ended by itself
    PEER_FAILED = "peer_failed"  # a rank failed, and others did not end in the grace after it
    DEADLINE = "deadline"  # the deadline passed
    CANCELLED = "cancelled"  # cancel() was called, or the scheduler takes the devices back
    NODE_LOST = "node_lost"  # a node that ranks ran on is gone
    TAKEN_AWAY = "taken_away"  # somebody else ended the ranks, on devices that are still there


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    code: int  # exit code, or minus the signal's number, as subprocess has it
    ended_at: float  # unix seconds when its end was seen
    stopped: bool  # set if the launcher ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended. Nothing of it is left."""

    why: Why
    ranks: tuple[RankEnd, ...]
    wall_s: float  # seconds from the first rank's start to the last one's end
    host_oom_kills: int = 0  # processes that the kernel killed meanwhile for want of host memory
    detail: str = ""  # more on why, in words, where the ranks' own records cannot know it
    lost_nodes: tuple[int, ...] = ()
    """Nodes that are gone, counted from 0 in the order of ranks, where it is known."""
    node_devices: tuple[tuple[str, ...], ...] = ()
    """Names of all devices of each node, in the order of ranks; empty where they are not known."""


class Run(Protocol):
    """A job that was started. It is supervised only while :meth:`poll` is called every second."""

    def poll(self) -> Ended | None:
        """Supervises; how the job ended, once it is over and nothing of it is left."""

    def cancel(self) -> Ended:
        """Ends the job; returns when nothing of it is left."""

    def logs(self) -> Mapping[int, str]:
        """The end of each rank's output, by rank, without terminal colors."""


class Launcher(Protocol):
    """A way to start ranks."""

    def start(self, job: Job) -> Run:
        """Starts all ranks of ``job``.

        Raises:
            OSError: a rank could not be started; none is left.
        """
