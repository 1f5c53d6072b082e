"""A look at devices by fresh processes, after one of them was lost."""

import json
from collections.abc import Callable
from pathlib import Path

from workers.launchers.base import Ended, Job, Launcher, Run, Why
from workers.measuring.files import record_path

CHECK_DEADLINE_S = 120.0
"""For importing torch and one small product; a device that hangs is not one to go on with."""
POLL_S = 0.1
"""Between two looks."""


def why_unusable(launcher: Launcher, job: Job, pause: Callable[[float], str]) -> str | None:
    """Run the check of every rank's device.

    Args:
        launcher: starts it, as it would start a probe's ranks.
        job: of the check program.
        pause: waits for so many seconds; why the check must be given up.

    Returns:
        What is wrong with a device; empty if nothing is, and ``None`` if it was given up.

    Raises:
        OSError: a process could not be started.
        ProbeError: a process cannot be killed.
    """
    run = launcher.start(job)
    try:
        while (ended := run.poll()) is None:
            if pause(POLL_S):
                ended = run.cancel()
    except BaseException:
        run.cancel()
        raise
    return None if ended.why is Why.CANCELLED else _finding(ended, job, run)


def _finding(ended: Ended, job: Job, run: Run) -> str:
    """Of the first rank whose device does not compute."""
    for end in sorted(ended.ranks, key=lambda end: (end.stopped, end.rank)):
        if end.stopped:
            return f"rank {end.rank}'s does not answer within {job.deadline_s:.0f} s"
        if end.code != 0:
            what = _error(record_path(job.directory, end.rank)) or _last_words(run, end.rank)
            return f"rank {end.rank}'s: {what or f'exit code {end.code}'}"
    return ""


def _error(path: Path) -> str:
    """A record's error; empty where there is none."""
    try:
        error = json.loads(path.read_text(encoding="utf-8"))["error"]
        return " ".join(f"{error['type']}: {error['message']}".split())[:300]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _last_words(run: Run, rank: int) -> str:
    lines = run.logs().get(rank, "").strip().splitlines()
    return lines[-1][:300] if lines else ""
