"""Runs on the nodes of a Ray cluster: an actor for each rank, and a look at a node.

The small files of a job are kept alike in its supervisor's folder and in one of each node.

Ray passes arguments and results between processes; here these are text, bytes, numbers, and
lists and dictionaries of them.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from workers.launchers.base import Job, end_ranks
from workers.launchers.site import facts_here
from workers.launchers.task import RankTask
from workers.measuring.records import (
    TAIL_BYTES,
    default_probes_folder,
    log_path,
    make_folder,
    remove_folder,
    remove_leftovers,
)

# Of a file: when it was written last, in nanoseconds, and its size in bytes.
Stamp = tuple[int, int]

# Beginnings of names of files that ranks of a node share, and nobody else.
OF_ONE_NODE = ("rendezvous",)
# Ends of names of files that are still written; of logs the ends travel by themselves.
NOT_YET = (".partial", ".log")


def stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def changed_files(
    folder: Path, seen: dict[str, Stamp], wanted: Callable[[Path], bool]
) -> dict[str, bytes]:
    """Files that were written since the last call, by their paths in ``folder``."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(NOT_YET) or path.name.startswith(OF_ONE_NODE) or not wanted(path):
            continue
        name = str(path.relative_to(folder))
        try:
            if path.is_dir() or seen.get(name) == (now := stamp(path)):
                continue
            found[name] = path.read_bytes()
        except FileNotFoundError:  # removed meanwhile
            continue
        seen[name] = now
    return found


def write_files(folder: Path, files: Mapping[str, bytes], seen: dict[str, Stamp]) -> None:
    """Writes files, each at once or not at all."""
    for name, content in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} is not a path in the folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(content)
        seen[name] = stamp(partial)  # renaming keeps it
        partial.replace(path)


def moved(job: Job, folder: Path, program: str, here: str) -> Job:
    def of_there(part: str) -> str:
        return here if part == program else part.replace(str(job.directory), str(folder))

    return replace(job, argv=tuple(map(of_there, job.argv)), directory=folder)


def facts(ray_gpus: int) -> dict[str, Any]:
    """Looks at a node, where it is called; plain values."""
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
        self._made = self._is_alone = False
        self._rank = 0
        self._task: RankTask | None = None
        self._seen: dict[str, Stamp] = {}

    def place(self) -> dict[str, Any]:
        """The node's id and address, and the GPUs that it got from Ray."""
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
        self._folder, self._rank = Path(folder), rank
        self._is_alone = job["ranks"] == job["nodes"]
        here = moved(Job.from_dict(job), self._folder, program, sys.executable)
        self._task = RankTask(here, rank, address=address)
        self._task.start()

    def exchange(
        self, feed: bool, files: Mapping[str, bytes], again: bool = False
    ) -> dict[str, Any]:
        """Takes the supervisor's new files, and tell what is new here.

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
        end = self._task.poll()  # before the look at files: all are there then
        found = changed_files(self._folder, self._seen, self._is_ours)
        log, path = None, log_path(self._folder, self._rank)
        if self._seen.get(path.name) != (now := stamp(path)):
            self._seen[path.name] = now
            with path.open("rb") as file:
                file.seek(max(0, now[1] - TAIL_BYTES))
                log = file.read(TAIL_BYTES)
        return {"files": found, "log": log, "end": end and end.as_dict()}

    def stop(self) -> None:
        if self._task is not None:
            end_ranks([self._task])

    def close(self) -> None:
        if self._made:
            remove_folder(self._folder)

    def _is_ours(self, path: Path) -> bool:
        """True for a file that this actor passes on: where it has a node to itself, any."""
        if self._is_alone:
            return True
        if path.name.startswith("rank-"):
            return path.name.startswith(f"rank-{self._rank:05d}.")
        return self._made
