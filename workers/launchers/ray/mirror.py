"""The small files of a job, kept alike in its supervisor's folder and in one of each node."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from workers.launchers.base import Job

Stamp = tuple[int, int]
"""Of a file: when it was written last, in nanoseconds, and its size in bytes."""

OF_ONE_NODE = ("rendezvous",)
"""Beginnings of names of files that ranks of a node share, and nobody else."""
NOT_YET = (".partial", ".log")
"""Ends of names of files that are still written; of logs the ends travel by themselves."""


def stamp(path: Path) -> Stamp:
    """Tells whether a file was written since."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def changed_files(
    folder: Path, seen: dict[str, Stamp], wanted: Callable[[Path], bool]
) -> dict[str, bytes]:
    """Files that were written since the last call, by their paths in ``folder``.

    Args:
        folder: it, and all that is below.
        seen: what was told before, which is brought up to date.
        wanted: whether a file travels at all.
    """
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
    """Write files, each at once or not at all.

    Args:
        folder: below which they belong.
        files: by their paths in it.
        seen: as of :func:`changed_files`, which does not tell them.

    Raises:
        ValueError: a path leads out of the folder.
    """
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
    """A job as it is run on another machine.

    Args:
        job: as its supervisor has it.
        folder: there, in the place of the job's directory.
        program: the supervisor's Python.
        here: the one that takes its place there.
    """

    def of_there(part: str) -> str:
        return here if part == program else part.replace(str(job.directory), str(folder))

    return replace(job, argv=tuple(map(of_there, job.argv)), directory=folder)
