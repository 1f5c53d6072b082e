"""The folders and files of probes, and how they are written.

Each run of ranks has a folder of its own, and in it one for each probe that is ordered; it is
removed when its result is in the store.
"""

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tuner.errors import ProbeError
from workers.probe.orders import SPEC

RESULT = "result.json"
# About 40 lines: a traceback and what came before it.
TAIL_BYTES = 4000

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def default_probes_folder() -> Path:
    """The place of this user's probes' folders while they run.

    Each machine has its own: a home may be shared, and process numbers are a machine's.
    """
    from platformdirs import user_cache_path  # not needed when a folder is named

    return user_cache_path("tuner") / "probes" / socket.gethostname()


def probes_folder(parent: Path | None) -> Path:
    """The place of a worker's probes' folders: in ``parent``, each machine with its own."""
    return default_probes_folder() if parent is None else parent.absolute() / socket.gethostname()


def make_folder(parent: Path, name: str) -> Path:
    """A new folder that only this user can read; its name starts with this process's number.

    Raises:
        ProbeError: it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{name}-", dir=parent)).resolve()
    except OSError as error:
        raise ProbeError(f"cannot make a folder for a probe in {parent}: {error}") from error


def remove_folder(folder: Path) -> None:
    """Removes a probe's folder, as far as it can be."""
    shutil.rmtree(folder, ignore_errors=True)


def keep_folder(folder: Path) -> Path:
    """Renames a folder so that no worker removes it; its new path."""
    return folder.rename(folder.with_name(f"kept-{folder.name}"))


def remove_leftovers(parent: Path) -> None:
    """Removes the folders of processes that are no more."""
    for folder in parent.glob("*-*-*"):
        owner = folder.name.split("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove_folder(folder)


def record_path(directory: Path, rank: int) -> Path:
    """A rank's record."""
    return directory / f"rank-{rank:05d}.json"


def log_path(directory: Path, rank: int) -> Path:
    """A rank's output."""
    return directory / f"rank-{rank:05d}.log"


def end_path(directory: Path, rank: int) -> Path:
    """The end of a rank, told by whatever started it on its node."""
    return directory / f"rank-{rank:05d}.end.json"


def write_spec(directory: Path, spec: Mapping[str, Any]) -> Path:
    """Writes the spec that every rank reads."""
    return write_json(directory / SPEC, spec)


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    """Writes JSON at once or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(values, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def log_tail(path: Path, most: int = TAIL_BYTES) -> str:
    """The last ``most`` bytes of a log as text; empty when there is none.

    Bytes that are not UTF-8 are replaced; escape sequences and control characters are removed.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            raw = file.read(most)
    except FileNotFoundError:
        return ""
    text = raw.decode("utf-8", errors="replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar's states, too
    return _CONTROL.sub("", _ANSI.sub("", lines))
