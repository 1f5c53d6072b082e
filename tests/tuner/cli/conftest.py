"""The command line run in this process, tiny models, and studies made by hand."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tuner
from tuner.cli import main
from tuner.cluster import parse_cluster
from tuner.framework import framework
from tuner.measurement import Collective, Fidelity, Measurement, Memory, Outcome, OutOfMemory
from tuner.model import load_model
from tuner.settings import parse_settings
from tuner.space import check_settings
from tuner.store import Store, WorkerIdentity, open_store
from tuner.study import Probe, ProbeRequest, ProbeState, Question, Study, StudyState, Terms
from tuner.workload import Workload

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """The path of a tiny Llama's configuration."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the default database will be."""
    return tmp_path / "data" / "studies.db"


@pytest.fixture
def environment(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user of one's own, in which no one else's probes are waited for."""
    own = {
        "TUNER_DB": f"sqlite:///{database}",
        "XDG_DATA_HOME": str(tmp_path / "share"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(Path(tuner.__file__).parents[1]),
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    return {**os.environ}


@pytest.fixture
def cli(environment: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs ``tuner ARGUMENTS`` in this process."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def question(tiny: str) -> Question:
    """Global batch 8 on two CPU ranks."""
    workload = Workload(model=load_model(tiny), sequence_length=32, global_batch_size=8)
    return Question(
        workload=workload, cluster=parse_cluster("cpu:2"), framework=framework("accelerate")
    )


def ok(seconds: float, mib: float, counts: Sequence[int] = (1, 2, 4, 8)) -> Measurement:
    """A probe whose steps took about ``seconds``."""
    size = int(mib * MIB)
    memory = Memory(
        allocated_bytes=size,
        allocated_low_bytes=size,
        reserved_bytes=size,
        device_bytes=size * 2,
        overhead_bytes=0,
        by_phase={"forward": size // 2, "backward": size},
        by_category={"parameters": size // 4},
        per_rank_bytes=(size, size),
    )
    times = tuple(seconds * (1 + 0.001 * i) for i in range(-5, 5))
    return Measurement(
        outcome=Outcome.OK,
        memory=memory,
        step_times_s=dict.fromkeys(counts, times),
        collectives=(
            Collective(op="all_reduce", axis="dp", phase="backward", count=4, bytes=3 * MIB),
        ),
        tracked_accumulation=1,
        losses=(4.5, 4.25),
        versions={"torch": "2.13.0"},
        wall_s=12.0,
        device_s=24.0,
    )


def oom(mib: float) -> Measurement:
    """A probe that ran out of memory."""
    shortage = OutOfMemory(
        rank=1,
        phase="backward",
        requested_bytes=MIB,
        allocated_bytes=int(mib * MIB),
        reserved_bytes=int(mib * MIB),
        limit_bytes=int(mib * MIB),
    )
    return Measurement(
        outcome=Outcome.OOM,
        detail="rank 1 ran out of memory in backward",
        oom=shortage,
        log_tails={0: "a warning of no interest"},
        wall_s=3.0,
        device_s=6.0,
    )


def crashed() -> Measurement:
    """A probe that failed."""
    return Measurement(
        outcome=Outcome.CRASHED,
        detail="rank 0 raised RuntimeError: no such kernel",
        log_tails={0: "Traceback ...\nRuntimeError: no such kernel"},
        wall_s=2.0,
        device_s=4.0,
    )


Found = tuple[str, Measurement | ProbeState]


def request_of(question: Question, text: str, repetition: int = 0) -> ProbeRequest:
    """A probe of settings that are written down."""
    settings = check_settings(question, parse_settings(text))
    return ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED, repetition=repetition)


def study_of(question: Question, *found: Found, terms: Terms | None = None) -> Study:
    """A study with these probes, in this order."""
    probes = []
    for number, (text, result) in enumerate(found, start=1):
        done = isinstance(result, Measurement)
        probes.append(
            Probe(
                id=number,
                request=request_of(question, text),
                state=ProbeState.DONE if done else ProbeState(result),
                measurement=result if isinstance(result, Measurement) else None,
                finished_at=f"2026-11-21T06:{29 + number}:00+00:00" if done else None,
            )
        )
    return Study(
        id="st-0123456789ab",
        question=question,
        terms=terms or Terms(max_probes=5),
        state=StudyState.DONE,
        probes=tuple(probes),
        created_at="2026-11-21T06:00:00+00:00",
        asked_at="2026-11-21T06:10:00+00:00",
    )


def stored(
    store: Store, question: Question, *found: tuple[str, Measurement], terms: Terms | None = None
) -> Study:
    """A finished study with these probes in a database."""
    study = store.ask(question, terms or Terms(max_probes=5))
    for number, (text, result) in enumerate(found):
        request = request_of(question, text, number)
        revision = store.study(study.id).revision
        assert store.enter_probe(study.id, revision, request, None)
        while claim := store.claim(study.id, WorkerIdentity.of_this_process()):
            assert store.record(claim, result)
    store.move(study.id, StudyState.RUNNING)
    store.move(study.id, StudyState.DONE, "the budget is spent")
    return store.study(study.id)


@pytest.fixture
def lab(question: Question) -> SimpleNamespace:
    """Makes measurements and studies: ``lab.study(("sharding=ddp", lab.ok(0.1, 20)))``."""
    return SimpleNamespace(
        ok=ok,
        oom=oom,
        crashed=crashed,
        question=question,
        study=partial(study_of, question),
    )


@pytest.fixture
def made(
    make_database: Callable[[Path], str], environment: Mapping[str, str], database: Path
) -> str:
    """The default database, which is there, and empty."""
    return make_database(database)


@pytest.fixture
def answered(made: str, question: Question) -> Study:
    """A finished study in the default database; its best is full_shard."""
    with open_store() as store:
        return stored(
            store,
            question,
            ("sharding=full_shard,micro_batch_size=4", ok(0.1, 20)),
            ("sharding=ddp,micro_batch_size=4", ok(0.2, 40)),
        )


@pytest.fixture
def unanswered(made: str, question: Question) -> Study:
    """A finished study in the default database, whose only probe ran out of memory."""
    with open_store() as store:
        return stored(store, question, ("sharding=full_shard,micro_batch_size=4", oom(50)))


@pytest.fixture
def failed(made: str, question: Question) -> Study:
    """A finished study in the default database, whose only probe crashed, twice."""
    with open_store() as store:
        return stored(store, question, ("sharding=full_shard,micro_batch_size=4", crashed()))
