"""Folders of probes: one each, made for it and removed when its result is in the store."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import psutil

from tuner.errors import ProbeError


def default_probes_folder() -> Path:
    """Where this user's probes have their folders while they run.

    Each machine has its own: a home may be shared, and process numbers are a machine's.
    """
    from platformdirs import user_cache_path  # not needed when a folder is named

    return user_cache_path("tuner") / "probes" / socket.gethostname()


def probes_folder(parent: Path | None) -> Path:
    """Where a worker's probes have their folders: in ``parent``, each machine with its own."""
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
    """Remove a probe's folder, as far as it can be."""
    shutil.rmtree(folder, ignore_errors=True)


def keep_folder(folder: Path) -> Path:
    """Rename a folder so that no worker removes it; its new path."""
    return folder.rename(folder.with_name(f"kept-{folder.name}"))


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of processes that are no more."""
    for folder in parent.glob("*-*-*"):
        owner = folder.name.split("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove_folder(folder)
