"""A probe of the user's own script: launched as the user would, with settings, for some steps."""

import json
import math
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

from tuner.client.rehearse import LONGEST_S, order_of
from tuner.core.configuration import Settings
from tuner.core.measurement import RAN, Fidelity, Measurement, Memory, Outcome, OutOfMemory
from tuner.core.script import CONFIGURATION, RESERVED, Command, Launch, command_of
from tuner.core.study import Question, Study
from tuner.environment import without_secrets
from tuner.errors import ProbeError
from tuner.integrations import DONE, PLAN, seen_path
from tuner.launchfiles import why_not
from tuner.launchfiles.accelerate import configuration
from workers.launchers.base import SILENCE_S, WATCH_FD, Ended, Job, Launcher, RankEnd, Run, Why
from workers.measuring.measure import MEASURED_STEPS, MINIMUM_STEPS, TIME_BUDGET_S, WARMUP_STEPS
from workers.measuring.merge import LONGEST_DETAIL, merge
from workers.measuring.records import (
    RankRecord,
    Record,
    make_folder,
    read_records,
    remove_folder,
    write_json,
)
from workers.scripts.host import NOT_HERE, end_all, write_orders

# Between two looks at a probe.
POLL_S = 0.05
# Seconds that the other ranks get for their own records when one has failed.
PEER_GRACE_S = 5.0
# Seconds that a launcher gets to end by itself when all its ranks are done.
END_S = 2.0
# Seconds from SIGTERM to SIGKILL: the host ends the launcher, and looks for what is left.
TERM_GRACE_S = 5.0
# Optimizer steps of a rehearsal: the first makes the optimizer's state, the second is as others.
REHEARSED_STEPS = 2
# Seconds that a rehearsal may take beside the deadline of its rank: to start, and to write.
BESIDE_S = 120.0
HOW_TO_REPORT = (
    "add `from tuner.integrations import report_step` to it, and call `report_step(loss=loss)` once"
    " after each optimizer step, on every rank (with transformers' Trainer:"
    " `from tuner.integrations.trainer import TunerCallback` and `callbacks=[TunerCallback()]`)"
)

# How torchrun and accelerate begin to tell of ranks that have failed, when these have said why.
LAUNCHERS_WORDS = re.compile(
    r"^(?:[EW]\d{4} \d\d:\d\d:.* torch/distributed/"
    r'|Traceback \(most recent call last\):\n +File "<frozen runpy>")',
    re.MULTILINE,
)
# Ends that say nothing of the script.
FROM_OUTSIDE = (Why.CANCELLED, Why.NODE_LOST, Why.TAKEN_AWAY)
# Of a script's last words: a command shows the end of a message, which is to begin with more.
SAID_CHARACTERS = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    launcher: Launcher  # starts their hosts, one for each node
    folder: Path
    visible: tuple[str, ...]  # GPUs that ranks see; empty for all of their node
    deadline_s: float
    nodes: int = 1
    """Machines that the cluster's nodes are: as many, or one for all, on CPUs."""
    as_run: Callable[[Command, Path], tuple[str, ...]] = Command.as_run
    """Python's arguments in the place of the launcher, as of that method."""
    peer_grace_s: float = PEER_GRACE_S
    """Seconds that the other ranks get for their own records when one has failed."""

    def measure(
        self, question: Question, settings: Settings, pause: Callable[[float], str]
    ) -> Measurement:
        """Runs the question's script with settings. Raises ProbeError: the script was edited or
        never reports a step, there is no place for the probe's files, or a process cannot be
        killed."""
        script = question.script
        assert script is not None
        if why := _why_invalid(question, settings):
            return Measurement(outcome=Outcome.INVALID, detail=why)
        folder = make_folder(self.folder, "script")
        cluster, ranks = question.cluster, question.cluster.world_size
        try:
            self._write_order(question, settings, folder)
            host = (sys.executable, "-P", "-m", "workers.scripts.host", "--out", str(folder))
            job = Job(
                argv=(*host, "--watch-fd", WATCH_FD, "--silence-s", f"{SILENCE_S:g}"),
                directory=folder,
                ranks=cluster.nodes,
                nodes=self.nodes,
                gpus_per_rank=cluster.gpus_per_node,
                device=str(cluster.gpu.device),
                deadline_s=self.deadline_s,
                visible=self.visible,
                peer_grace_s=self.peer_grace_s,
                term_grace_s=TERM_GRACE_S,
            )
            try:
                run = self.launcher.start(job)
            except OSError as error:
                detail = f"the script could not be started: {error}"
                return Measurement(outcome=Outcome.CRASHED, detail=detail)
            ended = self._supervise(run, folder, ranks, pause)
            records = read_records(folder, ranks)
            known = [
                isinstance(one, RankRecord) or seen_path(folder, rank).exists()
                for rank, one in enumerate(records)
            ]
            on_node, logs = cluster.gpus_per_node, run.logs()
            if ended.why not in FROM_OUTSIDE and (node := _silent_node(ended, known)) is not None:
                why = _why_silent(script.path, ended, node, logs.get(node, ""), self.deadline_s)
                raise ProbeError(why)
            ends = replace(ended, ranks=tuple(_ends(ended, records)))
            tails = {node * on_node: text for node, text in logs.items()}
            found = merge(ends, records, tails, deadline_s=self.deadline_s)
            return check_sequences(settings, records, replace(found, device_s=found.wall_s * ranks))
        finally:
            end_all(folder)
            remove_folder(folder)

    def rehearse(
        self, question: Question, settings: Settings, pause: Callable[[float], str]
    ) -> Measurement:
        """Runs rank 0 of the question's script alone, over torch's CUDA allocator on no GPU. Raises
        ProbeError: the script was edited or cannot be rehearsed, there is no place for the probe's
        files, or a process cannot be killed."""
        script = question.script
        assert script is not None
        if why := _why_invalid(question, settings):
            return Measurement(outcome=Outcome.INVALID, detail=why)
        folder = make_folder(self.folder, "script")
        asked, out = folder / "order.json", folder / "out.json"
        try:
            command = self._write_files(question, settings, folder)
            may = {"network": False, "writes": False, "even_here": True, "snapshot": ""}
            alone = {"NUMBER": "0", "HOST": "127.0.0.1"}  # of several nodes, this is the first
            words = [*(alone.get(word, word) for word in command.launcher), *command.script]
            seconds = min(max(self.deadline_s, 1.0), LONGEST_S)
            order = order_of(words, question.cluster, (0,), steps=REHEARSED_STEPS, seconds=seconds)
            order |= {**may, "where": script.folder, "environment": dict(command.environment)}
            write_json(asked, order)
            program = (sys.executable, "-P", "-m", "workers.rehearsal", "--order", str(asked))
            job = Job(
                argv=(*program, "--out", str(out), "--watch-fd", WATCH_FD),
                directory=folder,
                ranks=1,
                device=str(question.cluster.gpu.device),
                deadline_s=self.deadline_s + BESIDE_S,
                term_grace_s=TERM_GRACE_S,
            )
            run = self.launcher.start(job)
            while (ended := run.poll()) is None:
                if why := pause(POLL_S):
                    run.cancel()
                    return Measurement(outcome=Outcome.CANCELLED, detail=why)
            if not out.exists():
                said = " ".join(run.logs()[0].split())[-SAID_CHARACTERS:]
                raise ProbeError(f"{script.path} was not rehearsed: ...{said}")
            told = json.loads(out.read_text(encoding="utf-8"))
            if "error" in told:
                raise ProbeError(told["error"])
            (record,) = told["ranks"]
            return rehearsed(record, wall_s=ended.wall_s)
        finally:
            remove_folder(folder)

    def _write_order(self, question: Question, settings: Settings, folder: Path) -> None:
        script = question.script
        assert script is not None
        plan = {
            "accumulation": settings.gradient_accumulation_steps,
            "warmup_steps": WARMUP_STEPS,
            "measured_steps": MEASURED_STEPS,
            "minimum_steps": MINIMUM_STEPS,
            "time_budget_s": TIME_BUDGET_S,
        }
        write_json(folder / PLAN, plan)
        command = self._write_files(question, settings, folder)
        # the user's environment, without what is tuner's or another launcher's, or a node's own
        kept = {
            name: value
            for name, value in without_secrets(os.environ).items()
            if not RESERVED.fullmatch(name) and not name.startswith("SLURM")
        }
        kept = {**kept, "PYTHONUNBUFFERED": "1"}
        launcher = self.as_run(command, folder / "launcher")
        write_orders(folder, script, command, launcher, kept)

    def _write_files(self, question: Question, settings: Settings, folder: Path) -> Command:
        script = question.script
        assert script is not None
        template = ""
        if script.template:  # the rendered file has the user's name, and so a folder of its own
            (folder / "template").mkdir()
            template = str(folder / "template" / script.template.name)
        own_file = str(folder / CONFIGURATION)
        command = command_of(question, settings, template=template, configuration=own_file)
        if template:
            Path(template).write_text(command.template, encoding="utf-8")
        if script.launch is Launch.ACCELERATE:
            values = configuration(question, settings)
            nodes = question.cluster.nodes
            values |= {"num_machines": nodes} if nodes > 1 else {"main_process_port": 0}
            text = yaml.safe_dump(values, sort_keys=False)
            (folder / CONFIGURATION).write_text(text, encoding="utf-8")
        return command

    def _supervise(
        self, run: Run, folder: Path, ranks: int, pause: Callable[[float], str]
    ) -> Ended:
        """Waits for the end, which comes soon after all ranks' records, or one that is not well."""
        until = math.inf
        while (ended := run.poll()) is None:
            if until == math.inf:
                records = read_records(folder, ranks)
                if all(isinstance(one, RankRecord) or not one.missing for one in records):
                    (folder / DONE).touch()
                    until = time.monotonic() + END_S
                elif _knows_why(records):
                    until = time.monotonic() + self.peer_grace_s
            if pause(POLL_S):
                return run.cancel()
            if time.monotonic() > until:
                return replace(run.cancel(), why=Why.PEER_FAILED)
        return ended


def _why_invalid(question: Question, settings: Settings) -> str:
    """Why the launcher cannot run settings; empty if it can. Raises ProbeError: the script was
    edited since it was asked about."""
    script = question.script
    assert script is not None
    if script.why_other:
        raise ProbeError(script.why_other)
    is_told = script.launch is Launch.ACCELERATE
    return (why_not("accelerate", question, settings) or "") if is_told else ""


def rehearsed(record: Mapping[str, Any], *, wall_s: float) -> Measurement:
    """The measurement of a script's rank that was rehearsed: memory, and no time."""
    steps, memory = record["steps"], record["memory"]
    where = f"{record['at']}: " if record["at"] else ""
    detail = " ".join(f"rank 0 at {where}{record['detail']}".split())[:LONGEST_DETAIL]
    common: dict[str, Any] = {
        "wall_s": wall_s,
        "hardware": {"device": "torch's CUDA allocator without a GPU, for the script itself"},
    }
    if record["outcome"] == "oom":
        phase = record["moments"][0]["phase"] if record["moments"] else "start"
        short = OutOfMemory(
            rank=0,
            phase=phase,
            requested_bytes=0,
            allocated_bytes=memory["allocated_bytes"],
            reserved_bytes=memory["reserved_bytes"],
            limit_bytes=memory["device_bytes"],
        )
        return Measurement(outcome=Outcome.OOM, oom=short, detail=detail, phase=phase, **common)
    if record["outcome"] == "failed" or not steps:
        outcome = Outcome.TIMEOUT if record["outcome"] == "time" else Outcome.CRASHED
        tails = {0: record.get("said", "")}
        return Measurement(outcome=outcome, detail=detail, log_tails=tails, **common)
    beside, peak = memory["beside_bytes"], memory["allocated_bytes"]
    by_phase: dict[str, int] = {}
    for step in steps:
        for phase, size in step["by_phase"].items():
            by_phase[phase] = max(size, by_phase.get(phase, 0))
    found = Memory(
        allocated_bytes=peak,
        allocated_low_bytes=min(step["allocated_bytes"] for step in steps[1:] or steps),
        reserved_bytes=memory["reserved_bytes"],
        device_bytes=memory["reserved_bytes"] + beside,
        overhead_bytes=beside,
        by_phase=by_phase,
        by_category={},
        per_rank_bytes=(peak,),
        allocation_retries=memory["allocation_retries"],
    )
    return Measurement(outcome=Outcome.OK, memory=found, **common)


def _knows_why(records: Sequence[Record]) -> bool:
    return any(isinstance(one, RankRecord) and one.outcome is not Outcome.OK for one in records)


def _silent_node(ended: Ended, known: Sequence[bool]) -> int | None:
    """The node where the script was not probed at all; ``None`` if there is none.

    That is one whose launcher has failed by itself before any of its ranks knew of a probe, or each
    where none did.
    """
    on_node = len(known) // len(ended.ranks)
    silent = [end for end in ended.ranks if not any(known[end.rank * on_node :][:on_node])]
    failed = [end.rank for end in silent if end.code and not end.stopped]
    return (failed or [0])[0] if failed or len(silent) == len(ended.ranks) else None


def _ends(ended: Ended, records: Sequence[Record]) -> list[RankEnd]:
    """How each rank ended, as far as records and the end of its node's launcher tell it.

    A rank with a record was done. One without was stopped, unless its launcher failed by itself and
    no rank knows why: then it has failed as the launcher says.
    """
    told = _knows_why(records)
    found = []
    for rank, one in enumerate(records):
        host = ended.ranks[rank * len(ended.ranks) // len(records)]
        if isinstance(one, RankRecord):
            found.append(replace(host, rank=rank, code=0, stopped=False))
            continue
        by_itself = ended.why in (Why.ENDED, Why.PEER_FAILED) and not host.stopped
        code = -signal.SIGKILL if ended.host_oom_kills else host.code
        found.append(replace(host, rank=rank, code=code, stopped=told or not by_itself))
    return found


def _why_silent(path: str, ended: Ended, node: int, log: str, deadline_s: float) -> str:
    """The reason why a script that knows nothing of probes cannot be probed."""
    host = ended.ranks[node]
    where = f" on node {node} of {len(ended.ranks)}" if len(ended.ranks) > 1 else ""
    if host.code == NOT_HERE:
        return f"{path} was not run{where}: {' '.join(log.split())[-SAID_CHARACTERS:]}"
    if ended.why is not Why.DEADLINE and host.code:
        own = LAUNCHERS_WORDS.split(log, maxsplit=1)[0]  # the launcher's where it had none
        said = " ".join((own if own.strip() else log).split())[-SAID_CHARACTERS:]
        return (
            f"{path} ended{where} with exit code {host.code} before it imported"
            f" tuner.integrations: ...{said}"
        )
    when = f"in {deadline_s:.0f} s" if ended.why is Why.DEADLINE else "before its end"
    return f"{path} reported no step {when}: {HOW_TO_REPORT}"


def check_script_probe(study: Study, settings: Settings, found: Measurement) -> Measurement:
    """The measurement, with the outcome ``knob_inactive`` if the accumulation did not act.

    Backward passes of an optimizer step must be a multiple of its micro-batches, and the same
    multiple as in the study's other probes: a script may make several for each.
    """
    asked, counted = settings.gradient_accumulation_steps, found.tracked_accumulation
    if found.outcome not in RAN or not counted:
        return found
    each, rest = divmod(counted, asked)
    why = f"gradient_accumulation_steps={asked} did not act:"
    why = f"{why} {counted} backward passes were counted in an optimizer step"
    if rest:
        return replace(found, outcome=Outcome.KNOB_INACTIVE, detail=why)
    for probe in study.at(Fidelity.MEASURED).probes:
        other = probe.measurement
        if other is None or other.outcome is not Outcome.OK or not other.tracked_accumulation:
            continue
        passes = other.tracked_accumulation // probe.request.settings.gradient_accumulation_steps
        if passes != each:
            why = f"{why}, {each} for each micro-batch, and {passes} for each in probe #{probe.id}"
            return replace(found, outcome=Outcome.KNOB_INACTIVE, detail=why)
    return found


def check_sequences(
    settings: Settings, records: Sequence[Record], found: Measurement
) -> Measurement:
    """The measurement, with the outcome ``wrong_result`` if a rank trained another batch."""
    micro, count = settings.micro_batch_size, settings.gradient_accumulation_steps
    known = (record for record in records if isinstance(record, RankRecord))
    for record in known if found.outcome in RAN else ():
        told = record.sequences
        if told not in (None, micro * count):
            detail = (
                f"rank {record.rank} trained {told} sequences in an optimizer step, and"
                f" {micro} x {count} were asked for: that is another global batch"
            )
            return replace(found, outcome=Outcome.WRONG_RESULT, detail=detail)
    return found
