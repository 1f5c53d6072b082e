"""Cases: what may be written, and how what is wrong is named."""

import io
import json
from typing import Any

import pytest

from tuner.client.cases import NotCoveredError, read_case
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.errors import UsageError
from tuner.model import published_model as read

GPU = {"name": "mine", "memory_bytes": 2**36, "dense_bf16_flops_per_s": 1e15}


def test_a_case_with_all_its_fields(lab: Any) -> None:
    case = read_case(
        lab.case(
            workload__model="meta-llama/Llama-3.1-8B",
            workload__optimizer="sgd",
            workload__precision="bf16_mixed",
            workload__reduce_dtype="fp32",
            headroom=0,
            memory_limit_gib=1.5,
            id=[1, {"any": "thing"}],
        )
    )
    workload = case.question.workload
    assert workload.model == read("llama-3.1-8b")
    assert workload.optimizer is Optimizer.SGD
    assert workload.precision is Precision.BF16_MIXED
    assert workload.reduce_dtype is ReduceDtype.FP32
    assert (case.headroom, case.limit_bytes) == (0.0, 3 * 2**29)
    assert case.notes == ("headroom is not applied: memory_limit_gib is taken as it is",)
    assert case.settings == Settings(
        sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=2
    )


def test_what_is_left_out_has_defaults(lab: Any) -> None:
    written = lab.case(settings={})
    del written["framework"]
    case = read_case({**written, "cluster": "a100-80gb"})
    assert case.question.framework.name == "torch"
    assert (case.headroom, case.limit_bytes) == (0.05, None)
    assert case.settings == Settings(gradient_accumulation_steps=32)


def test_the_parts_of_an_answer_can_be_asked_again(lab: Any) -> None:
    case = read_case(lab.case())
    question: Question = case.question
    again = read_case(
        json.loads(
            json.dumps(
                {
                    "workload": question.workload.as_dict(),
                    "cluster": question.cluster.as_dict(),
                    "framework": question.framework.as_dict(),
                    "settings": case.settings.as_dict(),
                }
            )
        )
    )
    assert again == case


def test_settings_as_text_are_settings(lab: Any) -> None:
    text = read_case(lab.case(settings="sharding=full_shard, micro_batch_size=2"))
    assert text == read_case(lab.case())


def test_a_cluster_of_ones_own(lab: Any) -> None:
    link = {"bytes_per_s": 1e11, "latency_s": 1e-5}
    cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": GPU, "intra_node": link}
    found = read_case(lab.case(cluster=cluster)).question.cluster
    assert found.gpu.memory_bytes == 2**36
    assert found.intra_node.bytes_per_s == 1e11


@pytest.mark.parametrize("gpu", ["h100-80gb", {"name": "H100_80GB"}])
def test_a_gpu_is_named_in_two_ways(lab: Any, gpu: Any) -> None:
    cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": gpu}
    found = read_case(lab.case(cluster=cluster)).question.cluster
    assert found == parse_cluster("8xh100-80gb")


def test_knobs_that_are_dead_are_said(lab: Any) -> None:
    case = read_case(
        lab.case(cluster="a100-80gb", settings={"sharding": "ddp", "sync_each_batch": False})
    )
    assert case.settings.sync_each_batch is True
    assert len(case.notes) == 1
    assert case.notes[0].startswith("sync_each_batch is true, not false as asked")


@pytest.mark.parametrize("knob", ["tp_recompute_allgather", "sync_each_batch"])
def test_knobs_that_were_not_written_are_not_said(lab: Any, knob: str) -> None:
    assert read_case(lab.case(settings={"sharding": "full_shard"})).notes == ()


def test_a_value_that_was_not_written_is_not_refused(lab: Any) -> None:
    """With accelerate 0.28 to 0.30 the default of sync_each_batch trains wrongly."""
    framework = {"name": "accelerate", "versions": {"accelerate": "0.29.0"}}
    settings = "sharding=full_shard,micro_batch_size=1"
    case = read_case(lab.case(framework=framework, settings=settings))
    assert case.settings.sync_each_batch is False
    (note,) = case.notes
    assert note.startswith("sync_each_batch is false: accelerate 0.28 to 0.30 takes")
    with pytest.raises(UsageError, match=r"settings\.sync_each_batch: got 'true'"):
        read_case(lab.case(framework=framework, settings=f"{settings},sync_each_batch=true"))


WRONG = [
    ({"extra": 1}, "extra", "no such field"),
    ({"workload": 5}, "workload", "must be an object"),
    ({"workload__model": "lama-3.1-8b"}, "workload.model", "did you mean llama-3.1-8b"),
    ({"workload__model": "/etc/passwd"}, "workload.model", "no such name"),
    ({"workload__model": "x" * 100_000}, "workload.model", "no such name"),
    ({"workload__model": []}, "workload.model", "must be an object"),
    ({"workload__model__hidden_size": "64"}, "workload.model.hidden_size", "must be an integer"),
    ({"workload__model__hidden_size": True}, "workload.model.hidden_size", "must be an integer"),
    ({"workload__model__hidden_size": 10**400}, "workload.model.hidden_size", "integer"),
    ({"workload__model__auto_map": {"a": "b"}}, "workload.model.auto_map", "names code"),
    ({"workload__model__model_type": 5}, "workload.model.model_type", "must be one of"),
    ({"workload__model__model_type": None}, "workload.model.model_type", "must be one of"),
    ({"workload__model_name": "\n"}, "workload.model_name", "printable"),
    ({"workload__sequence_length": "64"}, "workload.sequence_length", "must be an integer"),
    ({"workload__sequence_length": True}, "workload.sequence_length", "must be an integer"),
    ({"workload__sequence_length": 1e3}, "workload.sequence_length", "must be an integer"),
    ({"workload__sequence_length": 512}, "workload.sequence_length", "takes 256 at most"),
    ({"workload__global_batch_size": 0}, "workload.global_batch_size", "must be an integer"),
    ({"workload__global_batch_size": 4}, "workload.global_batch_size", "data-parallel size, 8"),
    ({"workload__optimizer": "lion"}, "workload.optimizer", "adamw_8bit"),
    ({"workload__optimizer": ["adamw"]}, "workload.optimizer", "adamw_8bit"),
    ({"workload__precision": None}, "workload.precision", "bf16_mixed"),
    ({"workload__reduce_dtype": "fp8"}, "workload.reduce_dtype", "bf16, fp32"),
    ({"workload__batch": 1}, "workload.batch", "no such field"),
    ({"cluster": "8xh100-80bg"}, "cluster", "did you mean h100-80gb"),
    ({"cluster": "8xh100"}, "cluster", "there are several"),
    ({"cluster": "cluster.toml"}, "cluster", "no file is read"),
    ({"cluster": "x" * 5000}, "cluster", "1000 characters"),
    ({"cluster": "0xh100-80gb"}, "cluster", "must be from 1"),
    ({"cluster": 8}, "cluster", "must be an object"),
    ({"cluster": {"nodes": 1, "gpus_per_node": 8}}, "cluster.gpu", "is required"),
    ({"cluster": {"nodes": True, "gpus_per_node": 8, "gpu": GPU}}, "cluster.nodes", "whole"),
    (
        {"cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": {**GPU, "memory_bytes": "80"}}},
        "cluster.gpu.memory_bytes",
        "whole number",
    ),
    (
        {"cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-80bg"}},
        "cluster.gpu",
        "did you mean",
    ),
    ({"framework": "torhc"}, "framework", "did you mean torch"),
    ({"framework": ["torch"]}, "framework", "must be an object"),
    ({"framework": {"name": 1}}, "framework.name", "must be one of"),
    ({"framework": {"name": "jax"}}, "framework.name", "no such name"),
    ({"framework": {"version": 1, "name": "torch"}}, "framework.version", "no such field"),
    ({"framework__versions": {"torch": 2}}, "framework.versions", "must be a version"),
    ({"framework__versions": {"torhc": "2"}}, "framework.versions", "did you mean torch"),
    ({"headroom": "0.05"}, "headroom", "must be a number"),
    ({"headroom": True}, "headroom", "must be a number"),
    ({"headroom": 1}, "headroom", "below 1"),
    ({"headroom": float("nan")}, "headroom", "must be a number"),
    ({"memory_limit_gib": 0}, "memory_limit_gib", "above 0"),
    ({"memory_limit_gib": "70"}, "memory_limit_gib", "above 0"),
    ({"memory_limit_gib": 10**400}, "memory_limit_gib", "above 0"),
    ({"script": True}, "script", "must be a table"),
    ({"script": {"use_cache": 1}}, "script.use_cache", "true or false"),
    ({"script": {"cache": True}}, "script.cache", "no such field"),
    ({"settings": None}, "settings", "is required"),
    ({"workload": None}, "workload", "is required"),
    ({"cluster": None}, "cluster", "is required"),
    ({"workload__model": None}, "workload.model", "is required"),
    ({"settings": "sharding"}, "settings", "knob=value"),
    ({"settings": "tp_size=1,tp_size=1"}, "settings", "given twice"),
    ({"settings": "tp=1"}, "settings", "no such knob"),
    ({"settings": "tp_size=two"}, "settings.tp_size", "positive integer"),
    ({"settings__tp": 2}, "settings.tp", "no such knob"),
    ({"settings__tp_size": "2"}, "settings.tp_size", "positive integer"),
    ({"settings__tp_size": True}, "settings.tp_size", "positive integer"),
    ({"settings__tp_size": 10**30}, "settings.tp_size", "positive integer"),
    ({"settings__sync_each_batch": "true"}, "settings.sync_each_batch", "true or false"),
    ({"settings__sync_each_batch": 1}, "settings.sync_each_batch", "true or false"),
    ({"settings__sharding": "zero3"}, "settings.sharding", "must be one of"),
    ({"settings__sharding": {}}, "settings.sharding", "must be one of"),
    # rules of the space
    ({"settings__tp_size": 3}, "settings.tp_size", "must divide heads (4)"),
    ({"settings__pp_size": 2}, "settings.pp_size", "cannot be had here"),
    ({"settings__micro_batch_size": 3}, "settings.micro_batch_size", "must divide 4"),
    (
        {"settings__gradient_accumulation_steps": 1},
        "settings.gradient_accumulation_steps",
        "global batch 32 = micro batch 2 x accumulation x data-parallel size 8",
    ),
    ({"settings__sharding": "hybrid_shard"}, "settings.sharding", "more than one node"),
    (
        {"settings": {"tp_size": 2, "sharding": "ddp"}},
        "settings.sharding",
        "DistributedDataParallel takes no DTensor",
    ),
    (
        {"framework": "nanotron", "cluster": "1xa100-80gb", "settings": {"sharding": "full_shard"}},
        "settings.sharding",
        "nanotron has ddp, zero1",
    ),
    (
        {"cluster": "1xa100-80gb", "settings": {"sharding": "zero1"}},
        "settings.sharding",
        "torch has ddp",
    ),
    ({"settings": {"sharding": "ddp", "cpu_offload": True}}, "settings.cpu_offload", "sharding"),
]


@pytest.mark.parametrize("name", ["framework", "headroom", "memory_limit_gib", "script"])
def test_null_is_as_good_as_left_out(lab: Any, name: str) -> None:
    without = lab.case(framework="torch")
    assert read_case({**without, name: None}) == read_case(
        {field: value for field, value in without.items() if field != name}
    )


def test_the_first_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"^workload: got nothing; is required$"):
        read_case({"workload": None})


@pytest.mark.parametrize("gib", [0.1, 80.1, 79.99999])
def test_a_limit_is_told_as_it_was_given(lab: Any, gib: float) -> None:
    case = read_case(lab.case(memory_limit_gib=gib))
    assert case.memory_limit_gib == gib
    assert case.limit_bytes == pytest.approx(gib * 2**30, abs=0.5)


def test_sizes_that_are_left_out_are_said(lab: Any) -> None:
    model = {name: value for name, value in lab.tiny.items() if name != "max_position_embeddings"}
    case = read_case(lab.case(workload__model=model))
    assert case.notes == (
        "not in the model's configuration, so taken as transformers does: max_position_embeddings"
        " 2048",
    )
    asked = lab.case(workload__model=model, workload__sequence_length=4096)
    with pytest.raises(UsageError, match="without max_position_embeddings it has transformers'"):
        read_case(asked)
    bare = lab.case(workload__model={"model_type": "mixtral"})
    assert "hidden_size 4096" in read_case(bare).notes[0]
    assert "num_local_experts 8" in read_case(bare).notes[0]


def test_other_spellings_of_a_size_are_not_left_out(lab: Any) -> None:
    model = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
    (note,) = read_case(lab.case(workload__model=model)).notes
    assert note.endswith("does: vocab_size 50257")


@pytest.mark.parametrize(
    ("changes", "field", "why"),
    WRONG,
    ids=[f"{n}-{field}" for n, (_, field, _) in enumerate(WRONG)],
)
def test_what_is_wrong_is_named(lab: Any, changes: Any, field: str, why: str) -> None:
    for _ in range(2):  # the second time from what is kept
        with pytest.raises(UsageError) as caught:
            read_case(lab.case(**changes))
        assert caught.value.field == field
        assert why in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("field", ["workload", "cluster", "settings"])
def test_what_is_missing_is_named(lab: Any, field: str) -> None:
    values = lab.case()
    del values[field]
    with pytest.raises(UsageError, match="is required") as caught:
        read_case(values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workload__model": {"model_type": "mamba", "d_model": 5}}, "model type 'mamba'"),
        ({"cluster": "8xb300"}, "GPU 'b300'"),
        ({"cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "b300"}}, "GPU 'b300'"),
        ({"cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "b300"}}}, "GPU 'b300'"),
    ],
)
def test_what_is_not_covered_is_no_mistake(lab: Any, changes: Any, why: str) -> None:
    with pytest.raises(NotCoveredError, match=why):
        read_case(lab.case(**changes))


def test_all_that_is_not_covered_is_said(lab: Any) -> None:
    with pytest.raises(NotCoveredError, match=r"'mamba'.*'b300'"):
        read_case(lab.case(workload__model={"model_type": "mamba"}, cluster="8xb300"))


def test_a_mistake_beside_what_is_not_covered_is_a_mistake(lab: Any) -> None:
    with pytest.raises(UsageError) as caught:
        read_case(lab.case(cluster="8xb300", settings={"tp_size": 0}))
    assert caught.value.field == "settings.tp_size"


def test_a_workload_is_read_once(lab: Any) -> None:
    first, second = read_case(lab.case()), read_case(json.load(io.StringIO(json.dumps(lab.case()))))
    assert first.question.workload is second.question.workload
    assert first.question.cluster is second.question.cluster
