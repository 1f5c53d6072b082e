"""Stand-ins for workers: part of ``make bench-service``.

    python benchmarks/service_writer.py '{"db": "...", "studies": [...], "probes": 15, ...}'

Probes of some studies go through the store as a worker has them go, and no ranks run. It prints
``done`` when all studies are.
"""

import json
import sys
import time
from typing import Any

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity, Measurement, Memory, Outcome
from tuner.core.study import Limits, ProbeRequest, Question, StudyState
from tuner.core.workload import Workload
from tuner.model import load_model
from tuner.store import Store, WorkerIdentity, open_store

SETTINGS = Settings(micro_batch_size=1, gradient_accumulation_steps=4)
MIB = 2**20


def question(number: int) -> Question:
    """A question that no other number has."""
    return Question(
        workload=Workload(
            model=load_model("stories15m"), sequence_length=128, global_batch_size=8 * (number + 1)
        ),
        cluster=parse_cluster("cpu:2"),
        framework=framework("torch"),
    )


def ask(store: Store, studies: int, first: int = 0) -> list[str]:
    numbers = range(first, first + studies)
    ids = [store.ask(question(number), Limits(max_probes=1000)).id for number in numbers]
    for study_id in ids:
        store.move(study_id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
    return ids


def probe(store: Store, study_id: str, repetition: int) -> None:
    """One probe from queued to done: three events."""
    status = store.status(study_id)
    assert status is not None
    request = ProbeRequest(
        settings=SETTINGS, fidelity=Fidelity.MEASURED, repetition=repetition,
        accumulation_counts=(4,),
    )  # fmt: skip
    assert store.enter_probe(study_id, status.revision, request, None)
    claim = store.claim(study_id, WorkerIdentity.of_this_process())
    assert claim is not None
    assert store.record(claim, measured(repetition))


def measured(repetition: int) -> Measurement:
    """What a probe may have found."""
    memory = Memory(
        allocated_bytes=300 * MIB, allocated_low_bytes=300 * MIB, reserved_bytes=320 * MIB,
        device_bytes=500 * MIB, overhead_bytes=0, by_phase={"forward": 300 * MIB},
        by_category={"parameters": 100 * MIB}, per_rank_bytes=(300 * MIB,) * 2,
    )  # fmt: skip
    step_s = 1 + repetition % 7 / 1000
    return Measurement(
        outcome=Outcome.OK, memory=memory, step_times_s={4: (step_s,) * 5}, wall_s=5.0
    )


def run(given: dict[str, Any]) -> None:
    """Have all probes run, one of each study in turn, and end the studies.

    A probe begins ``pause_s`` seconds after the one before it began, or at once if it is late: as
    much happens in a second however busy the machine is.
    """
    turns = [(n, study_id) for n in range(given["probes"]) for study_id in given["studies"]]
    began = time.monotonic()
    with open_store(given["db"]) as store:
        for turn, (repetition, study_id) in enumerate(turns):
            time.sleep(max(0.0, began + turn * given["pause_s"] - time.monotonic()))
            probe(store, study_id, repetition)
        for study_id in given["studies"]:
            assert store.move(study_id, StudyState.DONE, "all probes are done")


def main() -> None:
    run(json.loads(sys.argv[1]))
    print(json.dumps("done"))


if __name__ == "__main__":
    main()
