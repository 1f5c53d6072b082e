"""What a dry run is at, where the process that forked it can read it whatever becomes of it."""

import mmap

_PHASE, _OPERATOR = slice(0, 32), slice(32, 160)


class Progress:
    """The phase and the operator that a dry run is at, in memory that its forks share.

    It is written at each operator, so that also a call that never returns is known by name.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _OPERATOR.stop)

    def enter(self, phase: str) -> None:
        """A phase begins; no operator of it has run."""
        self._shared[:] = _packed(phase, _PHASE) + _packed("", _OPERATOR)

    def run(self, operator: bytes) -> None:
        """An operator is called, its name as from :func:`packed_operator`."""
        self._shared[_OPERATOR] = operator

    @property
    def phase(self) -> str:
        """The phase that was entered last; empty before the first."""
        return _unpacked(self._shared[_PHASE])

    @property
    def operator(self) -> str:
        """The operator that was called last in this phase; empty if none was."""
        return _unpacked(self._shared[_OPERATOR])


def packed_operator(name: str) -> bytes:
    """An operator's name as it is written down: made once, so that writing it is cheap."""
    return _packed(name, _OPERATOR)


def _packed(text: str, place: slice) -> bytes:
    """Text in as many bytes as a place has."""
    width: int = place.stop - place.start
    return text.encode()[:width].ljust(width, b"\0")


def _unpacked(found: bytes) -> str:
    return found.rstrip(b"\0").decode("utf-8", "replace")
