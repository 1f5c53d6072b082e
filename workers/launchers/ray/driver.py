"""The process that speaks to Ray for a worker.

    python -P -m workers.launchers.ray.driver [--address HOST:PORT]

It connects to the cluster, or starts one of this machine alone, and says so in a line of JSON; then
it answers each line of its standard input with one. It ends with its input, and Ray ends what it
has started there. Ray takes signals, prints, and ends a process whose cluster is gone: this one
has nothing to lose by that.
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from signal import SIGKILL
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    AuthenticationError,
    OutOfMemoryError,
    RayActorError,
    RayError,
)
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from workers.launchers.base import Job, RankEnd
from workers.launchers.ray.node import RankActor, Stamp, changed_files, facts, write_files
from workers.launchers.site import Facts
from workers.measuring.records import log_path

# -- one job: its placement group, an actor for each rank, and their files ----------------------

# Seconds without an answer after which an actor is in doubt: what others say of their ends is held
# back then, for they may have ended because its node is gone.
DOUBT_S = 2.0
# Seconds after which it is lost. Ray takes up to 15 s to find that a node is gone
# (health_check_period_ms x health_check_failure_threshold).
LOST_S = 30.0
# Seconds that actors get to remove their folders.
CLOSE_S = 2.0


class NotPlacedError(Exception):
    """The job cannot be placed, or a rank cannot be started; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is there, as Ray has it."""

    id: str  # ray's, new at each start of the node
    address: str
    cpus: float  # CPUs that Ray gives away
    gpus: int  # GPUs that Ray gives away


def alive() -> dict[str, Node]:
    """The nodes that are there and run anything at all, by their ids."""
    found = {}
    for node in ray.nodes():
        has = node["Resources"]
        if node["Alive"] and has.get("CPU", 0.0) >= 1:
            found[node["NodeID"]] = Node(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                cpus=has["CPU"],
                gpus=int(has.get("GPU", 0)),
            )
    return found


def why(error: Exception) -> str:
    """The last line of an error of Ray's, which holds what went wrong on the other side."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def bundle(job: Job, nodes: Sequence[Node]) -> dict[str, float]:
    """The share of each node that a job takes: its ranks' GPUs, and as many CPUs as a GPU has.

    CPU ranks have a node's cores for themselves.
    """
    wanted = job.gpus_per_node if job.device == "cuda" else 0
    fit = [node for node in nodes if node.gpus >= wanted]
    if len(fit) < job.nodes:
        what = f"with {wanted} GPUs" if wanted else "of one kind"
        raise NotPlacedError(f"{job.nodes} Ray nodes {what} are needed, and {len(fit)} are there")
    cpus = min(node.cpus * (wanted / node.gpus if wanted else 1.0) for node in fit)
    share = max(math.floor(cpus / job.ranks_per_node * 1000) / 1000, 0.001)
    found = {"CPU": share * job.ranks_per_node}
    return {**found, "GPU": float(wanted)} if wanted else found


@dataclass(slots=True, kw_only=True)
class Member:
    """A rank's actor, as far as it is known."""

    rank: int
    actor: Any
    node: str = ""  # the node that it is on, once it is known
    asked: Any = None  # a call that it has not answered yet
    silent_since: float = math.inf  # when it was asked what it has not answered yet
    feed: bool = False  # set while the rank is to hear of its supervisor
    again: bool = False  # set where the last exchange may be lost, in both directions
    is_dead: bool = False  # set once Ray has said that it is no more
    end: dict[str, Any] | None = None  # how its rank ended, a :class:`RankEnd`'s values

    @property
    def is_in_doubt(self) -> bool:
        """True for an actor that should have answered and has not."""
        waits = not self.is_dead and self.end is None
        return waits and time.monotonic() - self.silent_since > DOUBT_S

    def bury(self, *, oom_kills: int) -> None:
        """Notes that it is no more, and its rank neither: the pipe between them is closed."""
        self.is_dead = True
        end = RankEnd(
            rank=self.rank,
            code=-SIGKILL,
            ended_at=time.time(),
            stopped=False,
            host_oom_kills=oom_kills,
        )
        self.end = end.as_dict()


@dataclass(slots=True, kw_only=True)
class Shared:
    keeper: Member  # the rank that made it
    seen: dict[str, Stamp]  # files of the supervisor's folder that are there


class PlacedJob:
    """A job that was given to Ray. Nothing here waits: it goes on whenever it is looked at."""

    def __init__(self, job: Job, program: str, nodes: Sequence[Node]) -> None:
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
            ``runs``, whether ranks were started; ``ends`` of ranks that are certain;
            ``lost``, what became of a node that is gone, or nothing; ``lost_nodes``, which
            of the nodes, in the order of ranks.
        """
        for member in self._members:
            member.feed |= feed
        if self._runs:
            self._exchange()
        elif self._members or self._group.wait(0):
            self._go_on()
        self._judge()
        certain = self._lost or not any(member.is_in_doubt for member in self._members)
        ends = [m.end for m in self._members if m.end is not None] if certain else []
        lost = [place for place, node in enumerate(self.nodes) if node in self._lost_nodes]
        return {"runs": self._runs, "ends": ends, "lost": self._lost, "lost_nodes": lost}

    def stop(self) -> None:
        for member in self._members:
            if not member.is_dead:
                member.actor.stop.remote()

    def close(self) -> None:
        closing = [m.actor.close.remote() for m in self._members if not m.is_dead]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for member in self._members:
            ray.kill(member.actor)
        remove_placement_group(self._group)

    def _go_on(self) -> None:
        """The next step of the start, when all that the last one asked for is there."""
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
        on_node = self._job.ranks_per_node
        for rank in range(self._job.ranks):
            options = ray.remote(RankActor).options(
                num_cpus=self._bundle["CPU"] / on_node,
                num_gpus=self._bundle.get("GPU", 0) / on_node,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=rank // on_node
                ),
            )
            self._members.append(Member(rank=rank, actor=options.remote()))
        places = yield [member.actor.place.remote() for member in self._members]
        gpus: dict[str, list[str]] = {}
        for member, place in zip(self._members, places, strict=True):
            member.node = place["node"]
            self._shared.setdefault(member.node, Shared(keeper=member, seen={}))
            gpus.setdefault(member.node, []).extend(place["gpus"])
        keepers = [shared.keeper for shared in self._shared.values()]
        made = yield [keeper.actor.make_folder.remote(self._news_for(keeper)) for keeper in keepers]
        folders = dict(zip(self._shared, made, strict=True))
        starts = []
        for member in self._members:
            # ranks of a node see each other's GPUs, in order
            visible = tuple(sorted(gpus[member.node], key=lambda gpu: (len(gpu), gpu)))
            job = replace(self._job, visible=visible).as_dict()
            place = (places[0]["address"], folders[member.node], self._program)
            starts.append(member.actor.start.remote(job, member.rank, *place))
        yield starts

    def _exchange(self) -> None:
        answered = _done([member.asked for member in self._members if member.asked is not None])
        for member in self._members:
            if member.asked in answered:
                ref, member.asked = member.asked, None
                try:
                    said = ray.get(ref)
                except ActorUnavailableError:  # Ray does not know yet what became of it
                    member.feed = member.again = True
                except (RayActorError, OutOfMemoryError) as error:
                    member.bury(oom_kills=int(isinstance(error, OutOfMemoryError)))
                else:
                    member.silent_since = math.inf
                    seen = self._shared[member.node].seen
                    write_files(self._job.directory, said["files"], seen)
                    if said["log"] is not None:
                        log_path(self._job.directory, member.rank).write_bytes(said["log"])
                    member.end = said["end"]
            if member.asked is None and not member.is_dead:
                news = self._news_for(member)
                member.asked = member.actor.exchange.remote(member.feed, news, member.again)
                member.feed = member.again = False
                member.silent_since = min(member.silent_since, time.monotonic())

    def _news_for(self, member: Member) -> dict[str, bytes]:
        """New files for a node, when it is its keeper that is asked."""
        shared = self._shared[member.node]
        if shared.keeper is not member:
            return {}
        if member.again:
            shared.seen.clear()
        return changed_files(self._job.directory, shared.seen, _is_for_all)

    def _judge(self) -> None:
        doubtful = [m for m in self._members if m.is_dead or m.is_in_doubt]
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
                    member.bury(oom_kills=0)


def _done(refs: list[Any]) -> set[Any]:
    return set(ray.wait(refs, num_returns=len(refs), timeout=0)[0]) if refs else set()


def _is_for_all(path: Path) -> bool:
    return not path.name.startswith("rank-")


# -- the cluster, and lines of input --------------------------------------------------------------

# Seconds for a connection to the cluster.
REACH_S = 10.0
# Seconds for a command of Ray's, which waits for its cluster for 40.
OPEN_CHECK_S = 60.0
# Seconds for what nodes say of themselves: a process is started on each, and a driver may wake its
# GPUs.
FACTS_S = 20.0

Answer = dict[str, Any]


class RefusedError(Exception):
    """The cluster is not one to be used; the text says what must be."""


class Driver:
    def __init__(self) -> None:
        self._jobs: dict[int, PlacedJob] = {}
        # what the nodes on which jobs are placed say of themselves (Facts), by their ids
        self._used: dict[str, Answer] = {}

    def answer(self, request: Answer) -> Answer:
        job = self._jobs.get(request.get("run", 0))
        try:
            match request["do"]:
                case "nodes":
                    return self._nodes()
                case "start":
                    self._start(request)
                case "look" if job is None:
                    return {"error": "the connection to Ray was lost, and its ranks with it"}
                case "look" if job is not None:
                    known = [Facts.from_dict(self._used[n]) for n in job.nodes if n in self._used]
                    found = job.look(feed=request["feed"])
                    devices = [one.devices for one in known] if len(known) == len(job.nodes) else []
                    return {**found, "devices": devices}
                case "stop" if job is not None:
                    job.stop()
                case "close" if job is not None:
                    del self._jobs[request["run"]]
                    job.close()
        except NotPlacedError as error:
            return {"error": str(error)}
        except RayError as error:
            return {"error": f"Ray: {why(error)}"}
        return {}

    def _start(self, request: Answer) -> None:
        if not self._used:
            self._nodes()
        nodes = alive()
        there = [nodes[node] for node in self._used if node in nodes]
        job = Job.from_dict(request["job"])
        self._jobs[request["run"]] = PlacedJob(job, request["program"], there)

    def _nodes(self) -> Answer:
        """Asks nodes for what they have: of those that jobs are placed on, and why not on others.

        A node that cannot be asked, or has another tuner, is of no use.
        """
        nodes = alive()
        asked = {_ask(node): node for node in nodes.values()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=FACTS_S)
        ours = metadata.version("tuner")
        found: dict[str, Answer] = {}
        left_out = {asked[ref].address: f"it did not answer within {FACTS_S:.0f} s" for ref in late}
        for ref in done:
            node = asked[ref]
            try:
                said = ray.get(ref)
            except RayError as error:
                left_out[node.address] = why(error)
                continue
            if said["version"] == ours:
                found[node.id] = said["facts"]
            else:
                left_out[node.address] = f"it has tuner {said['version']}, and {ours} is here"
        self._used = {node: found[node] for node in alike(found)} if found else {}
        for other in found.keys() - self._used.keys():
            left_out[nodes[other].address] = "it is of another kind than those that are used"
        return {"nodes": [*self._used.values()], "left_out": left_out}


def _ask(node: Node) -> Any:
    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    task = ray.remote(facts).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return task.remote(node.gpus)


def alike(facts_by_node: Mapping[str, Answer]) -> list[str]:
    """The largest group of nodes of one kind, counted in GPUs, or in nodes where there are none.

    A job's ranks are all of one kind, and what is judged before it is started must be what it
    is started on.
    """
    groups: dict[Any, list[str]] = {}
    for node, said in sorted(facts_by_node.items()):
        machine = said["machine"]
        gpus = tuple((gpu["name"], gpu["memory_mib"]) for gpu in machine["gpus"])
        groups.setdefault((gpus, machine["processor"], machine["cores"]), []).append(node)
    largest = max(groups, key=lambda kind: (len(groups[kind]) * len(kind[0]), len(groups[kind])))
    return groups[largest]


def connect(address: str) -> str:
    """Connects to a cluster, or start one on this machine's loopback interface; its address."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        # does anything listen there? Ray tries for minutes, and does not say so
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
        except (OSError, OverflowError) as error:
            raise RefusedError(f"is not there: {error}") from error
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            configure_logging=False,
            **({} if address else {"include_dashboard": False}),
        )
    except (AuthenticationError, ConnectionError) as error:
        raise RefusedError(
            f"is not there, or has another token than there is here ({why(error)})"
        ) from error
    except (RuntimeError, ValueError, RayError) as error:
        raise RefusedError(f"cannot be used: {why(error)}") from error
    found = str(ray.get_runtime_context().gcs_address)
    if not address:
        return found
    # a cluster that answers somebody without a token is nothing to be used
    without = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", "--address", found],
        env={**without, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        timeout=OPEN_CHECK_S,
        check=False,
    )
    if done.returncode == 0:
        raise RefusedError(
            "must be a cluster with token authentication (RAY_AUTH_MODE=token on all of its"
            " nodes): this one runs whatever anybody on its network sends"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="", help="of a cluster; else one is started")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints is no answer
    try:
        address = connect(options.address)
    except RefusedError as error:
        print(json.dumps({"refused": str(error)}), file=answers)
        return 1
    print(json.dumps({"address": address, "ray": ray.__version__}), file=answers)
    driver = Driver()
    for line in sys.stdin:
        print(json.dumps(driver.answer(json.loads(line))), file=answers)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
