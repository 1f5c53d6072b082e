"""Questions that are answered at once over HTTP, and the names that they may use."""

import json

import pytest

from api import schemas
from tests.models import TINY
from tests.unit.api.studies import MEASURED, WORKLOAD, finish, probe
from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.launchfiles import FORMATS
from tuner.store.workers import WorkerIdentity, Workers

SIZED = {"workload": WORKLOAD, "cluster": "2x2xa100-80gb"}
CASE = {"workload": WORKLOAD, "cluster": "2xa100-80gb", "settings": {"micro_batch_size": 2}}
ACCELERATE = """
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
mixed_precision: bf16
num_machines: 1
num_processes: 2
"""
FILE = {
    "from": {"text": ACCELERATE},
    "workload": WORKLOAD,
    "cluster": "2xa100-80gb",
    "settings": {"micro_batch_size": 8},
}


def refused(response, field):
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "invalid_value"), problem
    assert problem["field"] == field
    return problem["allowed"]


def test_a_job_is_sized(client, store):
    response = client.post("/size", json={**SIZED, "price_per_gpu_hour": 2, "tokens": 1e9})
    assert response.status_code == 200, response.text
    found = response.json()
    schemas.SizedJob.model_validate(found)
    (row,) = found["rows"]
    assert (row["fewest"]["gpus"], row["whole"]["gpus"]) == (1, 4)
    assert row["fewest"]["provenance"] == "predicted"
    per_s = row["whole"]["tokens_per_s"]["value"]
    assert row["whole"]["cost_per_billion_tokens"]["value"] == pytest.approx(8e9 / 3600 / per_s)
    assert store.studies() == []
    several = client.post("/size", json={**SIZED, "cluster": ["a100-80gb", "2xh100-80gb"]})
    assert len(several.json()["rows"]) == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cluster": "local"}, "cluster"),
        ({"cluster": ["2xa100-80gb", "local"]}, "cluster"),
        ({"cluster": "cluster.toml"}, "cluster"),
        ({"cluster": []}, "cluster"),
        ({"cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "b"}}, "cluster.gpu"),
        ({"family": "lama"}, "family"),
        ({"within_s": 60}, "within_s"),
        ({"tokens_per_s": 0}, "tokens_per_s"),
        ({"knobs": {"tp_size": [3]}}, "knobs.tp_size"),
        ({"fidelity": "measured"}, "fidelity"),
    ],
)
def test_wrong_sizes_are_refused(client, change, field):
    assert refused(client.post("/size", json={**SIZED, **change}), field)


def test_a_size_that_takes_long_is_refused_with_what_would_not(client):
    work = {**WORKLOAD, "model": "llama-3.1-8b", "global_batch_size": 720_720}
    response = client.post("/size", json={**SIZED, "workload": work})
    assert "must leave at most 2500 legal settings" in refused(response, "knobs")


def test_cases_are_predicted_one_or_several(client):
    one = client.post("/predict", json=CASE)
    schemas.Predicted.model_validate(one.json())
    assert (one.json()["fits"], one.json()["provenance"]) == (True, "predicted")
    wrong = {**CASE, "settings": {"micro_batch_size": 3}}
    odd = {**CASE, "workload": {**WORKLOAD, "model": {"model_type": "unheard-of"}}}
    several = client.post("/predict", json={"cases": [CASE, wrong, odd, 7]})
    answers = several.json()["answers"]
    assert answers[0] == one.json()
    assert answers[1]["error"]["field"] == "global_batch_size" or answers[1]["error"]["field"]
    assert (answers[2]["fits"], "unheard-of" in answers[2]["reason"]) == (None, True)
    assert answers[3]["error"]["field"] == "body"
    assert refused(client.post("/predict", json={**CASE, "cluster": "local"}), "cluster")
    assert refused(client.post("/predict", json={"cases": []}), "cases")
    assert refused(client.post("/predict", json=[CASE]), "body")


def test_a_file_is_checked_by_what_was_measured_or_else_predicted(client):
    found = client.post("/check", json=FILE)
    assert found.status_code == 200, found.text
    schemas.Checked.model_validate(found.json())
    assert (found.json()["format"], found.json()["fits"]) == ("accelerate", True)
    assert found.json()["provenance"] == "predicted"
    assert found.json()["settings"]["sharding"] == "full_shard"
    big = {**FILE, "memory_limit_gib": 0.25}
    assert client.post("/check", json=big).json()["fits"] is False


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"from": {"text": "distributed_type: ["}}, "from.text"),
        ({"from": {"text": {"nothing": 1}}}, "from.text"),
        ({"from": {"text": ACCELERATE, "format": "makefile"}}, "from.format"),
        ({"file": ACCELERATE}, "file"),
        ({"cluster": "local"}, "cluster"),
        (
            {"from": {"text": {"deepspeed": "/etc/passwd", "output_dir": "x"}}},
            "from.text.deepspeed",
        ),
        ({"workload": {"model": "/etc/hostname"}}, "workload.model"),
        ({"workload": {"sequence_lenght": 5}}, "workload.sequence_lenght"),
        ({"settings": {"micro_batch_size": "8"}}, "settings.micro_batch_size"),
    ],
)
def test_no_file_of_the_service_is_read_and_mistakes_are_told(client, change, field):
    assert refused(client.post("/check", json={**FILE, **change}), field)


def test_a_model_that_a_file_names_is_of_the_catalogue(client, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(TINY))
    monkeypatch.chdir(tmp_path)
    file = {"base_model": "mine", "sequence_len": 32, "micro_batch_size": 2,
            "gradient_accumulation_steps": 1, "optimizer": "adamw_torch", "bf16": True}  # fmt: skip
    sent = {"text": file, "format": "axolotl"}
    named = client.post("/check", json={"from": sent, "cluster": "a100-80gb"})
    assert "is not in the catalogue" in refused(named, "from.model")


def test_names_are_listed(client, store):
    listed = client.get("/models").json()["models"]
    assert [one["name"] for one in listed] == list(models.names())
    assert [one["name"] for one in client.get("/gpus").json()["gpus"]] == list(gpu_kinds())
    formats = client.get("/formats").json()
    assert [one["name"] for one in formats["written"]] == list(FORMATS)
    assert "accelerate" in formats["read"]
    assert client.get("/workers").json() == {"workers": []}
    machine = {"name": "n", "processor": "p", "cores": 4, "memory_bytes": 2**30, "gpus": []}
    who = WorkerIdentity.of_this_process("here")
    Workers(store.transactions).register(who, ["h100"], machine, {"torch": "2.13.0"})
    (worker,) = client.get("/workers").json()["workers"]
    assert (worker["name"], worker["pools"]) == ("here", ["h100"])
    assert worker["machine"] == {"nodes": 1, "gpus": [], "cores": 4, "memory_bytes": 2**30}


def test_what_was_measured_goes_before_what_is_predicted(client, store):
    study_id = client.post("/tune", json=MEASURED).json()["study_id"]
    probe(store, study_id)
    finish(store, study_id)
    best = client.get(f"/tune/{study_id}").json()["suggestion"]["best"]
    text = client.get(f"/tune/{study_id}/export/json").text
    found = client.post("/check", json={"from": {"text": text}, "cluster": "cpu:2"})
    assert found.status_code == 200, found.text
    assert found.json()["provenance"] == best["provenance"] == "measured"
    assert found.json()["seen"]["study_id"] == study_id


AXOLOTL = """
base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
optimizer: adamw_torch_fused
gradient_checkpointing: true
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
flash_attention: true
torch_compile: true
"""
FROM = {"from": {"text": AXOLOTL, "name": "axolotl.yaml"}, "cluster": "8xa100-80gb"}
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 16
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
"""


def test_a_file_is_a_question(client, store):
    asked = {**FROM, "fidelity": "predicted", "labels": {"job": "7"}}
    for _ in range(2):  # what is not counted is told again to whoever sends it again
        response = client.post("/tune", json=asked, headers={"Idempotency-Key": "a"})
        assert response.status_code == 202, response.text
        assert any("torch_compile" in note for note in response.json()["notes"])
        schemas.Submitted.model_validate(response.json())
        assert response.json()["left_out"] == {"activation_checkpointing": ["every_2"]}
    (listed,) = store.studies()
    question = store.study(listed.id).question
    work = question.workload
    assert (work.global_batch_size, work.sequence_length, work.adapter.rank) == (64, 4096, 16)
    assert question.framework.name == "trainer"
    assert question.knobs["tp_size"] == (1,)
    said = {"workload": {"sequence_length": 2048}, "knobs": {"micro_batch_size": [1]}}
    plain = AXOLOTL.replace("sequence_len: 4096", "")
    sent = {**FROM, **said, "from": {"text": plain, "format": "axolotl"}, "fidelity": "predicted"}
    brief = client.post("/tune?view=brief", json=sent)
    assert brief.status_code == 202
    assert brief.json()["left_out"] == {"activation_checkpointing": ["every_2"]}
    other = next(one for one in store.studies() if one.id != listed.id)
    assert store.study(other.id).question.workload.sequence_length == 2048
    assert store.study(other.id).question.knobs["micro_batch_size"] == (1,)


def test_a_file_is_a_case_in_any_of_its_syntaxes(client):
    predicted = client.post("/predict", json=FROM)
    assert predicted.status_code == 200, predicted.text
    schemas.Predicted.model_validate(predicted.json())
    checked = client.post("/check", json=FROM).json()
    assert checked["format"] == "axolotl"
    assert checked["settings"]["micro_batch_size"] == 2
    titan = {"from": {"text": TITAN, "name": "train.toml"}, "cluster": "8xh100-80gb"}
    several = client.post("/predict", json={"cases": [FROM, titan, {"from": {"text": "x: ["}}]})
    first, second, third = several.json()["answers"]
    assert first["fits"] == checked["fits"]
    assert second["canonical"]["sharding"] == "full_shard"
    assert third["error"]["field"] == "from.text"


DEEP = 100_000


REFUSED = [
    ({"text": "x: ["}, "from.text"),
    ({"text": "nothing: 1"}, "from.text"),
    ({"text": ""}, "from.text"),
    ({"format": "makefile"}, "from.format"),
    ({"path": "/etc/passwd"}, "from.path"),
    ({"text": AXOLOTL + "deepspeed: /etc/passwd\n"}, "from.text.deepspeed"),
    ({"text": AXOLOTL.replace("meta-llama/Llama-3.1-8B", "/etc/hostname")}, "from.model"),
]
TOO_DEEP = [
    {"text": "[" * DEEP, "name": "a.yaml"},
    {"text": f"x = {'[' * DEEP}", "name": "a.toml"},
    {"text": f"x = {'-' * DEEP}1", "name": "a.py"},
    {"text": f"x = {'a.' * DEEP}b", "name": "a.py"},
    {"text": f"--x '{'[' * DEEP}'", "name": "a.sh"},
]


@pytest.mark.parametrize("path", ["/tune", "/predict", "/check"])
def test_files_that_are_refused(client, path):
    for change, field in REFUSED:
        refused(client.post(path, json={**FROM, "from": {**FROM["from"], **change}}), field)


@pytest.mark.parametrize("change", TOO_DEEP)
def test_a_file_that_is_too_deep_is_refused(client, change):
    refused(client.post("/predict", json={**FROM, "from": {**FROM["from"], **change}}), "from.text")


def test_what_a_file_does_not_say_is_named_as_a_field(client):
    sent = {"text": AXOLOTL.replace("sequence_len: 4096", "")}
    allowed = refused(client.post("/tune", json={**FROM, "from": sent}), "workload.sequence_length")
    assert "the file does not say it" in allowed
