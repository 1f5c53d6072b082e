"""This machine: whether it is what a study asks about, and whose turn it is on it."""

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tuner.cluster import Cluster
from tuner.errors import ProbeError, UsageError
from tuner.framework import not_installed
from tuner.here import stands_in, why_not_emulated, why_not_measured
from tuner.measurement import Fidelity
from tuner.study import Question

T = TypeVar("T")


def check_machine(question: Question, fidelity: Fidelity = Fidelity.MEASURED) -> bool:
    """Refuse what cannot be measured, or emulated, here.

    Returns:
        Whether the device here is of another kind than the cluster's, which it is large enough for.

    Raises:
        ProbeError: this machine is not the cluster, or has no device that can play one of its, or
            has other versions than were stated.
    """
    for package, version, found in not_installed(question.framework):
        raise ProbeError(
            f"the question states {package} {version}; a probe here would measure"
            f" {found or 'no version'}"
        )
    cluster = question.cluster
    if fidelity is not Fidelity.EMULATED:
        check_cluster(cluster)
        return False
    _refuse(cluster, _seen(cluster, why_not_emulated))
    return _seen(cluster, stands_in)


def check_cluster(cluster: Cluster) -> None:
    """Refuse a cluster that this machine is not.

    Raises:
        ProbeError: so it is.
    """
    _refuse(cluster, _seen(cluster, why_not_measured))


def _seen(cluster: Cluster, look: Callable[[Cluster], T]) -> T:
    """What a look at this machine says of a cluster."""
    try:
        return look(cluster)
    except UsageError as error:
        raise ProbeError(f"{cluster.name} is asked about; {error}") from error


def _refuse(cluster: Cluster, why: str) -> None:
    if why:
        raise ProbeError(f"{cluster.name} is asked about; {why}")


def default_lock_path() -> Path:
    """The file whose lock is this user's turn on this machine."""
    return Path(tempfile.gettempdir()) / f"tuner-{os.getuid()}.lock"


class Turn:
    """The right to run ranks on this machine: probes at the same time spoil each other's time.

    It is a lock of the kernel's, so it ends with the process that holds it. Who waits for it
    holds another, by which the holder knows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue = path.with_name(path.name + ".queue")
        self._held: int | None = None
        self._waiting: int | None = None

    def take(self) -> bool:
        """Take it if it is free, and wait for it if not; whether it is held now.

        Raises:
            ProbeError: the file cannot be used.
        """
        if self._held is None:
            self._held = _locked(self._path, fcntl.LOCK_EX)
        if self._held is None and self._waiting is None:
            self._waiting = _locked(self._queue, fcntl.LOCK_SH)
        elif self._held is not None:
            self._stop_waiting()
        return self._held is not None

    def give(self) -> None:
        """Let others have it, and wait for it no more."""
        self._stop_waiting()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    @property
    def wanted(self) -> bool:
        """Whether another waits for it; to be asked by its holder."""
        alone = _locked(self._queue, fcntl.LOCK_EX)
        if alone is not None:
            os.close(alone)
        return alone is None

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            os.close(self._waiting)
            self._waiting = None


def _locked(path: Path, how: int) -> int | None:
    """A file whose lock is had; ``None`` if others have it.

    Raises:
        ProbeError: the file cannot be used.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ProbeError(f"cannot lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
