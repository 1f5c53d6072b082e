"""Real ranks in a stack that trains something else: no answer, prediction or export says it."""

import json
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.process.workers.test_guard import argv_with
from tuner.cli import main
from tuner.core.framework import framework
from tuner.core.measurement import Outcome
from tuner.core.study import Limits, StudyState
from tuner.explain.known import answer
from workers.executor import WorkerOptions
from workers.stop import StopRequest
from workers.worker import Worker

ABOUT = {
    "--model": "llama-3.1-8b",
    "--cluster": "8xh100-80gb",
    "--framework": "accelerate",
    "--global-batch-size": "256",
    "--sequence-length": "4096",
}
OPTIONS = [part for option in ABOUT.items() for part in option]
ASK = ["suggest", *OPTIONS, "--fidelity", "predicted", "--max-probes", "1"]
CASE = ["predict", *OPTIONS, "--dry-runs", "none", "--settings"]
WRONG = "sync_each_batch=true trains something else: rank 0: the optimizer stepped "

pytestmark = pytest.mark.xdist_group("ranks")


@pytest.fixture
def options(tmp_path, preloaded):
    """How a worker works whose ranks have a planted fault."""

    def with_fault(fault):
        def argv(directory):
            return preloaded(argv_with(fault)(directory))

        return WorkerOptions(
            folder=tmp_path / "probes", lock=tmp_path / "lock", argv=argv, replica_argv=argv
        )

    return with_fault


@pytest.fixture
def of_store(store, monkeypatch):
    """A service on the same database, which commands use too."""
    monkeypatch.setenv("TUNER_DB", store.url)
    app = create_app(store, Settings(_env_file=None))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.mark.long
def test_an_optimizer_that_steps_on_each_micro_batch_is_never_suggested(
    store, question, options, of_store, capsys
):
    knobs = {"sync_each_batch": (True,), "gradient_accumulation_steps": (2,), "tp_size": (1,)}
    asked = replace(question, framework=framework("accelerate"), knobs=knobs)
    study = store.ask(asked, Limits(max_probes=8))
    fault = options("steps_on_every_micro_batch")
    assert Worker(store, study.id, stop=StopRequest(), options=fault).run() == 0

    study = store.study(study.id)
    assert [p.measurement.outcome for p in study.probes] == [Outcome.WRONG_RESULT] * 2
    assert len({p.request.settings.sharding for p in study.probes}) == 2
    assert study.state is StudyState.FAILED
    assert study.reason.startswith(f"what fits trains something else: {WRONG}")
    assert answer(study).best is None

    assert main(["export", study.id, "accelerate"]) == 4
    assert WRONG in capsys.readouterr().err
    refused = of_store.get(f"/tune/{study.id}/export/accelerate")
    assert (refused.status_code, refused.json()["reason"]) == (409, "trains_wrongly")
    assert WRONG in refused.json()["detail"]
    shown = of_store.get(f"/tune/{study.id}").json()
    assert (shown["state"], shown["no_answer"]["kind"]) == ("failed", "trains_wrongly")

    # another model, another cluster, and nothing measured: the same program and versions
    only = ["--knob", "sync_each_batch=true", "--knob", "gradient_accumulation_steps=16"]
    assert main([*ASK, *only]) == 4
    assert WRONG in capsys.readouterr().err
    accumulates = "sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=32"
    accumulates += ",activation_checkpointing=full"
    assert main([*CASE, f"{accumulates},sync_each_batch=true"]) == 4
    assert main([*CASE, f"{accumulates},sync_each_batch=false"]) == 0


@pytest.mark.long
def test_a_buffer_that_is_used_again_is_never_suggested(store, question, options, of_store, capsys):
    """Its steps run, and no count shows it: what closes it are the replicas of the finalists."""
    knobs = {
        "tp_size": [2],
        "tp_recompute_allgather": [False],
        "activation_checkpointing": ["none"],
        "gradient_accumulation_steps": [1],
    }
    alone = {
        "workload": {
            "model": "stories15m",
            "sequence_length": 64,
            "global_batch_size": 4,
            "precision": "fp32",
        },  # one replica shows it
        "cluster": "cpu:2",
        "framework": "torch",
        "fidelity": "measured",
        "knobs": knobs,
        "budget": {"max_probes": 4},
    }
    both = {**alone, "knobs": {**knobs, "tp_recompute_allgather": [False, True]}}

    def work_off(request):
        path = str(of_store.post("/tune", json=request).headers["location"])
        fault = options("reuses_a_gathered_buffer")
        study_id = path.removeprefix("/tune/")
        assert Worker(store, study_id, stop=StopRequest(), options=fault).run() == 0
        return path

    path = work_off(alone)
    study = store.study(path.removeprefix("/tune/"))
    assert {p.measurement.outcome for p in study.probes} == {Outcome.OK}
    assert study.state is StudyState.FAILED
    shown = of_store.get(path).json()
    assert (shown["state"], shown["no_answer"]["kind"]) == ("failed", "trains_wrongly")
    assert "of one process's" in json.dumps(shown)
    refused = of_store.get(f"{path}/export/json")
    assert (refused.status_code, refused.json()["reason"]) == (409, "trains_wrongly")
    assert main(["export", study.id, "json"]) == 4
    capsys.readouterr()

    path = work_off(both)
    study = store.study(path.removeprefix("/tune/"))
    assert all(p.request.settings.tp_recompute_allgather for p in study.probes)
    suggested = of_store.get(path).json()["suggestion"]
    for one in (suggested["best"], *suggested["alternatives"], *suggested["pareto"]):
        assert one["settings"]["tp_recompute_allgather"] is True
    assert suggested["best"]["guard"]["verdict"] == "passed"
    assert main(["export", study.id, "json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["settings"]["tp_recompute_allgather"] is True
    assert of_store.get(f"{path}/export/json").text == printed
