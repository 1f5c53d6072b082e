"""A probe of the user's own script: launched as the user would, with settings, for some steps."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tuner.cluster import Device
from tuner.errors import ProbeError
from tuner.export import why_not
from tuner.export.accelerate import configuration
from tuner.integrations.plan import PLAN, PROBE, seen_path
from tuner.measurement import Measurement, Outcome
from tuner.script.command import CONFIGURATION, Command, command_of
from tuner.script.script import RESERVED, Launch
from tuner.settings import Settings
from tuner.study import Question
from workers.launchers.base import WATCH_FD, Ended, Job, Launcher, RankEnd, Run, Why
from workers.launchers.supervised import SILENCE_S
from workers.measuring.files import record_path, write_json
from workers.measuring.folders import make_folder, remove_folder
from workers.measuring.merge import merge
from workers.measuring.records import BadRecord, RankRecord, read_records
from workers.measuring.spec import MEASURED_STEPS, MINIMUM_STEPS, TIME_BUDGET_S, WARMUP_STEPS
from workers.scripts.check import check_sequences
from workers.scripts.host import write_order
from workers.scripts.processes import end_all

POLL_S = 0.05
"""Between two looks at a probe."""
PEER_GRACE_S = 5.0
"""Seconds that the other ranks get for their own records when one has failed."""
END_S = 2.0
"""Seconds that a launcher gets to end by itself when all its ranks are done."""
TERM_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL: the host ends the launcher, and looks for what is left."""
HOW_TO_REPORT = (
    "add `from tuner.integrations import report_step` to it, and call `report_step(loss=loss)` once"
    " after each optimizer step, on every rank (with transformers' Trainer:"
    " `from tuner.integrations.trainer import TunerCallback` and `callbacks=[TunerCallback()]`)"
)

LAUNCHERS_WORDS = re.compile(
    r"^(?:[EW]\d{4} \d\d:\d\d:.* torch/distributed/"
    r'|Traceback \(most recent call last\):\n +File "<frozen runpy>")',
    re.MULTILINE,
)
"""How torchrun and accelerate begin to tell of ranks that have failed, when these have said why."""
SAID_CHARACTERS = 180
"""Of a script's last words: a command shows the end of a message, which is to begin with more."""

Records = Sequence[RankRecord | BadRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """How a script's probes are run."""

    launcher: Launcher
    """Starts their hosts, on this machine."""
    folder: Path
    """For the folders of probes."""
    visible: tuple[str, ...]
    """GPUs that ranks see; empty for all."""
    deadline_s: float
    """Seconds for one probe."""
    argv: Callable[[Command, Path], tuple[str, ...]] = Command.as_run
    """The launcher's command, as of :meth:`tuner.script.command.Command.as_run`."""
    peer_grace_s: float = PEER_GRACE_S
    """Seconds that the other ranks get for their own records when one has failed."""

    def measure(
        self, question: Question, settings: Settings, pause: Callable[[float], str]
    ) -> Measurement:
        """Run the question's script with settings.

        Args:
            question: one with a script.
            settings: what the script is told.
            pause: as of :meth:`workers.measuring.warm.WarmRanks.measure`.

        Raises:
            ProbeError: the script was edited or never reports a step, there is no place for the
                probe's files, or a process cannot be killed.
        """
        script = question.script
        assert script is not None
        if script.why_other:
            raise ProbeError(script.why_other)
        if script.launch is Launch.ACCELERATE and (
            why := why_not("accelerate", question, settings)
        ):
            return Measurement(outcome=Outcome.INVALID, detail=why)
        folder = make_folder(self.folder, "script")
        try:
            return self._measured(question, settings, folder, pause)
        finally:
            end_all(folder)
            remove_folder(folder)

    def _measured(
        self, question: Question, settings: Settings, folder: Path, pause: Callable[[float], str]
    ) -> Measurement:
        self._write(question, settings, folder)
        ranks = question.cluster.world_size
        try:
            run = self.launcher.start(self._job(question, folder))
        except OSError as error:
            detail = f"the script could not be started: {error}"
            return Measurement(outcome=Outcome.CRASHED, detail=detail)
        ended = self._supervise(run, folder, ranks, pause)
        records = read_records(folder, ranks)
        if ended.why is not Why.CANCELLED and not _was_seen(folder, ranks, records):
            raise ProbeError(_why_silent(question, ended, run.logs(), self.deadline_s))
        ends = replace(ended, ranks=tuple(_ends(ended, records)))
        found = merge(ends, records, run.logs(), deadline_s=self.deadline_s)
        found = replace(found, device_s=found.wall_s * ranks)
        return check_sequences(settings, records, found)

    def _write(self, question: Question, settings: Settings, folder: Path) -> None:
        """Write what the ranks, their launcher and its host read."""
        command, script = _write_files(question, settings, folder), question.script
        assert script is not None
        environment = _environment(question, command.environment, self.visible, folder)
        write_order(folder, self.argv(command, folder / "launcher"), environment, script.folder)

    def _job(self, question: Question, folder: Path) -> Job:
        host = (sys.executable, "-P", "-m", "workers.scripts.host", "--out", str(folder))
        return Job(
            argv=(*host, "--watch-fd", WATCH_FD, "--silence-s", f"{SILENCE_S:g}"),
            directory=folder,
            ranks=1,
            device=str(question.cluster.gpu.device),
            deadline_s=self.deadline_s,
            visible=self.visible,
            term_grace_s=TERM_GRACE_S,
        )

    def _supervise(
        self, run: Run, folder: Path, ranks: int, pause: Callable[[float], str]
    ) -> Ended:
        """Wait for the end, which comes soon after all ranks' records, or one that is not well."""
        until = float("inf")
        while (ended := run.poll()) is None:
            if until == float("inf"):
                until = time.monotonic() + self._left_s(folder, ranks)
            if pause(POLL_S):
                return run.cancel()
            if time.monotonic() > until:
                return replace(run.cancel(), why=Why.PEER_FAILED)
        return ended

    def _left_s(self, folder: Path, ranks: int) -> float:
        """Seconds that the launcher may go on, from what its ranks have written."""
        there = [rank for rank in range(ranks) if record_path(folder, rank).exists()]
        if len(there) == ranks:
            return END_S
        records = (one for one in read_records(folder, ranks) if isinstance(one, RankRecord))
        failed = any(one.outcome is not Outcome.OK for one in records)
        return self.peer_grace_s if failed else float("inf")


def _ends(ended: Ended, records: Records) -> list[RankEnd]:
    """How each rank ended, as far as records and the end of their launcher tell it.

    A rank with a record was done. One without was stopped, unless the launcher failed by itself and
    no rank knows why: then it has failed as the launcher says.
    """
    (host,) = ended.ranks
    by_itself = ended.why is Why.ENDED and not host.stopped
    told = any(isinstance(one, RankRecord) and one.outcome is not Outcome.OK for one in records)
    code = -signal.SIGKILL if ended.host_oom_kills else host.code
    return [
        replace(host, rank=rank, code=0, stopped=False)
        if isinstance(one, RankRecord)
        else replace(host, rank=rank, code=code, stopped=told or not by_itself)
        for rank, one in enumerate(records)
    ]


def _was_seen(folder: Path, ranks: int, records: Records) -> bool:
    """Whether some rank's script knows of the probe."""
    there = any(seen_path(folder, rank).exists() for rank in range(ranks))
    return there or any(isinstance(one, RankRecord) for one in records)


def _why_silent(
    question: Question, ended: Ended, logs: Mapping[int, str], deadline_s: float
) -> str:
    """Why a script that knows nothing of probes cannot be probed."""
    assert question.script is not None
    path, (host,) = question.script.path, ended.ranks
    if ended.why is not Why.DEADLINE and host.code:
        said = _own_words(logs.get(0, ""))
        return (
            f"{path} ended with exit code {host.code} before it imported tuner.integrations:"
            f" ...{said}"
        )
    when = f"in {deadline_s:.0f} s" if ended.why is Why.DEADLINE else "before its end"
    return f"{path} reported no step {when}: {HOW_TO_REPORT}"


def _own_words(log: str) -> str:
    """The script's last words, without those of its launcher; the launcher's where it had none."""
    own = LAUNCHERS_WORDS.split(log, maxsplit=1)[0]
    return " ".join((own if own.strip() else log).split())[-SAID_CHARACTERS:]


def _write_files(question: Question, settings: Settings, folder: Path) -> Command:
    """Write what the ranks are told, and what their launcher reads."""
    plan = {
        "accumulation": settings.gradient_accumulation_steps,
        "warmup_steps": WARMUP_STEPS,
        "measured_steps": MEASURED_STEPS,
        "minimum_steps": MINIMUM_STEPS,
        "time_budget_s": TIME_BUDGET_S,
    }
    write_json(folder / PLAN, plan)
    script = question.script
    assert script is not None
    template = str(_template_path(folder, script.template.name)) if script.template else ""
    command = command_of(
        question, settings, template=template, configuration=str(folder / CONFIGURATION)
    )
    if template:
        Path(template).write_text(command.template, encoding="utf-8")
    if script.launch is Launch.ACCELERATE:
        values = {**configuration(question, settings), "main_process_port": 0}
        text = yaml.safe_dump(values, sort_keys=False)
        (folder / CONFIGURATION).write_text(text, encoding="utf-8")
    return command


def _template_path(folder: Path, name: str) -> Path:
    """Of the rendered configuration file, which has its own name and so its own folder."""
    within = folder / "template"
    within.mkdir()
    return within / name


def _environment(
    question: Question, own: Mapping[str, str], visible: Sequence[str], folder: Path
) -> dict[str, str]:
    """The user's environment, without what is tuner's or another launcher's, and the probe's."""
    kept: dict[str, Any] = {
        name: value
        for name, value in os.environ.items()
        if not RESERVED.fullmatch(name) or name == "CUDA_VISIBLE_DEVICES"
    }
    if question.cluster.gpu.device is Device.CPU:
        kept.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name may not resolve
    if visible:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
    return {**kept, "PYTHONUNBUFFERED": "1", **own, PROBE: str(folder)}
