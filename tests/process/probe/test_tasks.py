"""Masked language models and classifiers: what ranks train, and what dry runs say of them."""

import pytest

from tests.process.probe.specs import dry_runs, measure, peaks_agree, spec

pytestmark = pytest.mark.xdist_group("ranks")

MASKED, CLASSES = "masked_lm", "sequence_classification"
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 512, "max_position_embeddings": 128, "num_labels": 3,
}  # fmt: skip
ENCODERS = {
    "bert": SIZES,
    "roberta": SIZES,
    "modernbert": {**SIZES, "pad_token_id": 0},
    "deberta-v2": {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": {
        "dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 128, "vocab_size": 512,
        "max_position_embeddings": 128, "num_labels": 3,
    },
    "electra": {**SIZES, "embedding_size": 32},
}  # fmt: skip
STEPS, SAME, NEAR = 3, 1e-5, 0.01
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout": 0.0,
         "attention_dropout": 0.0, "seq_classif_dropout": 0.0}  # fmt: skip


def of_task(name, task, ranks, **choices):
    fields = {**ENCODERS[name], "model_type": name, **choices.pop("fields", {})}
    return spec(
        fields, ranks, task=task, tracked_steps=STEPS, measured_steps=1, minimum_steps=1, **choices
    )


def test_memory_of_two_ranks_is_that_of_a_dry_run(preloaded, tmp_path):
    """With dropout, which all of them have; sharded where no bias is tied across groups."""
    specs = {
        f"{name} {task}": of_task(name, task, 2) for name in ENCODERS for task in (MASKED, CLASSES)
    }
    sharded = {"sharding": "full_shard", "activation_checkpointing": "full"}
    specs |= {
        f"sharded {name} {task}": of_task(name, task, 2, **sharded)
        for name, task in (("bert", CLASSES), ("distilbert", MASKED), ("modernbert", MASKED))
    }
    several = {"fields": {"problem_type": "multi_label_classification"}}
    specs["several labels at once"] = of_task("bert", CLASSES, 2, **several)
    specs["one number"] = of_task("modernbert", CLASSES, 2, fields={"num_labels": 1})
    records = measure(preloaded, tmp_path, list(specs.values()))
    traces = dry_runs(preloaded, specs)
    for (name, values), record in zip(specs.items(), records, strict=True):
        low, high = record["memory"]["allocated_low_bytes"], record["memory"]["allocated_bytes"]
        assert peaks_agree(traces[name], low, high, NEAR), name
        again = 4 * 2 if values["settings"]["activation_checkpointing"] == "full" else 0
        assert record["recomputed_layers"] == again, name
        assert record["optimizer_steps"] == record["expected_optimizer_steps"], name


def test_two_ranks_train_what_one_process_trains(preloaded, tmp_path):
    """Each micro-batch predicts as many tokens, or labels, as any other; without dropout."""
    cases = [
        ("bert", MASKED, {"sync_each_batch": False}),
        ("bert", CLASSES, {"sharding": "full_shard", "activation_checkpointing": "full"}),
        ("distilbert", MASKED, {"sharding": "shard_grad_op", "sync_each_batch": False}),
    ]
    count = {"gradient_accumulation_steps": 3, "micro_batch_size": 2, "fields": STILL}
    one = [of_task(n, task, 1, **{**count, "micro_batch_size": 4}) for n, task, _ in cases]
    alone = measure(preloaded, tmp_path / "1", one)
    both = [of_task(n, task, 2, **count, **knobs) for n, task, knobs in cases]
    for record, reference in zip(measure(preloaded, tmp_path / "2", both), alone, strict=True):
        pairs = zip(trained(record), trained(reference), strict=True)
        assert max(abs(got / want - 1) for got, want in pairs) <= SAME
    # the labels are another task's
    assert abs(trained(alone[0])[0] / trained(alone[1])[0] - 1) > 0.5


def trained(record):
    found = record["losses"][:STEPS] + record["gradient_norms"]
    assert len(found) == 2 * STEPS
    return found


def test_a_bias_tied_across_groups_is_not_sharded(preloaded):
    """So the catalogue says of such types; where torch takes them, ``shards`` has no use left."""
    with pytest.raises(AssertionError, match="already managed by another FSDP group"):
        dry_runs(preloaded, {"bert": of_task("bert", MASKED, 2, sharding="full_shard")})
