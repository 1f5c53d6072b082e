"""Studies of a few short probes, and what must be true of them at their end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from tests.chaos.evidence import mistakes, overlaps, spans
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Question, Study, StudyState, Terms
from tuner.core.workload import Workload
from tuner.model import load_model
from tuner.store import Store
from tuner.store.tables import AttemptRow, AttemptState

PROBES = 6
"""Of each study."""
SLICES = 20
"""Short times at work, at least, that the ranks of a probe note."""


def ask(store: Store, batch: int = 64, **terms: Any) -> Study:
    """Asks a question of many settings, on GPUs that are made up."""
    question = Question(
        workload=Workload(
            model=load_model("stories15m"), sequence_length=128, global_batch_size=batch
        ),
        cluster=parse_cluster("8xa100-80gb"),
        framework=framework("torch"),
    )
    wanted = {"tolerance": 0.0, "max_probes": PROBES, **terms}
    return store.ask(question, Terms(fidelity=Fidelity.EMULATED, **wanted))


def eventually(condition: Callable[[], object], seconds: float = 600.0) -> None:
    """Wait until a condition holds; fail after some seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)


def attempts(store: Store, state: AttemptState) -> int:
    """How many attempts are in a state."""
    with store.transactions.read() as session:
        count = select(func.count()).where(AttemptRow.state == state)
        return session.scalar(count) or 0


def is_done(store: Store, study: Study) -> bool:
    """Whether a study has its answer."""
    return store.study(study.id).state is StudyState.DONE


def check(store: Store, study: Study, notes: Path) -> None:
    """Every probe has one result, and no two were at work on one GPU."""
    found = store.study(study.id)
    ran = found.at(Fidelity.EMULATED).probes
    outcomes = [probe.measurement.outcome for probe in ran if probe.measurement]
    assert len(outcomes) == PROBES
    assert set(outcomes) <= {Outcome.OK, Outcome.STOPPED_EARLY}
    assert mistakes(store) == []
    assert overlaps(notes) == []
    assert sum(map(len, spans(notes).values())) >= SLICES * PROBES
