"""Tasks beside causal language modelling: how they are read, what is legal, and what is written."""

import ast
import json
from dataclasses import replace

import pytest
import yaml

from tests.questions import question_about
from tests.unit.launchfiles.cases import ABOUT, STATED
from tuner.catalog.models import Task, task_types
from tuner.client.cases import read_case
from tuner.client.request import read_here, read_request
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Sharding, parse_settings
from tuner.core.framework import framework
from tuner.core.packing import Packing
from tuner.core.study import Question
from tuner.core.workload import Loss, Precision, Workload
from tuner.cost.prediction import predict
from tuner.dryrun import plan_dry_runs
from tuner.errors import ModelConfigError, UsageError
from tuner.launchfiles import FORMATS, export, why_not
from tuner.model import read_model_config
from tuner.search.trials import workload_features
from tuner.space import enumerate_space

MASKED, CLASSES = Task.MASKED_LM, Task.SEQUENCE_CLASSIFICATION
BERT = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 128,
}  # fmt: skip
LLAMA = {
    **BERT, "model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


def model_of(task, **fields):
    return read_model_config({**BERT, **fields}, "m", task)


def asked(task, cluster="8xa100-80gb", stack="torch", **more):
    fields, tokens = more.pop("fields", {}), more.pop("sequence_length", 64)
    batch, known = more.pop("global_batch_size", 64), framework(stack, {}, STATED)
    return question_about(
        model_of(task, **fields), cluster, known, tokens=tokens, batch=batch, **more
    )


def test_a_task_is_part_of_what_is_asked_and_the_default_is_left_out():
    found = [asked(task) for task in (Task.CAUSAL_LM, MASKED, CLASSES)]
    assert [one.as_dict()["workload"].get("task") for one in found] == [None, MASKED, CLASSES]
    assert len({one.identity for one in found}) == 3
    assert len({one.workload.model.fingerprint for one in found}) == 3
    for one in found:
        assert Question.from_dict(one.as_dict()) == one
        spec = plan(one)["spec"]
        assert spec.get("task") == one.as_dict()["workload"].get("task")


def test_images_are_so_many_tokens_of_a_sequence():
    """Their number is part of the question; models that see none have none."""
    sees = Task.IMAGE_TEXT_TO_TEXT
    model = read_model_config({"model_type": "gemma3", "text_config": LLAMA}, "m", sees)
    given = {"sequence_length": 64, "global_batch_size": 8}
    work = Workload(model=model, image_tokens=8, **given)
    assert work.is_traced
    assert Workload.from_dict(work.as_dict()) == work
    assert work.as_dict()["image_tokens"] == 8
    assert "8 tokens of images" in work.unlike_usual
    assert replace(work, adapter=Adapter()).adapter is not None
    for wrong in (0, 64, -1):
        with pytest.raises(UsageError, match="image_tokens"):
            replace(work, image_tokens=wrong)
    with pytest.raises(UsageError, match="needs task image_text_to_text"):
        replace(work, model=model_of(MASKED))
    with pytest.raises(UsageError, match="is not covered for gemma3 image_text_to_text: lora is"):
        replace(work, adapter=Adapter(method=AdapterMethod.QLORA))
    with pytest.raises(ModelConfigError, match="no type that transformers builds for image_text"):
        read_model_config({"model_type": "qwen3_vl", "text_config": LLAMA}, "m", sees)


def plan(question):
    settings, versions = parse_settings("sharding=ddp"), {**STATED, "python": "3.11"}
    found = plan_dry_runs(
        question.workload, question.cluster, question.framework, settings, versions
    )
    # two shallow copies, of which each says what it is trained for
    assert [len(one["copies"]) for one in found.requests] == [3, 3]
    return found.requests[0]


def test_labels_are_what_the_configuration_says():
    given = [
        ({}, {"num_labels": 2}),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0}}, {"num_labels": 3}),
        ({"num_labels": 1, "problem_type": "regression"},
         {"num_labels": 1, "problem_type": "regression"}),
    ]  # fmt: skip
    for written, wanted in given:
        fields = model_of(CLASSES, **written).fields
        names = ("num_labels", "problem_type", "id2label", "label2id")
        assert {name: fields[name] for name in names if name in fields} == wanted
        assert "num_labels" not in model_of(MASKED, **written).fields
        again = model_of(CLASSES, **written)
        assert read_model_config(again.as_config(), "m", CLASSES) == again
    for name, value in {"num_labels": -1, "problem_type": "ner"}.items():
        with pytest.raises(ModelConfigError, match=name):
            model_of(CLASSES, **{name: value})
    with pytest.raises(ModelConfigError, match=r"masked_lm \(did you mean deberta"):
        model_of(MASKED, model_type="debert")
    with pytest.raises(ModelConfigError, match="no type that transformers builds for masked_lm"):
        model_of(MASKED, model_type="llama")


def test_sequences_are_as_long_as_there_are_positions():
    """RoBERTa's begin after its token of padding; what a file leaves out is its class's default."""
    lengths = [
        ({}, 128),
        ({"max_position_embeddings": None}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 0}, 513),
        ({"model_type": "modernbert", "max_position_embeddings": None}, 8192),
    ]
    for fields, longest in lengths:
        assert model_of(MASKED, **fields).max_sequence_length == longest
        work = {"sequence_length": longest, "global_batch_size": 8}
        asked(MASKED, fields=fields, **work)
        written = {"task": "masked_lm", "model": {**BERT, **fields}, **work}
        written["sequence_length"] += 1
        doors = [
            lambda w=written: read_request({"workload": w, "cluster": "l4"}),
            lambda w=written: read_case(
                {"workload": w, "cluster": "l4", "settings": "sharding=ddp"}
            ),
            lambda w=written: read_here({**w, "cluster": "l4"}),
        ]
        for door in doors:
            with pytest.raises(UsageError, match=f"takes {longest} at most"):
                door()


def test_what_is_not_for_these_tasks_is_refused_by_name():
    refused = {
        "packing": {"packing": Packing()},
        "adapter": {"adapter": Adapter()},
        "loss": {"loss": Loss.FP32},
        "task": {"stack": "nanotron"},
    }
    for field, more in refused.items():
        with pytest.raises(UsageError) as caught:
            asked(MASKED, **more)
        assert caught.value.field == field
        assert "masked_lm" in str(caught.value)
    with pytest.raises(UsageError, match="task"):
        read_request({"workload": {**asked(MASKED).workload.as_dict(), "task": "ner"}})


def test_knobs_that_a_type_has_not_are_inactive_or_refused():
    """Types of the catalogue: whether FSDP2 takes them, and whether layers are checkpointed."""
    shard = {Sharding.FULL_SHARD, Sharding.SHARD_GRAD_OP}
    cases = [
        (MASKED, {}, False, True),
        (CLASSES, {}, True, True),
        (MASKED, {"model_type": "distilbert"}, True, True),
        (CLASSES, {"model_type": "mpnet"}, True, False),
        (CLASSES, LLAMA, True, True),
    ]
    for task, fields, shards, checkpoints in cases:
        question = asked(task, fields=fields)
        space = enumerate_space(question)
        assert {one.tp_size for one in space.legal} == {1}
        assert not any(one.fused_loss for one in space.legal)
        assert (shard <= {one.sharding for one in space.legal}) is shards
        assert (len({one.activation_checkpointing for one in space.legal}) > 1) is checkpoints
        found = predict(question.workload, question.cluster, question.framework, space.legal[0])
        assert found.allocated_bytes.value is None
        assert f"{task} is known by dry runs alone" in found.why
    sharded = replace(asked(MASKED), knobs={"sharding": (Sharding.FULL_SHARD,)})
    with pytest.raises(UsageError, match="tied across two groups"):
        enumerate_space(sharded)
    told = replace(
        asked(CLASSES, fields={"model_type": "mpnet"}),
        knobs={"activation_checkpointing": ("full",)},
    )
    with pytest.raises(UsageError, match="mpnet sequence_classification has no gradient check"):
        enumerate_space(told)


def test_past_studies_of_other_unknown_models_are_far():
    cluster = parse_cluster("8xa100-80gb")
    one, same, other = (
        workload_features(asked(MASKED, fields=fields).workload, cluster)
        for fields in ({}, {}, {"hidden_size": 128})
    )
    assert (one == same).all()
    assert abs(one - other).max() > 1


NAMES = {MASKED: "AutoModelForMaskedLM", CLASSES: "AutoModelForSequenceClassification"}


@pytest.mark.parametrize("task", [MASKED, CLASSES])
@pytest.mark.parametrize("model_type", ["distilbert", "deberta-v2"])
def test_files_train_the_task(task, model_type):
    fields = {"model_type": model_type, "num_labels": 3}
    question = asked(task, fields=fields, precision=Precision.BF16_MIXED)
    known = task_types(task)[model_type]
    settings = parse_settings(f"sharding={'full_shard' if known.shards else 'ddp'}")
    for name in ("accelerate", "torch"):
        text = export(name, question, settings, ABOUT)
        assert f"{NAMES[task]}.from_pretrained(" in text
        assert f'attn_implementation="{"sdpa" if known.sdpa else "eager"}"' in text
        assert ("num_labels=3" in text) is (task is CLASSES)
        assert "labels are" in text
        if name == "torch":
            ast.parse(text)
    wrapped = yaml.safe_load(export("accelerate", question, settings, ABOUT)).get("fsdp_config", {})
    layer = wrapped.get("fsdp_transformer_layer_cls_to_wrap")
    assert layer == (known.layer if known.shards else None)
    by_trainer = replace(question, framework=framework("trainer", {}, STATED))
    config = json.loads(export("trainer", by_trainer, settings, ABOUT)).get("fsdp_config", {})
    assert config.get("transformer_layer_cls_to_wrap", [None]) == [layer]
    beside = " ".join(FORMATS["trainer"].beside(by_trainer, settings))
    assert NAMES[task] in beside
    assert ("num_labels=3" in beside) is (task is CLASSES)


def test_torchtitan_is_of_causal_language_models():
    found = why_not("torchtitan", asked(CLASSES, fields=LLAMA), parse_settings("sharding=ddp"))
    assert found is not None
    assert "torchtitan trains causal language models" in found
