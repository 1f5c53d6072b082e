"""The answer to one line, in a process of its own."""

from typing import Any

from workers.probe.dry.operators import operator_of
from workers.probe.dry.request import Request, parse_request
from workers.probe.dry.rules import RefusedError
from workers.probe.dry.run import DryRun
from workers.probe.group import join_fake_group
from workers.probe.tensor_parallel import UnsupportedByTensorParallel


def answer(line: str) -> dict[str, Any]:
    """Answer one line; this process becomes rank 0 of a fake process group.

    Returns:
        ``trace``, or ``error`` with ``type``, ``message``, ``rule``, ``operator`` and
        ``phase``, which are empty where they do not apply.
    """
    try:
        _, request = parse_request(line)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        rule = error.rule if isinstance(error, RefusedError) else "spec"
        return error_values(type(error).__name__, str(error), rule=rule)
    return _dry_run(request)


def _dry_run(request: Request) -> dict[str, Any]:
    run = DryRun(request)
    try:
        join_fake_group(request.spec.world_size)
        return {"trace": run.run()}
    except Exception as error:  # noqa: BLE001  (whatever it is becomes the answer)
        unsupported = isinstance(error, UnsupportedByTensorParallel)
        return error_values(
            type(error).__name__,
            str(error)[:2000],
            rule="tensor_parallel_plan" if unsupported else "",
            operator=operator_of(error),
            phase=run.phase.name,
        )


def error_values(
    kind: str, message: str, *, rule: str = "", operator: str = "", phase: str = ""
) -> dict[str, Any]:
    """An error as JSON's values."""
    values = {"type": kind, "message": message, "rule": rule}
    return {"error": {**values, "operator": operator, "phase": phase}}
