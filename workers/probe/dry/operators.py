"""Which operator raised an error."""

from traceback import walk_tb
from types import FrameType

from torch._ops import OpOverload

_DISPATCHERS = {"tracker.py": "func", "_dispatch.py": "op_call"}
"""Files that run operators, the probe's tracker and DTensor's dispatcher, and what they call
the operator."""


def operator_of(error: BaseException | None) -> str:
    """Name of the operator whose call raised ``error``; empty if none did.

    The innermost counts, and what was raised first if one error led to another. It is read
    from the traceback, so running operators costs nothing.
    """
    while error is not None:
        operators = [_operator(frame) for frame, _ in walk_tb(error.__traceback__)]
        found = next((name for name in reversed(operators) if name), "")
        if found:
            return found
        error = error.__cause__ or error.__context__
    return ""


def _operator(frame: FrameType) -> str:
    name = _DISPATCHERS.get(frame.f_code.co_filename.rsplit("/", 1)[-1])
    operator = frame.f_locals.get(name) if name else None
    return str(operator) if isinstance(operator, OpOverload) else ""
