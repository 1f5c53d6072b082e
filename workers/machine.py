"""This machine: whether it is what a study asks about, and whose turn it is on it."""

import fcntl
import os
import tempfile
from pathlib import Path

from tuner.cluster import Cluster, Device, local_cluster
from tuner.errors import ProbeError, UsageError
from tuner.framework import Framework, installed_versions
from tuner.here import is_here, stands_in, why_not_emulated
from tuner.measurement import Fidelity
from tuner.study import Question


def check_machine(question: Question, fidelity: Fidelity = Fidelity.MEASURED) -> bool:
    """Refuse what cannot be measured, or emulated, here.

    Returns:
        Whether the device here is of another kind than the cluster's, which it is large enough for.

    Raises:
        ProbeError: this machine is not the cluster, or has no device that can play one of its, or
            has other versions than were stated.
    """
    _check_versions(question.framework)
    if fidelity is Fidelity.EMULATED:
        return _check_one(question.cluster)
    if question.cluster.gpu.device is Device.CUDA:
        _check_gpus(question.cluster)
    return False


def check_cluster(cluster: Cluster) -> None:
    """Refuse a cluster that this machine is not.

    Raises:
        ProbeError: so it is.
    """
    if cluster.gpu.device is Device.CUDA:
        _check_gpus(cluster)
    elif not is_here(cluster):
        raise ProbeError(f"{cluster.name} is asked about; this machine has less memory")


def _check_one(cluster: Cluster) -> bool:
    try:
        why, other_kind = why_not_emulated(cluster), stands_in(cluster)
    except UsageError as error:
        raise ProbeError(f"{cluster.name} is asked about; {error}") from error
    if why:
        raise ProbeError(why)
    return other_kind


def _check_versions(framework: Framework) -> None:
    here = installed_versions()
    for package, version in framework.versions.items():
        if here.get(package) != version:
            raise ProbeError(
                f"the question states {package} {version}; a probe here would measure"
                f" {here.get(package, 'no version')}"
            )


def _check_gpus(cluster: Cluster) -> None:
    if cluster.nodes > 1:
        raise ProbeError(f"{cluster.name} is {cluster.nodes} nodes; this machine is one")
    try:
        here = local_cluster()
    except UsageError as error:
        raise ProbeError(f"{cluster.name} is asked about; {error}") from error
    if here.gpu.device is not Device.CUDA:
        raise ProbeError(f"{cluster.name} is asked about; nvidia-smi shows no GPU here")
    if here.gpu.name != cluster.gpu.name or here.gpus_per_node < cluster.world_size:
        raise ProbeError(f"{cluster.name} is asked about; this machine is {here.name}")


def default_lock_path() -> Path:
    """The file whose lock is this user's turn on this machine."""
    return Path(tempfile.gettempdir()) / f"tuner-{os.getuid()}.lock"


class Turn:
    """The right to run ranks on this machine: probes at the same time spoil each other's time.

    It is a lock of the kernel's, so it ends with the process that holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> bool:
        """Take it if it is free; whether it is held now.

        Raises:
            ProbeError: the file cannot be used.
        """
        if self._fd is not None:
            return True
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ProbeError(f"cannot lock {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def give(self) -> None:
        """Let others have it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
