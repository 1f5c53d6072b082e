"""The answer to one line, in a process of its own: a trace, or what its error says."""

from pathlib import Path
from traceback import walk_tb
from typing import Any

from torch._ops import OpOverload

from workers.probe.dry.progress import Progress
from workers.probe.dry.request import RefusedError, parse_request
from workers.probe.dry.run import DryRun
from workers.probe.group import join_fake_group
from workers.probe.tensor_parallel import UnsupportedByTensorParallel

# Errors by which code says that it does not know what to do with values: with the configuration and
# the model of a dry run, which are all that it is given.
OF_VALUES = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(NotImplementedError, AssertionError, ArithmeticError),
)
# Errors among them that our own code raises to refuse values. Another of them that it raises is a
# mistake of ours, and says nothing of the values.
DELIBERATE = (ValueError, NotImplementedError)
# The folder of the probe program.
OURS = Path(__file__).parents[1]
# Errors that say nothing of the values, wherever they are raised.
OF_THE_MACHINE = (OSError, MemoryError)
# Files that run operators, the probe's tracker and DTensor's dispatcher, and their name for the
# operator.
_DISPATCHERS = {"tracker.py": "func", "_dispatch.py": "op_call"}


def answer(line: str, progress: Progress) -> dict[str, Any]:
    """Answer one line; this process becomes rank 0 of a fake process group.

    Args:
        line: a request.
        progress: told each operator of the dry run.

    Returns:
        ``trace``, or ``error`` with ``type``, ``message``, ``rule``, ``operator``, ``phase`` and
        ``limit_s``, which are empty where they do not apply. An error with a rule or an
        operator refuses this request for good; one with neither is an accident.
    """
    try:
        request = parse_request(line)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        rule = error.rule if isinstance(error, RefusedError) else "spec"
        return error_values(type(error).__name__, str(error), rule=rule)
    run = DryRun(request, progress)
    try:
        join_fake_group(request.spec.world_size)
        return {"trace": run.run()}
    except Exception as error:  # noqa: BLE001  (any error becomes the answer)
        rule, operator = blame(error)
        return error_values(
            type(error).__name__,
            str(error)[:2000],
            rule=rule,
            operator=operator,
            phase=run.phase.name,
        )


def blame(error: Exception) -> tuple[str, str]:
    """The rule and the operator that refused the request; empty where an error is an accident."""
    if isinstance(error, OF_THE_MACHINE):
        return "", ""
    if isinstance(error, OF_VALUES) and not isinstance(error, DELIBERATE):
        *_, (frame, _) = walk_tb(error.__traceback__)
        if OURS in Path(frame.f_code.co_filename).parents:
            return "", ""  # a mistake of the probe program itself, by where it was raised
    if isinstance(error, UnsupportedByTensorParallel):
        return "tensor_parallel_plan", operator_of(error)
    return "stack" if isinstance(error, OF_VALUES) else "", operator_of(error)


def operator_of(error: BaseException | None) -> str:
    """Name of the operator whose call raised ``error``; empty if none did.

    The innermost counts, and what was raised first if one error led to another.
    """
    # read from the traceback, so that running operators costs nothing
    while error is not None:
        for frame, _ in reversed(list(walk_tb(error.__traceback__))):
            name = _DISPATCHERS.get(frame.f_code.co_filename.rsplit("/", 1)[-1])
            operator = frame.f_locals.get(name) if name else None
            if isinstance(operator, OpOverload):
                return str(operator)
        error = error.__cause__ or error.__context__
    return ""


def error_values(
    kind: str,
    message: str,
    *,
    rule: str = "",
    operator: str = "",
    phase: str = "",
    limit_s: float = 0.0,
) -> dict[str, Any]:
    values = {"type": kind, "message": message, "rule": rule}
    return {"error": {**values, "operator": operator, "phase": phase, "limit_s": limit_s}}
