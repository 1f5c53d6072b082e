"""What runs on the nodes of a Ray cluster: an actor for each rank, and a look at a node.

Ray passes arguments and results between processes; here these are text, bytes, numbers, and
lists and dictionaries of them.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from workers.launchers.base import Job
from workers.launchers.facts import facts_here
from workers.launchers.logs import TAIL_BYTES
from workers.launchers.ray.mirror import Stamp, changed_files, moved, stamp, write_files
from workers.launchers.task import RankTask, read_end
from workers.measuring.files import log_path
from workers.measuring.folders import (
    default_probes_folder,
    make_folder,
    remove_folder,
    remove_leftovers,
)


def facts(ray_gpus: int) -> dict[str, Any]:
    """What a node is, as plain values; it is called there.

    Args:
        ray_gpus: how many GPUs Ray gives away there; no more may be used.
    """
    if ray_gpus and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # releases of Ray hide GPUs that were not asked for
    found = facts_here()
    machine = replace(found.machine, gpus=found.machine.gpus[:ray_gpus])
    said = replace(found, machine=machine).as_dict()
    return {"facts": said, "version": metadata.version("tuner")}


class RankActor:
    """One rank of a job: a child of the actor's process, which lives as long as the rank does.

    Ranks of a node share a folder there; the first of them makes it and passes on what is
    not one rank's own.
    """

    def __init__(self) -> None:
        self._folder = Path()
        self._made = False
        self._rank = 0
        self._task: RankTask | None = None
        self._seen: dict[str, Stamp] = {}

    def place(self) -> dict[str, Any]:
        """Where Ray has put it: the node's id and address, and the GPUs that it got."""
        import ray

        return {
            "node": ray.get_runtime_context().get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "gpus": [str(gpu) for gpu in ray.get_gpu_ids()],
        }

    def make_folder(self, files: Mapping[str, bytes]) -> str:
        """A folder for the ranks of this node, with the supervisor's files; this one keeps it."""
        parent = default_probes_folder()
        remove_leftovers(parent)
        self._folder, self._made = make_folder(parent, "ray"), True
        write_files(self._folder, files, self._seen)
        return str(self._folder)

    def start(
        self, job: Mapping[str, Any], rank: int, address: str, folder: str, program: str
    ) -> None:
        """Start the rank.

        Args:
            job: :meth:`workers.launchers.base.Job.as_dict`, as its supervisor has it.
            rank: which.
            address: of rank 0's node.
            folder: of this node's ranks, in the place of the job's directory.
            program: the supervisor's Python, in whose place this one is run.
        """
        self._folder, self._rank = Path(folder), rank
        here = moved(Job.from_dict(job), self._folder, program, sys.executable)
        self._task = RankTask(here, rank, address=address)
        self._task.start()

    def exchange(
        self, feed: bool, files: Mapping[str, bytes], again: bool = False
    ) -> dict[str, Any]:
        """Take the supervisor's new files, and tell what is new here.

        Args:
            feed: whether the supervisor is there.
            files: by their paths in the folder.
            again: whether to tell what was told before.

        Returns:
            ``files`` by their paths; ``log``, the end of this rank's where there is more of it;
            ``end``, once the rank has ended, with what was left until then.
        """
        assert self._task is not None, "it was not started"
        if feed:
            self._task.feed()
        if again:
            self._seen.clear()
        write_files(self._folder, files, self._seen)
        self._task.poll()
        ended = read_end(self._folder, self._rank)  # before the look at files: all are there then
        found = changed_files(self._folder, self._seen, self._is_ours)
        log = self._log_tail()
        end = None
        if ended is not None:
            end = {"code": ended[0].code, "at": ended[0].ended_at, "stopped": ended[0].stopped}
            end["oom_kills"] = ended[1]
        return {"files": found, "log": log, "end": end}

    def stop(self) -> None:
        """End the rank, if it runs."""
        if self._task is not None:
            self._task.stop()

    def close(self) -> None:
        """Remove the folder, if this rank made it."""
        if self._made:
            remove_folder(self._folder)

    def _is_ours(self, path: Path) -> bool:
        """Whether this actor passes a file on."""
        if path.name.startswith("rank-"):
            return path.name.startswith(f"rank-{self._rank:05d}.")
        return self._made

    def _log_tail(self) -> bytes | None:
        path = log_path(self._folder, self._rank)
        now = stamp(path)
        if self._seen.get(path.name) == now:
            return None
        self._seen[path.name] = now
        with path.open("rb") as file:
            file.seek(max(0, now[1] - TAIL_BYTES))
            return file.read(TAIL_BYTES)
