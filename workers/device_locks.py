"""Whose turn it is on the devices of this machine."""

import fcntl
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from tuner.errors import ProbeError


def default_lock_path() -> Path:
    """Where this user's locks on this machine are; a device's name is added for each."""
    return Path(tempfile.gettempdir()) / f"tuner-{os.getuid()}.lock"


def in_order(names: Collection[str]) -> list[str]:
    """Devices in the order in which everybody takes them, so that no two wait for each other.

    GPUs come first: what holds one of them may go on to take the rest.
    """
    return sorted(names, key=lambda name: (not name.startswith("GPU-"), name))


class DeviceLocks:
    """The right to run ranks on some devices of this machine.

    Each device has a lock of the kernel's, which ends with the process that holds it. What was
    taken is kept while others are waited for. Who waits for a device holds another lock of it, by
    which its holder knows.
    """

    def __init__(self, path: Path | None, devices: Collection[str]) -> None:
        """A turn that is not taken yet.

        Args:
            path: of the locks, to which each device's name is added; ``None`` where the devices
                are nobody else's to want, so that it is always one's turn.
            devices: their names.
        """
        self.devices = tuple(in_order(devices))
        """Their names, in the order in which they are taken."""
        self._locks = [_Lock(_beside(path, name)) for name in self.devices if path is not None]

    @property
    def held(self) -> bool:
        """Whether all of the devices are had."""
        return all(lock.held for lock in self._locks)

    @property
    def wanted(self) -> bool:
        """Whether another waits for a device that is had here."""
        return any(lock.wanted for lock in self._locks if lock.held)

    def take(self) -> bool:
        """Take what is free, and wait for the rest; whether all is held now.

        Raises:
            ProbeError: a file cannot be used.
        """
        for index, lock in enumerate(self._locks):
            if not lock.take():
                for missing in self._locks[index:]:
                    missing.wait()
                return False
        return True

    def take_free(self) -> bool:
        """Take it if all is free, or nothing at all; nobody is told that it is wanted.

        Raises:
            ProbeError: a file cannot be used.
        """
        before = [lock.held for lock in self._locks]
        if all(lock.take() for lock in self._locks):
            return True
        for lock, was_held in zip(self._locks, before, strict=True):
            if not was_held:
                lock.give()
        return False

    def give(self) -> None:
        """Let others have it, and wait for it no more."""
        for lock in self._locks:
            lock.give()


def _beside(path: Path, device: str) -> Path:
    return path.with_name(f"{path.name}.{device.replace('/', '-')}")


class _Lock:
    """One device's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue = path.with_name(f"{path.name}.queue")
        self._held: int | None = None
        self._waiting: int | None = None

    @property
    def held(self) -> bool:
        return self._held is not None

    @property
    def wanted(self) -> bool:
        """Whether another waits for it; to be asked by its holder."""
        alone = _locked(self._queue, fcntl.LOCK_EX)
        if alone is not None:
            os.close(alone)
        return alone is None

    def take(self) -> bool:
        if self._held is None:
            self._held = _locked(self._path, fcntl.LOCK_EX)
        if self._held is not None:
            self._stop_waiting()
        return self._held is not None

    def wait(self) -> None:
        """Let its holder know that it is wanted."""
        if self._held is None and self._waiting is None:
            self._waiting = _locked(self._queue, fcntl.LOCK_SH)

    def give(self) -> None:
        self._stop_waiting()
        if self._held is not None:
            os.close(self._held)
            self._held = None

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
