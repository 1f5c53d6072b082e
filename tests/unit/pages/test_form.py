"""The form that starts a study: what was typed becomes a request, or comes back with the errors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.form import (
    CLUSTER,
    CONFIG,
    FRAMEWORK,
    GPU,
    GPUS_PER_NODE,
    MODEL,
    MODEL_NAME,
    NODES,
    VERSIONS,
    all_wrong,
    form_of,
    read_form,
    specs,
    texts_of_study,
)
from tests.unit.api.studies import MEASURED, PREDICTED, TINY, WORKLOAD
from tuner.client.parts import BudgetGiven, WorkloadGiven
from tuner.client.request import TuneRequest, read_request
from tuner.core.adapter import Adapter
from tuner.core.configuration import KNOBS
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.core.packing import Packing
from tuner.core.study import Study, StudyState

GOOD = {
    MODEL: "llama-3.1-8b",
    GPU: "h100-80gb",
    NODES: "2",
    GPUS_PER_NODE: "8",
    "workload.sequence_length": "4096",
    "workload.global_batch_size": "256",
    "workload.optimizer": "adamw",
    "workload.precision": "bf16",
    FRAMEWORK: "torch",
    "fidelity": "auto",
}
WRONG = {
    "workload.sequence_length": "abc",
    "workload.global_batch_size": "-1",
    "workload.optimizer": "adagrad",
    "workload.precision": "fp8",
    "workload.reduce_dtype": "fp8",
    "workload.task": "ner",
    "workload.loss": "mse",
    "workload.tensor_parallel": "columns",
    "workload.adapter.method": "dora",
    "workload.packing.variant": "some",
    "workload.packing.documents": "[512]",
    "workload.adapter.rank": "0",
    "workload.adapter.alpha": "x",
    "workload.adapter.dropout": "1",
    "workload.adapter.quantize": "nf3",
    "workload.adapter.double_quant": "perhaps",
    "workload.image_tokens": "many",
    MODEL: "lama-3.1-8b",
    GPU: "h10",
    NODES: "0",
    GPUS_PER_NODE: "many",
    FRAMEWORK: "jax",
    VERSIONS: "jax=1",
    "fidelity": "guessed",
    "budget.max_probes": "0",
    "budget.wall_s": "soon",
    "budget.gpu_s": "-3m",
    "headroom": "1.5",
    "memory_limit_gib": "-2",
    "tolerance": "x",
    "pool": "a b",
    "sampler": "annealing",
    "knobs.sharding": "zero9",
    "knobs.tp_size": "1, two",
    "knobs.tp_recompute_allgather": "perhaps",
    "knobs.pp_size": "0",
    "knobs.cp_size": "0",
    "knobs.micro_batch_size": "1.5",
    "knobs.gradient_accumulation_steps": "-1",
    "knobs.sync_each_batch": "yes",
    "knobs.defer_all_reduce": "yes",
    "knobs.activation_checkpointing": "some",
    "knobs.cpu_offload": "1",
    "knobs.fused_loss": "1",
}


def _texts(fields):
    return {name: [v] if isinstance(v, str) else v for name, v in fields.items()}


def _request(**fields):
    asked = read_form(_texts({**GOOD, **fields}))
    assert all_wrong(asked) == ()
    return json.loads(json.dumps(asked.request))


def _said(**fields):
    wrong = all_wrong(read_form(_texts({**GOOD, **fields})))
    assert len({one.name for one in wrong}) == len(wrong), wrong
    return {one.name: one.said for one in wrong}


def test_a_length_may_be_in_units_of_1024():
    fields = {"workload.sequence_length": "8k"}
    assert _request(**fields)["workload"]["sequence_length"] == 8192
    assert "workload.sequence_length" in _said(**{"workload.sequence_length": "8kk"})


def test_every_field_of_a_request_can_be_filled_in():
    paths = {
        path for name in specs() for path in (name, name.partition(".")[0], name.rpartition(".")[0])
    }
    assert (
        TuneRequest.model_fields.keys() - {"replace", "labels"} <= paths
    )  # offered where they are wanted
    assert {f"workload.{name}" for name in WorkloadGiven.model_fields} <= paths
    assert {f"budget.{name}" for name in BudgetGiven.model_fields} <= paths
    assert {f"knobs.{name}" for name in KNOBS} <= paths


def test_all_that_can_be_given_is_asked():
    request = _request(
        **{
            VERSIONS: "torch=2.13.0, accelerate==1.15.0",
            FRAMEWORK: "accelerate",
            "knobs.sharding": ["full_shard", "hybrid_shard"],
            "knobs.tp_size": "1, 2 4",
            "knobs.sync_each_batch": ["false"],
            "budget.max_probes": "12",
            "budget.wall_s": "1.5h",
            "budget.gpu_s": "90",
            "headroom": ".1",
            "tolerance": "0.02",
            "memory_limit_gib": "60.5",
            "pool": "h100s",
            "sampler": "tpe",
            "workload.reduce_dtype": "fp32",
            "workload.loss": "own_dtype",
            "workload.tensor_parallel": "gathered_logits",
            "workload.packing.variant": "varlen",
            "workload.packing.documents": '{"mean": 512}',
            "workload.adapter.method": "lora",
            "workload.adapter.rank": "8",
            "workload.adapter.target_modules": "q_proj, v_proj",
            "workload.adapter.modules_to_save": "lm_head",
        }
    )
    assert request["framework"] == {
        "name": "accelerate",
        "versions": {"torch": "2.13.0", "accelerate": "1.15.0"},
    }
    assert request["knobs"] == {
        "sharding": ["full_shard", "hybrid_shard"],
        "tp_size": [1, 2, 4],
        "sync_each_batch": [False],
    }
    assert request["budget"] == {"max_probes": 12, "wall_s": 5400.0, "gpu_s": 90.0}
    assert (request["headroom"], request["memory_limit_gib"]) == (0.1, 60.5)
    assert request["workload"]["reduce_dtype"] == "fp32"
    assert request["workload"]["loss"] == "own_dtype"
    assert request["workload"]["tensor_parallel"] == "gathered_logits"
    assert read_request(request).workload.adapter == Adapter(
        rank=8, target_modules=("q_proj", "v_proj"), modules_to_save=("lm_head",)
    )
    assert read_request(request).workload.packing == Packing(documents=((512, 1),))


def test_a_pasted_configuration_is_the_model():
    pasted = {MODEL: "", CONFIG: json.dumps(TINY), MODEL_NAME: "our <b>model</b>"}
    request = _request(**pasted, **{"workload.sequence_length": "32"})
    assert request["workload"]["model"] == TINY
    assert request["workload"]["model_name"] == "our <b>model</b>"


@pytest.mark.parametrize(
    ("nodes", "ranks", "spelled"), [("1", "2", "cpu:2"), ("2", "2", "2x2xcpu")]
)
def test_cpu_ranks_are_of_whoever_works(nodes, ranks, spelled):
    request = _request(**{GPU: "CPU", NODES: nodes, GPUS_PER_NODE: ranks})
    assert request["cluster"] == spelled


def test_nothing_typed_says_all_that_is_needed():
    wrong = all_wrong(read_form({}))
    assert {one.name for one in wrong} == {
        MODEL,
        "workload.sequence_length",
        "workload.global_batch_size",
        GPU,
        NODES,
        GPUS_PER_NODE,
    }
    assert {one.said for one in wrong} == {"Is required"}


def test_every_wrong_field_is_told_beside_it_at_once():
    targets, saved = "workload.adapter.target_modules", "workload.adapter.modules_to_save"
    frozen = "workload.frozen"
    assert set(WRONG) == set(specs()) - {CONFIG, MODEL_NAME, CLUSTER, targets, saved, frozen}
    assert set(_said(**WRONG)) == set(WRONG)
    lora = {"workload.adapter.method": "lora"}
    for field in (targets, saved):
        assert set(_said(**lora, **{field: "lm_head, q_proj, query"})) == {field}  # of a model
    assert set(_said(**{frozen: "head, layers..0"})) == {frozen}
    assert _said(**{"workload.adapter.rank": "8"}) == {
        "workload.adapter.method": "Is required in an object: lora, qlora"
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{bad", "Is not JSON: expecting property name"),
        ("[1]", "Must be an object of fields"),
        ('"llama"', "Must be an object of fields"),
        ('{"hidden_size": 1, "hidden_size": 2}', "hidden_size is there twice"),
        ('{"hidden_size": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "Is not JSON that can be read"),
        ('{"a": ' + "9" * 5000 + "}", "Is not JSON that can be read"),
        ('{"model_type": "mamba"}', "mamba"),
        ('{"model_type": "llama", "hidden_size": 0}', "hidden_size: "),
        ('{"model_type": "llama", "auto_map": {"x": "y"}}', "auto_map"),
    ],
)
def test_what_is_wrong_with_a_pasted_configuration(text, said):
    found = _said(**{MODEL: "", CONFIG: text, MODEL_NAME: "ours"})
    assert list(found) == [CONFIG]
    assert said in found[CONFIG]


def test_it_comes_back_as_it_was_typed():
    texts = _texts({**GOOD, **WRONG, "knobs.sharding": ["ddp", "zero9"]})
    asked = read_form(texts)
    form = form_of(texts, all_wrong(asked))
    shown = {c.spec.name: c for s in form.sections for c in (*s.controls, *s.folded)}
    for name, values in texts.items():
        assert list(shown[name].values) == values
    assert [one for one in shown.values() if one.errors] == [
        shown[n] for n in specs() if n in WRONG
    ]
    assert [place for place, _ in form.errors] == [
        specs()[name].id for name in specs() if name in WRONG
    ]


@given(
    st.dictionaries(st.sampled_from(sorted(specs())), st.lists(st.text(max_size=40), max_size=3))
)
def test_whatever_is_typed_is_either_asked_or_told(texts):
    asked = read_form(texts)
    wrong = all_wrong(asked)
    assert all(one.said and (one.name in specs() or one.name == "") for one in wrong)
    form = form_of(texts, wrong)
    assert len(form.errors) == len({(one.name, one.said) for one in wrong})
    if not wrong:
        read_request({name: value for name, value in asked.request.items() if value is not None})


CATALOGUE = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 64}
OWN_GPU = {"name": "ours", "memory_bytes": 2**36}
QUESTIONS = [
    PREDICTED,
    MEASURED,
    {"workload": CATALOGUE, "cluster": "4x8xh100-80gb", "fidelity": "predicted"},
    {"workload": CATALOGUE, "cluster": "2x4xcpu"},
    {"workload": WORKLOAD, "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": OWN_GPU}},
    {
        "workload": {**WORKLOAD, "model_name": '<b>"ours"</b>', "optimizer": "sgd"},
        "cluster": {
            "nodes": 2,
            "gpus_per_node": 4,
            "gpu": "a100-80gb",
            "inter_node": {"bytes_per_s": 1e9},
        },
        "framework": {"name": "accelerate", "versions": {"accelerate": "1.15.0"}},
        "knobs": {"sharding": ["full_shard"], "tp_size": [1, 2], "sync_each_batch": [False]},
        "budget": {"max_probes": 7, "wall_s": 90.5, "gpu_s": 3600},
        "tolerance": 0.02,
        "headroom": 0.1,
        "pool": "h100s",
    },
    {"workload": WORKLOAD, "cluster": "1xh100-80gb", "memory_limit_gib": 12.5},
]


def _study(body):
    request = read_request(body)
    question = request.question(installed_versions())
    limits = request.limits_at(request.fidelity or Fidelity.MEASURED)
    return Study(id="st-0123456789ab", question=question, limits=limits, state=StudyState.DONE)


@pytest.mark.parametrize("body", QUESTIONS)
def test_it_asks_the_same_on_the_same_terms(body):
    study = _study(body)
    asked = read_form(texts_of_study(study))
    assert all_wrong(asked) == ()
    request = read_request({name: v for name, v in asked.request.items() if v is not None})
    assert request.question(installed_versions()) == study.question
    assert request.fidelity is not None
    assert request.limits_at(request.fidelity) == study.limits
