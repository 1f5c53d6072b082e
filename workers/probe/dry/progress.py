"""The phase and operator of a dry run, for the process that forked it to read at any time."""

import mmap

_PHASE, _OPERATOR = slice(0, 32), slice(32, 160)


class Progress:
    """The phase and the operator that a dry run is at, in memory that its forks share.

    It is written at each operator, so that also a call that never returns is known by name.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _OPERATOR.stop)

    def enter(self, phase: str) -> None:
        self._shared[:] = _packed(phase, _PHASE) + packed_operator("")

    def run(self, operator: bytes) -> None:
        """An operator is called, its name as from :func:`packed_operator`."""
        self._shared[_OPERATOR] = operator

    @property
    def phase(self) -> str:
        return self._shared[_PHASE].rstrip(b"\0").decode("utf-8", "replace")

    @property
    def operator(self) -> str:
        return self._shared[_OPERATOR].rstrip(b"\0").decode("utf-8", "replace")


def packed_operator(name: str) -> bytes:
    """An operator's name as it is written down: made once, so that writing it is cheap."""
    return _packed(name, _OPERATOR)


def _packed(text: str, place: slice) -> bytes:
    width: int = place.stop - place.start
    return text.encode()[:width].ljust(width, b"\0")
