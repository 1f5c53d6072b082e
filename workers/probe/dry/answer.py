"""The answer to one line, in a process of its own."""

from pathlib import Path
from traceback import walk_tb
from typing import Any

from workers.probe.dry.operators import operator_of
from workers.probe.dry.progress import Progress
from workers.probe.dry.request import Request, parse_request
from workers.probe.dry.rules import RefusedError
from workers.probe.dry.run import DryRun
from workers.probe.group import join_fake_group
from workers.probe.tensor_parallel import UnsupportedByTensorParallel

OF_VALUES = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(NotImplementedError, AssertionError, ArithmeticError),
)
"""Errors by which code says that it does not know what to do with values: with the settings and
the model of a dry run, which are all that it is given."""
DELIBERATE = (ValueError, NotImplementedError)
"""Of these, what our own code raises to refuse values. Another of them that it raises is a mistake
of ours, and says nothing of the values."""
OURS = Path(__file__).parents[1]
"""The folder of the probe program."""
OF_THE_MACHINE = (OSError, MemoryError)
"""Errors that say nothing of the values, wherever they are raised."""


def answer(line: str, progress: Progress) -> dict[str, Any]:
    """Answer one line; this process becomes rank 0 of a fake process group.

    Args:
        line: a request.
        progress: told what the dry run is at.

    Returns:
        ``trace``, or ``error`` with ``type``, ``message``, ``rule``, ``operator``, ``phase`` and
        ``limit_s``, which are empty where they do not apply. An error with a rule or an
        operator refuses this request for good; one with neither is an accident.
    """
    try:
        _, request = parse_request(line)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        rule = error.rule if isinstance(error, RefusedError) else "spec"
        return error_values(type(error).__name__, str(error), rule=rule)
    return _dry_run(request, progress)


def _dry_run(request: Request, progress: Progress) -> dict[str, Any]:
    run = DryRun(request, progress)
    try:
        join_fake_group(request.spec.world_size)
        return {"trace": run.run()}
    except Exception as error:  # noqa: BLE001  (whatever it is becomes the answer)
        accident = isinstance(error, OF_THE_MACHINE) or _is_ours(error)
        return error_values(
            type(error).__name__,
            str(error)[:2000],
            rule="" if accident else _rule(error),
            operator="" if accident else operator_of(error),
            phase=run.phase.name,
        )


def _rule(error: Exception) -> str:
    """Which rule the stack's own error is by."""
    if isinstance(error, UnsupportedByTensorParallel):
        return "tensor_parallel_plan"
    return "stack" if isinstance(error, OF_VALUES) else ""


def _is_ours(error: Exception) -> bool:
    """Whether it is a mistake of the probe program itself, by where it was raised."""
    if isinstance(error, DELIBERATE) or not isinstance(error, OF_VALUES):
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    return OURS in Path(frame.f_code.co_filename).parents


def error_values(
    kind: str,
    message: str,
    *,
    rule: str = "",
    operator: str = "",
    phase: str = "",
    limit_s: float = 0.0,
) -> dict[str, Any]:
    """An error as JSON's values."""
    values = {"type": kind, "message": message, "rule": rule}
    return {"error": {**values, "operator": operator, "phase": phase, "limit_s": limit_s}}
