"""One job on a Ray cluster: its placement group, an actor for each rank, and their files."""

import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workers.launchers.base import Job
from workers.launchers.ray.cluster import Node, NotPlacedError, alive, bundle, why
from workers.launchers.ray.node import RankActor, Stamp, changed_files, write_files
from workers.measuring.files import log_path

# Seconds without an answer after which an actor is in doubt: what others say of their ends is held
# back then, for they may have ended because its node is gone.
DOUBT_S = 2.0
# Seconds after which it is lost. Ray takes up to 15 s to find that a node is gone
# (health_check_period_ms x health_check_failure_threshold).
LOST_S = 30.0
# Seconds that actors get to remove their folders.
CLOSE_S = 2.0

# How a rank ended: code, at (Unix seconds), stopped, oom_kills.
End = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Member:
    """A rank's actor, as far as it is known."""

    rank: int
    actor: Any
    node: str = ""  # the node that it is on, once it is known
    asked: Any = None  # A call that it has not answered yet
    silent_since: float = math.inf  # when it was asked what it has not answered yet
    feed: bool = False  # set while the rank is to hear of its supervisor
    again: bool = False  # set where the last exchange may be lost, in both directions
    is_dead: bool = False  # set once Ray has said that it is no more
    end: End | None = None  # how its rank ended


@dataclass(slots=True, kw_only=True)
class Shared:
    """A node's folder."""

    keeper: Member  # the rank that made it
    seen: dict[str, Stamp]  # files of the supervisor's folder that are there


class PlacedJob:
    """A job that was given to Ray. Nothing here waits: it goes on whenever it is looked at."""

    def __init__(self, job: Job, program: str, nodes: Sequence[Node]) -> None:
        """Asks Ray for a place.

        Raises:
            NotPlacedError: they are not enough.
        """
        self._job = job
        self._program = program
        self._bundle = bundle(job, nodes)
        ids = ",".join(node.id for node in nodes)
        self._group = placement_group(
            [self._bundle] * job.nodes,
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{"ray.io/node-id": f"in({ids})"}] * job.nodes,
        )
        self._members: list[Member] = []
        self._shared: dict[str, Shared] = {}
        self._start = self._starting()
        self._refs = next(self._start)
        self._runs = False
        self._lost = ""
        self._lost_nodes: set[str] = set()

    @property
    def nodes(self) -> list[str]:
        """The nodes that it is on, in the order of ranks; none before it has its place."""
        return [*self._shared]

    def look(self, *, feed: bool) -> dict[str, Any]:
        """Goes on; what is new.

        Returns:
            ``runs``, whether ranks were started; ``ends`` of ranks that are certain, by rank;
            ``lost``, what became of a node that is gone, or nothing; ``lost_nodes``, which
            of the nodes, in the order of ranks.

        Raises:
            NotPlacedError: a rank could not be started.
        """
        for member in self._members:
            member.feed |= feed
        if not self._runs:
            self._go_on()
        else:
            self._exchange()
        self._judge()
        certain = self._lost or not any(map(_is_in_doubt, self._members))
        ends = {m.rank: m.end for m in self._members if m.end is not None} if certain else {}
        lost = [place for place, node in enumerate(self.nodes) if node in self._lost_nodes]
        return {"runs": self._runs, "ends": ends, "lost": self._lost, "lost_nodes": lost}

    def stop(self) -> None:
        """Has all ranks ended."""
        for member in self._members:
            if not member.is_dead:
                member.actor.stop.remote()

    def close(self) -> None:
        """Leaves nothing of the job."""
        closing = [m.actor.close.remote() for m in self._members if not m.is_dead]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for member in self._members:
            ray.kill(member.actor)
        remove_placement_group(self._group)

    # Start

    def _go_on(self) -> None:
        """The next step of the start, when all that the last one asked for is there."""
        if not self._members and not self._group.wait(0):
            return
        if len(_done(self._refs)) < len(self._refs):
            return
        try:
            self._refs = self._start.send([ray.get(ref) for ref in self._refs])
        except StopIteration:
            self._runs = True
        except RayActorError as error:
            self._lost = f"a Ray actor ended while ranks were started: {why(error)}"
        except RayError as error:
            raise NotPlacedError(f"Ray could not start the ranks: {why(error)}") from error

    def _starting(self) -> Generator[list[Any], list[Any], None]:
        """The start of all ranks; yields what is to be waited for, and is sent what came of it."""
        yield []  # the placement group itself
        self._members = [
            Member(rank=rank, actor=self._actor(rank)) for rank in range(self._job.ranks)
        ]
        places = yield [member.actor.place.remote() for member in self._members]
        for member, place in zip(self._members, places, strict=True):
            member.node = place["node"]
            self._shared.setdefault(member.node, Shared(keeper=member, seen={}))
        keepers = [shared.keeper for shared in self._shared.values()]
        made = yield [
            keeper.actor.make_folder.remote(self._files_for(keeper)) for keeper in keepers
        ]
        folders = dict(zip(self._shared, made, strict=True))
        yield [
            member.actor.start.remote(
                self._job_on(member.node, places).as_dict(),
                member.rank,
                places[0]["address"],
                folders[member.node],
                self._program,
            )
            for member in self._members
        ]

    def _job_on(self, node: str, places: Sequence[Mapping[str, Any]]) -> Job:
        """The job with the GPUs that its ranks got on a node: they see each other's, in order."""
        gpus = [gpu for place in places if place["node"] == node for gpu in place["gpus"]]
        return replace(self._job, visible=tuple(sorted(gpus, key=lambda gpu: (len(gpu), gpu))))

    def _actor(self, rank: int) -> Any:
        on_node = self._job.ranks_per_node
        where = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=rank // on_node
        )
        return (
            ray.remote(RankActor)
            .options(
                num_cpus=self._bundle["CPU"] / on_node,
                num_gpus=self._bundle.get("GPU", 0) / on_node,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=where,
            )
            .remote()
        )

    # Files and ends

    def _exchange(self) -> None:
        """Takes what actors have answered, and ask those that have."""
        answered = _done([member.asked for member in self._members if member.asked is not None])
        for member in self._members:
            if member.asked in answered:
                self._take(member)
            if member.asked is None and not member.is_dead:
                files = self._files_for(member)
                member.asked = member.actor.exchange.remote(member.feed, files, member.again)
                member.feed = member.again = False
                member.silent_since = min(member.silent_since, time.monotonic())

    def _take(self, member: Member) -> None:
        ref, member.asked = member.asked, None
        try:
            said = ray.get(ref)
        except ActorUnavailableError:  # Ray does not know yet what became of it
            member.feed = member.again = True
            return
        except (RayActorError, OutOfMemoryError) as error:
            self._bury(member, oom_kills=int(isinstance(error, OutOfMemoryError)))
            return
        member.silent_since = math.inf
        seen = self._shared[member.node].seen
        write_files(self._job.directory, said["files"], seen)
        if said["log"] is not None:
            log_path(self._job.directory, member.rank).write_bytes(said["log"])
        member.end = said["end"]

    def _files_for(self, member: Member) -> dict[str, bytes]:
        """New files for a node, when it is its keeper that is asked."""
        shared = self._shared[member.node]
        if shared.keeper is not member:
            return {}
        if member.again:
            shared.seen.clear()
        return changed_files(self._job.directory, shared.seen, _is_for_all)

    def _bury(self, member: Member, *, oom_kills: int) -> None:
        """An actor is no more, and its rank neither: the pipe between them is closed."""
        member.is_dead = True
        at = time.time()
        member.end = {"code": -SIGKILL, "at": at, "stopped": False, "oom_kills": oom_kills}

    def _judge(self) -> None:
        """Sees whether a node is gone."""
        doubtful = [m for m in self._members if m.is_dead or _is_in_doubt(m)]
        if self._lost or not doubtful:
            return
        there = alive()
        for member in doubtful:
            silent_s = time.monotonic() - member.silent_since
            if member.node and member.node not in there:
                self._lost = f"a node of rank {member.rank} is no longer in the Ray cluster"
                self._lost_nodes.add(member.node)
            elif not member.is_dead and silent_s > LOST_S:
                self._lost = f"the node of rank {member.rank} has not answered for {silent_s:.0f} s"
                self._lost_nodes.add(member.node)
        if self._lost:
            for member in doubtful:
                if member.end is None:
                    self._bury(member, oom_kills=0)


def _done(refs: list[Any]) -> set[Any]:
    """Ray's references whose results are there."""
    return set(ray.wait(refs, num_returns=len(refs), timeout=0)[0]) if refs else set()


def _is_in_doubt(member: Member) -> bool:
    """True for an actor that should have answered and has not."""
    waits = not member.is_dead and member.end is None
    return waits and time.monotonic() - member.silent_since > DOUBT_S


def _is_for_all(path: Path) -> bool:
    return not path.name.startswith("rank-")
