"""What tests of several packages share: dry runs and studies made by hand, tiny models, and the
command line run in this process."""

import json
import os
import shutil
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

import tuner
from tests import profiles
from tests.models import TINY
from tests.process.preloaded import preloaded_server
from tests.questions import question_about
from tests.records import VERSIONS, dry_trace
from tests.unit.made import crashed, ok, oom, stored, study_of
from tuner.cli import main
from tuner.cost.time.compute import AMOUNTS
from tuner.dryrun import DryRun, plan_dry_runs
from tuner.store import engine, open_store

profiles.register()

LONGEST_ID = 80
"""Characters of a parameter in a test's name: some are a megabyte."""


def pytest_sessionstart():
    engine.DURABLY = "NORMAL"  # no power cut is survived, and no test waits for the disk
    if settings.get_current_profile_name() == profiles.SAME:
        profiles.draw_no_constants()


def pytest_make_parametrize_id(val, argname):
    """Short names for what is long: its beginning would not tell one from another."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_ID:
        raw = val.encode(errors="replace") if isinstance(val, str) else val
        return f"{argname}-of-{len(val)}-{zlib.crc32(raw):08x}"
    return None


@pytest.fixture(scope="session")
def make_database(tmp_path_factory):
    """Makes an empty SQLite database at this version's schema: its address.

    It is a copy of one file: to migrate a new one takes longer than most tests do.
    """
    made = tmp_path_factory.mktemp("database") / "empty.db"
    open_store(f"sqlite:///{made}").close()

    def make(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory):
    """Runs programs in forks of a process that has torch: tests.process.preloaded."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with preloaded_server(folder / "preloaded") as start:
        yield start


@pytest.fixture
def preloading(preloaded, monkeypatch):
    """Has all that a test starts, and that trains, be such forks."""
    for name, value in preloaded.environment.items():
        monkeypatch.setenv(name, value)


def trace(request, one_bytes, more_bytes):
    """What the dry-run program says, with the work that is done where it is asked for."""
    work = work_of(request) if request.get("work") else {}
    return work | dry_trace(request, one_bytes, more_bytes)


def work_of(request):
    """What the program says of a model whose layers do 1e12 FLOPs for each sequence and pass."""
    spec, sizes = request["spec"], request["micro_batch_sizes"]
    again = spec["settings"]["activation_checkpointing"] == "full"
    layers, none = spec["model"]["num_hidden_layers"], [0 for _ in sizes]
    passes = {"forward": 1, "backward": 2 + again}
    return {
        "work": [
            {
                "phase": phase,
                "part": "layers",
                "amounts": {
                    **dict.fromkeys(AMOUNTS, none),
                    "product_flops": [1e12 * layers * count * size for size in sizes],
                },
            }
            for phase, count in passes.items()
        ],
        "trained_elements": 1000,
        "updated_elements": 1000,
    }


def make_dry_run(
    question, settings, one_bytes=2.0**30, more_bytes=0.0, *, error=None, versions=None
):
    """A dry run of the settings' class: bytes at one sequence, and for each one more."""
    plan = plan_dry_runs(
        question.workload, question.cluster, question.framework, settings, versions or VERSIONS
    )
    answers = [
        {"id": request["id"], "error": error}
        if error
        else {"id": request["id"], "trace": trace(request, one_bytes, more_bytes)}
        for request in plan.requests
    ]
    return DryRun.from_answers(plan, answers, "2026-01-01T00:00:00+00:00")


@pytest.fixture(scope="session")
def dry_run_of():
    """Makes dry runs; see :func:`make_dry_run`."""
    return make_dry_run


@pytest.fixture
def tiny(tmp_path):
    """The path of a tiny Llama's configuration."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def case(tiny):
    """A case with a whole configuration."""
    work = {"model": json.loads(Path(tiny).read_text()), "sequence_length": 64}
    return {
        "workload": {**work, "global_batch_size": 32},
        "cluster": "8xa100-80gb",
        "settings": "sharding=full_shard,micro_batch_size=2",
    }


@pytest.fixture
def database(tmp_path):
    """Where the default database will be."""
    return tmp_path / "data" / "studies.db"


@pytest.fixture
def environment(tmp_path, database, monkeypatch):
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
def question(tiny):
    """Global batch 8 on two CPU ranks."""
    return question_about(tiny, "cpu:2", "accelerate", tokens=32, batch=8)


@pytest.fixture
def lab(question):
    """Makes measurements and studies: ``lab.study(("sharding=ddp", lab.ok(0.1, 20)))``."""
    return SimpleNamespace(
        ok=ok, oom=oom, crashed=crashed, question=question, study=partial(study_of, question)
    )


@pytest.fixture
def made(make_database, environment, database):
    """The default database, which is there, and empty."""
    return make_database(database)


@pytest.fixture
def answered(made, question):
    """A finished study in the default database; its best is full_shard."""
    with open_store() as store:
        return stored(
            store,
            question,
            ("sharding=full_shard,micro_batch_size=4", ok(0.1, 20)),
            ("sharding=ddp,micro_batch_size=4", ok(0.2, 40)),
        )


@pytest.fixture
def failed(made, question):
    """A finished study in the default database, whose only probe crashed, twice."""
    with open_store() as store:
        return stored(store, question, ("sharding=full_shard,micro_batch_size=4", crashed()))


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one object on stdout."""
        return json.loads(self.out)


@pytest.fixture
def cli(environment, capsys):
    """Runs ``tuner ARGUMENTS`` in this process."""

    def run(*arguments):
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run
