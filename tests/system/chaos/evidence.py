"""What processes, ranks and the database say of what has happened."""

import json
import re
from collections import Counter, defaultdict
from itertools import pairwise

import psutil
from sqlalchemy import func, select

from tuner.core.study import ProbeState
from tuner.store.tables import (
    AttemptRow,
    AttemptState,
    DeviceRow,
    EventKind,
    EventRow,
    MeasurementRow,
    ProbeRow,
)

RECORDED = re.compile(
    r"(?:probe|dry run) #(d?\d+ of st-\w+): \w+ after [\d.]+ s(?!.*\(not recorded)"
)
"""What a worker says when the database has confirmed a result."""
AGAIN = re.compile(
    r"(?:probe|dry run) #(d?\d+ of st-\w+): (?:crashed|communication_error|device_lost) after"
)
"""Of these some are tried again."""


def spans(notes):
    """When ranks were at work on each GPU; a span without an end is a moment: it was killed."""
    began = {}
    found = defaultdict(list)
    for line in notes.read_text().splitlines():
        note = json.loads(line)
        gpu, at = note["gpu"], note["at"]
        if (earlier := began.pop(note["pid"], None)) is not None:
            found[earlier[0]].append((earlier[1], at if note["what"] == "end" else earlier[1]))
        if note["what"] == "begin":
            began[note["pid"]] = gpu, at
    for gpu, at in began.values():
        found[gpu].append((at, at))
    return dict(found)


def overlaps(notes):
    """GPUs on which two ranks were at work at the same time, and for how many seconds."""
    return [
        (gpu, one[1] - later[0])
        for gpu, own in spans(notes).items()
        for one, later in pairwise(sorted(own))
        if one[1] > later[0]
    ]


def confirmed(logs):
    """How often each probe's result was confirmed to a worker, those tried again apart."""
    return Counter(
        found[1]
        for log in logs
        for line in log.splitlines()
        if not AGAIN.search(line) and (found := RECORDED.search(line))
    )


def mistakes(store):
    """What the database holds that must not be, once all studies are at their ends."""
    with store.transactions.read() as session:
        probes = session.execute(
            select(ProbeRow.id, ProbeRow.state, ProbeRow.study_id, ProbeRow.number)
        ).all()
        results = Counter(session.scalars(select(MeasurementRow.probe_id)))
        attempts = session.execute(
            select(AttemptRow.probe_id, AttemptRow.state, func.count())
            .group_by(AttemptRow.probe_id, AttemptRow.state)
        ).all()  # fmt: skip
        held = session.scalars(select(DeviceRow.device)).all()
        ids = {(one.study_id, one.number): one.id for one in probes}
        told = select(EventRow.study_id, EventRow.data).where(EventRow.kind == EventKind.PROBE)
        ended = Counter(
            ids.get((study_id, data["number"]))
            for study_id, data in session.execute(told)
            if data["state"] == ProbeState.DONE
        )
    running = [one.probe_id for one in attempts if one.state == AttemptState.RUNNING]
    open_ones = [one.id for one in probes if one.state != ProbeState.DONE]
    wrong = [f"probe {one} is not done" for one in open_ones]
    wrong += [f"probe {one} has a running attempt" for one in running]
    wrong += [f"device {one} is held" for one in held]
    for what, counts in (("results", results), ("ends", ended)):
        wrong += [
            f"probe {one.id} has {counts[one.id]} {what}" for one in probes if counts[one.id] != 1
        ]
    return wrong


def left(folder):
    """Processes of this test that live."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if str(folder) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{process.pid}: {words[:200]}")
    return found
