"""Every configuration trains what one process trains, with the collectives that it must cause.

The same CPU ranks are what dry runs and rank 0 alone are held to: their peaks and collectives.

Losses and gradient norms of three optimizer steps with accumulation 3, in fp32, are compared with
one process without any of it. Step 0 alone shows nothing of some faults, such as a gathered buffer
that is used again before backward has read it.
"""

import itertools
from typing import Any

import pytest

from tests.process.probe.specs import (
    ACCUMULATION,
    GLOBAL_BATCH,
    MODELS,
    SHAPE,
    all_bytes,
    dry_runs,
    measure,
    peak_bytes,
    peaks_agree,
    spec,
)

pytestmark = pytest.mark.xdist_group("ranks")  # many processes: not several launches at once

Record = dict[str, Any]

LAYERS, STEPS = 2, 3
# of the models that training is compared of; no ranks divide the vocabulary
SMALL = {
    "num_hidden_layers": LAYERS, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 97,
    "max_position_embeddings": 64, "pad_token_id": 3,
}  # fmt: skip
# of the models that memory is compared of: products in bf16 take a CPU 50 times as long as in fp32
NARROW = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}
BIASED = {"attention_bias": True, "mlp_bias": True}
TRAINED = {
    name: {**fields, **SMALL, **(BIASED if name == "tied" else {})}
    for name, fields in MODELS.items()
    if name != "gpt2"
}
# Relative difference of training. Agreement is within 5e-7; planted faults were 7e-4 and more.
SAME = 1e-5
# Relative difference of peaks.
NEAR = 0.01
KNOBS = (
    "sharding", "sync_each_batch", "tp_size", "tp_recompute_allgather", "activation_checkpointing",
)  # fmt: skip
DEFERRED = {"sharding": "hybrid_shard", "sync_each_batch": True, "defer_all_reduce": True}
SPLIT = {"tp_size": 2, "tp_recompute_allgather": True, "activation_checkpointing": "full"}
MIXED = [SPLIT, {"sharding": "full_shard"}]


def named(case):
    return dict(zip(KNOBS, case, strict=True))


def training_spec(model, ranks, **knobs):
    """A spec whose global batch is always the same."""
    tp_size = knobs.get("tp_size", 1)
    return spec(
        TRAINED[model], ranks, gradient_accumulation_steps=ACCUMULATION, seed=11,
        warmup_steps=STEPS, tracked_steps=STEPS, measured_steps=1, minimum_steps=1,
        time_budget_s=1.0,
        micro_batch_size=GLOBAL_BATCH * tp_size // ranks // ACCUMULATION, **knobs,
    )  # fmt: skip


def memory_spec(model, ranks, **choices):
    """A spec whose third step and on are in steady state."""
    config = {**MODELS[model], **NARROW} if isinstance(model, str) else model
    return spec(
        config, ranks, sequence_length=64, tracked_steps=3, measured_steps=1, minimum_steps=1,
        **choices,
    )  # fmt: skip


def combinations(ranks, model, make=training_spec):
    """Specs over all knobs for a number of ranks, live ones both ways, by their knobs."""
    on_off, how = (True, False), ("none", "full")
    product, cases = itertools.product, list[tuple[Any, ...]]()
    if ranks == 2:
        cases += product(("ddp", "shard_grad_op", "full_shard"), on_off, [1], [False], how)
        cases += product(["ddp"], [True], [2], on_off, how)
    if ranks == 4:
        cases += product(["hybrid_shard"], on_off, [1], [False], how)
        cases += product(("shard_grad_op", "full_shard"), on_off, [2], on_off, how)
    if ranks == 8:
        cases += [
            (*case, "full" if case[3] else "none")
            for case in product(["hybrid_shard"], on_off, [2], on_off)
        ]
    specs = {f"{model} {case}": make(model, ranks, **named(case)) for case in cases}
    if ranks == 2:
        for sync in on_off:
            knobs = {"sharding": "full_shard", "sync_each_batch": sync, "cpu_offload": True}
            specs[f"{model} offload {sync}"] = make(model, ranks, **knobs)
    return specs


def references(preloaded, folder, *models):
    """Each model on one process, nothing sharded, nothing checkpointed."""
    records = measure(preloaded, folder, [training_spec(model, 1) for model in models])
    return dict(zip(models, records, strict=True))


@pytest.fixture(scope="module")
def alone(preloaded, tmp_path_factory):
    return references(preloaded, tmp_path_factory.mktemp("reference"), "tied", "mixtral", "qwen3")


def trained(record):
    """Losses and gradient norms of the steps that are compared."""
    found = record["losses"][:STEPS] + record["gradient_norms"]
    assert len(found) == 2 * STEPS
    return found


def difference(record, reference):
    """The largest, relative."""
    pairs = zip(trained(record), trained(reference), strict=True)
    return max(abs(got - want) / abs(want) for got, want in pairs)


def hold_training(model, specs, records, reference):
    bits = {}
    for (name, values), record in zip(specs.items(), records, strict=True):
        knobs, worst = values["settings"], difference(record, reference)
        assert worst <= SAME, f"{name}: off by {worst:.1e}"
        assert record["optimizer_steps"] == record["expected_optimizer_steps"], name
        check_data_parallel(model, knobs, record)
        if values.get("tensor_parallel", "sequence_parallel") != "sequence_parallel":
            check_whole_sequences(values, record)
        else:
            check_tensor_parallel(model, knobs, record)
        # gathering again instead of keeping changes no bit
        others = tuple(v for k, v in knobs.items() if k != "tp_recompute_allgather")
        assert bits.setdefault(others, trained(record)) == trained(record), name


@pytest.mark.long
def test_two_ranks_train_what_one_process_trains(alone, preloaded, tmp_path):
    """What no other has: a fused loss, inputs on the host, other precision; and a fault is seen."""
    cases = [
        {"sharding": "full_shard", "fused_loss": True},
        {"sharding": "shard_grad_op", "activation_checkpointing": "offload"},
    ]
    specs = {str(case): training_spec("tied", 2, **case) for case in cases}
    rounded = [training_spec("tied", 2, precision="bf16_mixed", **knobs) for knobs in MIXED]
    faulty = {**training_spec("tied", 2, **SPLIT), "faulty": True}
    records = measure(preloaded, tmp_path, [*specs.values(), *rounded, faulty])
    hold_training("tied", specs, records[:2], alone["tied"])
    for knobs, record in zip(MIXED, records[2:], strict=False):
        assert SAME < difference(record, alone["tied"]) < 0.03, knobs
    assert difference(records[-1], alone["tied"]) > 50 * SAME, "the fault is not seen"


def test_two_axes_train_what_one_process_trains(alone, preloaded, tmp_path):
    """Of four ranks: replicas of shards, and shards of split layers, of experts."""
    cases = [
        ("hybrid_shard", False, 1, False, "selective"),
        ("full_shard", False, 2, True, "offload"),
        ("shard_grad_op", True, 2, False, "every_2"),
    ]
    specs = {str(case): training_spec("mixtral", 4, **named(case)) for case in cases}
    specs["all-reduce put off"] = training_spec("mixtral", 4, **DEFERRED)
    records = measure(preloaded, tmp_path, list(specs.values()))
    hold_training("mixtral", specs, records, alone["mixtral"])


@pytest.mark.long
def test_whole_sequences_train_what_one_process_trains(alone, preloaded, tmp_path):
    """Tensor parallelism without sequence parallelism, beside FSDP; heads' norms, biases."""
    cases = [
        ("tied", {"tensor_parallel": "sharded_logits", "activation_checkpointing": "full"}),
        ("tied", {"tensor_parallel": "gathered_logits", "sharding": "full_shard"}),
        ("qwen3", {"tensor_parallel": "gathered_logits", "loss": "fp32"}),
        ("qwen3", {"tensor_parallel": "sharded_logits", "sharding": "shard_grad_op"}),
    ]
    specs = [training_spec(model, 4 if "sharding" in how else 2, tp_size=2, **how)
             for model, how in cases]  # fmt: skip
    for ranks in (2, 4):
        chosen = [i for i, one in enumerate(specs) if one["world_size"] == ranks]
        records = measure(preloaded, tmp_path / str(ranks), [specs[i] for i in chosen])
        for index, record in zip(chosen, records, strict=True):
            model = cases[index][0]
            hold_training(model, {str(cases[index]): specs[index]}, [record], alone[model])


@pytest.mark.long
@pytest.mark.parametrize("model", ["tied", "llama", "mixtral"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_knobs_train_what_one_process_trains(ranks, model, preloaded, tmp_path):
    reference = references(preloaded, tmp_path / "alone", model)[model]
    specs = combinations(ranks, model)
    records = measure(preloaded, tmp_path / "ranks", list(specs.values()))
    hold_training(model, specs, records, reference)


@pytest.mark.long
def test_all_models_with_a_plan_train_what_one_process_trains(preloaded, tmp_path):
    found = references(preloaded, tmp_path / "alone", *TRAINED)
    for name, knobs in (("split", SPLIT), ("plain", {"tp_size": 2})):
        specs = [training_spec(model, 2, **knobs) for model in TRAINED]
        records = measure(preloaded, tmp_path / name, specs)
        for model, values, record in zip(TRAINED, specs, records, strict=True):
            hold_training(model, {f"{model} {name}": values}, [record], found[model])


LORA = {
    "method": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.0, "target_modules": ["all-linear"],
}  # fmt: skip
DROPS = {**LORA, "dropout": 0.1}
QLORA = {**LORA, "method": "qlora", "quantize": "nf4", "double_quant": True}
QUANTIZED = {**QLORA, "dropout": 0.1}


def test_adapters_train_what_one_process_trains(preloaded, tmp_path):
    """Losses follow what adapters have learned: they move, all else stays, and no gradient is lost.

    Under FSDP2 layers alone are reduced: the embedding, the last norm and the head are frozen.
    """
    kinds = (LORA, QLORA)
    alone = measure(
        preloaded, tmp_path / "1", [training_spec("qwen3", 1, adapter=kind) for kind in kinds]
    )
    cases = [
        {"adapter": LORA, "sync_each_batch": False},
        {"adapter": LORA, "sharding": "full_shard", "activation_checkpointing": "full"},
        {"adapter": QLORA, "sharding": "full_shard", "activation_checkpointing": "full"},
    ]
    specs = [{**training_spec("qwen3", 2, **case), "moved": True} for case in cases]
    records = measure(preloaded, tmp_path / "2", specs)
    # four bits are another model's
    assert difference(alone[0], alone[1]) > 50 * SAME
    for case, record in zip(cases, records, strict=True):
        assert difference(record, alone[kinds.index(case["adapter"])]) <= SAME
        assert record["optimizer_steps"] == record["expected_optimizer_steps"]
        assert record["moved_frozen"] == 0
        trained, frozen = record["moved"]["trained"], record["moved"]["frozen"]
        assert trained == [LAYERS * 7 * 2] * 2  # two matrices beside each linear
        assert frozen == [0, LAYERS * 11 + 3]  # those linears, norms, also of q and k, and the rest
    for record in records[1:]:
        assert calls(record, "reduce_scatter", "dp_shard") == LAYERS * ACCUMULATION
    gathered = [row_bytes(record, "all_gather") for record in records[1:]]
    assert gathered[1] < 0.5 * gathered[0]  # packed weights, beside adapters and ends


def test_parts_are_frozen_or_trained_whole(preloaded, tmp_path):
    """Of a model trained in part, and of modules beside an adapter, of which peft trains copies."""
    saved = {**LORA, "modules_to_save": ["embed_tokens", "lm_head"]}
    parts = ["embeddings", "layers.0-0", "q_norm"]
    alone = measure(
        preloaded,
        tmp_path / "1",
        [training_spec("qwen3", 1, **one) for one in ({"adapter": saved}, {"frozen": parts}, {})],
    )
    cases = [
        (0, {"adapter": saved, "sync_each_batch": False}),
        (0, {"adapter": saved, "sharding": "full_shard", "activation_checkpointing": "full"}),
        (1, {"frozen": parts, "sync_each_batch": False}),
        (1, {"frozen": parts, "sharding": "full_shard", "activation_checkpointing": "full"}),
    ]
    specs = [{**training_spec("qwen3", 2, **case), "moved": True} for _, case in cases]
    of_layer = 7 + 4  # linears, and norms, also of q and k
    counts = [
        (LAYERS * 7 * 2 + 2, LAYERS * of_layer + 3),  # the model's own beside the copies
        ((LAYERS - 1) * (of_layer - 1) + 2, 1 + of_layer + (LAYERS - 1)),
    ]
    for (kind, _), record in zip(cases, measure(preloaded, tmp_path / "2", specs), strict=True):
        trained, frozen = counts[kind]
        assert record["moved"] == {"trained": [trained] * 2, "frozen": [0, frozen]}
        assert record["moved_frozen"] == 0
        assert difference(record, alone[kind]) <= SAME
    assert difference(alone[1], alone[2]) > 50 * SAME


def packed(variant, *documents):
    return {"packing": {"variant": variant, "documents": documents}}


def test_packed_rows_train_what_one_process_trains(preloaded, tmp_path):
    """All variants train the same, and something else than rows of one text, or without packing."""
    rows, whole = (16, 11, 5), (32,)
    how = [packed("varlen", *rows), packed("varlen", *whole), packed("position_ids", *whole)]
    specs = [training_spec("qwen3", 1, **one) for one in how]
    alone, undivided, one_text = measure(preloaded, tmp_path / "1", specs)
    cases = {
        "varlen": {"sync_each_batch": False, "adapter": None},
        "position_ids": {"sharding": "full_shard", "activation_checkpointing": "full"},
        "block_diagonal": {"sharding": "shard_grad_op", "sync_each_batch": False},
    }
    asked = [training_spec("qwen3", 2, **packed(v, *rows), **cases[v]) for v in cases]
    for record in measure(preloaded, tmp_path / "2", asked):
        assert difference(record, alone) <= SAME
    assert difference(one_text, undivided) <= SAME < 10 * SAME < difference(undivided, alone)


_VISION = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 56, "patch_size": 14,
}  # fmt: skip
SEES = {
    "gemma3": {
        "model_type": "gemma3", "mm_tokens_per_image": 4, "image_token_index": 5,
        "text_config": {**SHAPE, "head_dim": 16}, "vision_config": _VISION,
    },
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl", "image_token_id": 5, "vision_start_token_id": 6,
        "text_config": {
            **SHAPE, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6],
            },
        },
        "vision_config": {
            "depth": 4, "hidden_size": 64, "out_hidden_size": 128, "num_heads": 4,
            "intermediate_size": 128,
        },
    },
}  # fmt: skip
IMAGES = {"task": "image_text_to_text", "image_tokens": 8}
# Those that differ most from one another in memory, on two ranks.
CASES = {
    "ddp": {"precision": "bf16_mixed", "sync_each_batch": False},
    "checkpointing": {"sharding": "full_shard", "activation_checkpointing": "full"},
    "selective": {
        "activation_checkpointing": "selective", "sharding": "full_shard", "precision": "bf16",
    },
    "tp": {"model": "tied", **SPLIT},
    "gathered logits": {
        "tp_size": 2, "tensor_parallel": "gathered_logits", "precision": "bf16_mixed",
        "activation_checkpointing": "full",
    },
    "fused loss": {
        "sharding": "full_shard", "precision": "bf16", "fused_loss": True,
        "optimizer": "adamw_fused",
    },
    "experts": {"model": "mixtral", "sharding": "full_shard", "precision": "bf16"},
    "adapter": {"precision": "bf16_mixed", "sync_each_batch": False, "adapter": DROPS},
    "selective varlen": {
        "activation_checkpointing": "selective", "sharding": "full_shard", "precision": "bf16",
        **packed("varlen", 30, 20, 10, 4),
    },
    "padded": {
        "precision": "bf16_mixed", "optimizer": "adafactor", **packed("padded", 40),
    },
    "muon": {"precision": "bf16", "optimizer": "muon"},
    "frozen": {
        "sharding": "full_shard", "precision": "bf16_mixed", "frozen": ["embeddings", "layers.0-1"],
    },
    "saved": {
        "precision": "bf16_mixed", "reduce_dtype": "bf16",
        "adapter": {**QUANTIZED, "modules_to_save": ["embed_tokens", "lm_head"]},
    },
    "saved, not cast": {
        "precision": "bf16_mixed", "reduce_dtype": "fp32",
        "adapter": {**DROPS, "modules_to_save": ["embed_tokens", "lm_head"]},
    },
    "sharded quantized": {
        "model": "tied", "sharding": "full_shard", "precision": "bf16",
        "activation_checkpointing": "full", "adapter": {**QUANTIZED, "double_quant": False},
    },
}  # fmt: skip
MORE = {
    "every_2": {
        "model": "tied", "activation_checkpointing": "every_2", "optimizer": "adamw_fused",
    },
    "sharded logits": {"model": "qwen3", "tp_size": 2, "tensor_parallel": "sharded_logits"},
    "own loss": {"sharding": "full_shard", "precision": "bf16", "loss": "own_dtype"},
    **{
        variant: {
            "sharding": "full_shard", "precision": "bf16", **packed(variant, 30, 20, 10, 4),
        }
        for variant in ("varlen", "position_ids", "block_diagonal")
    },
    "sharded adapter": {
        "sharding": "full_shard", "precision": "bf16_mixed", "activation_checkpointing": "full",
        "adapter": DROPS,
    },
    "quantized": {"precision": "bf16_mixed", "adapter": QUANTIZED},
    "shard_grad_op": {"sharding": "shard_grad_op", "sync_each_batch": False, "optimizer": "sgd"},
    **{
        f"{optimizer} {precision} {bool(adapter)}": {
            "precision": precision, "optimizer": optimizer, "adapter": adapter,
        }
        for optimizer in ("adamw_bnb_8bit", "paged_adamw_8bit", "lion", "adafactor", "muon")
        for precision in ("fp32", "bf16_mixed")
        for adapter in (None, DROPS)
    },
    "ddp reduce fp32": {"precision": "bf16", "reduce_dtype": "fp32", "sync_each_batch": False},
    "offload": {"sharding": "full_shard", "cpu_offload": True},
    "reduce fp32": {
        "sharding": "full_shard", "precision": "bf16", "reduce_dtype": "fp32",
        "sync_each_batch": False,
    },
}  # fmt: skip
NUMBERS = (("bf16", "bf16"), ("bf16", "fp32"), ("bf16_mixed", "bf16"))
PUT_OFF = {
    f"{precision} reduced in {reduce}": {
        "ranks": 4, "precision": precision, "reduce_dtype": reduce,
        "gradient_accumulation_steps": 3, **DEFERRED,
    }
    for precision, reduce in NUMBERS
}  # fmt: skip


def test_memory_of_two_ranks_is_that_of_a_dry_run_and_of_rank_0_alone(preloaded, tmp_path):
    hold_predictions(preloaded, tmp_path, of_cases(CASES))


@pytest.mark.long
@pytest.mark.parametrize(
    "specs",
    [
        lambda: of_cases(MORE),
        lambda: of_cases(PUT_OFF),
        *(
            lambda ranks=ranks, model=model: combinations(ranks, model, memory_spec)
            for ranks, model in itertools.product((2, 4), ("llama", "mixtral"))
        ),
    ],
)
def test_memory_of_all_knobs(specs, preloaded, tmp_path):
    hold_predictions(preloaded, tmp_path, specs())


# Types without arithmetic: learned positions, biases of distance, other names of sizes.
OTHER_TYPES = {
    "opt": {"model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 128,
            "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 512, "dropout": 0.0},
    "bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 4, "n_head": 4,
              "vocab_size": 512},
    "starcoder2": {"model_type": "starcoder2", "hidden_size": 64, "intermediate_size": 128,
                   "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "vocab_size": 512, "max_position_embeddings": 128},
}  # fmt: skip


def test_memory_of_text_and_images(preloaded, tmp_path):
    cases = {
        "a frozen tower": {
            "model": SEES["gemma3"], "sharding": "full_shard", "frozen": ["vision_tower"], **IMAGES,
        },
        "adapted": {"model": SEES["qwen2_5_vl"], "ranks": 1, "adapter": DROPS, **IMAGES},
    }  # fmt: skip
    hold_predictions(preloaded, tmp_path, of_cases(cases))


def test_memory_of_one_rank(preloaded, tmp_path):
    """It is in no DDP, whose buckets would be as large as its gradients."""
    cases = {
        "plain": {"ranks": 1},
        "mixed, several micro-batches": {
            "ranks": 1, "precision": "bf16_mixed", "reduce_dtype": "bf16", "sync_each_batch": False,
        },
    }  # fmt: skip
    hold_predictions(preloaded, tmp_path, of_cases(cases))


@pytest.mark.long
def test_memory_of_types_without_arithmetic(preloaded, tmp_path):
    specs = {
        f"{name} {sharding}": memory_spec(config, 2, sharding=sharding)
        for name, config in OTHER_TYPES.items()
        for sharding in ("ddp", "full_shard")
    }
    specs |= {
        f"{kind['method']} {name}": memory_spec(config, 2, adapter=kind, precision="bf16_mixed")
        for name, config in OTHER_TYPES.items()
        for kind in (DROPS, QUANTIZED)
    }
    hold_predictions(preloaded, tmp_path, specs)


def of_cases(cases):
    return {
        name: memory_spec(**{"model": "llama", "ranks": 2, **case}) for name, case in cases.items()
    }


def hold_predictions(preloaded, folder, specs):
    """Peaks within 1%, the very same collectives, and the same knobs that act."""
    records = measure(preloaded, folder / "ranks", list(specs.values()))
    traces = dry_runs(preloaded, dict(specs))
    emulated_specs = [{**values, "fidelity": "emulated"} for values in specs.values()]
    alone = measure(preloaded, folder / "alone", emulated_specs)
    for (name, values), record, emulated in zip(specs.items(), records, alone, strict=True):
        what, memory, trace = (name, values["settings"]), record["memory"], traces[name]
        low, high = memory["allocated_low_bytes"], memory["allocated_bytes"]
        alone_peak = emulated["memory"]["allocated_low_bytes"]
        assert peak_bytes(trace) == pytest.approx(alone_peak, rel=NEAR), what
        assert peaks_agree(trace, low, high, NEAR), what
        rows = [trace["steps"][0]["collectives"], emulated["collectives"], record["collectives"]]
        first, second, third = map(by_operator, rows)
        assert first == second == third, what
        assert emulated["reducing_micro_batches"] == record["reducing_micro_batches"], what
        assert emulated["optimizer_steps"] == emulated["expected_optimizer_steps"], what
        assert emulated["losses"] == emulated["gradient_norms"] == []


def by_operator(rows):
    """Counts and bytes by operator and pass (axes get other names in a shared process)."""
    found = {}
    for row in rows:
        key = (row["op"], row["phase"].replace("loss", "forward"))
        count, total = found.get(key, (0, 0))
        found[key] = (count + row["count"], total + all_bytes(row))
    return found


def row_bytes(record, op):
    return sum(row["bytes"] for row in record["collectives"] if row["op"] == op)


def calls(record, op, axis, phase=None):
    """How often a rank called a collective in one optimizer step."""
    return sum(
        c["count"]
        for c in record["collectives"]
        if c["op"] == op and c["axis"] == axis and phase in (None, c["phase"])
    )


def check_data_parallel(model, knobs, record):
    """Exactly the data-parallel collectives that the knobs cause, per optimizer step."""
    synced = ACCUMULATION if knobs["sync_each_batch"] else 1
    if knobs["sharding"] == "ddp":
        reduced = calls(record, "all_reduce", "dp", "backward")
        buckets = reduced // synced
        assert reduced == (synced * buckets if knobs["tp_size"] == 1 else 0)
        assert (buckets >= 1) is (knobs["tp_size"] == 1)
        assert record["reducing_micro_batches"] == (synced if buckets else 0)
        return
    assert record["reducing_micro_batches"] == synced
    # of accelerate's FSDP2: layers, final norm and head, the embedding unless it is the head's
    groups = LAYERS + (1 if MODELS[model]["tie_word_embeddings"] else 2)
    assert calls(record, "reduce_scatter", "dp_shard") == groups * synced
    assert calls(record, "all_gather", "dp_shard", "forward") == groups * ACCUMULATION
    kept = 1 if knobs["sharding"] != "shard_grad_op" else groups  # the head's group always
    regathered = (groups - kept) * ACCUMULATION
    assert calls(record, "all_gather", "dp_shard", "backward") == regathered
    replicas = groups if knobs["sharding"] == "hybrid_shard" else 0
    replicas *= 1 if knobs["defer_all_reduce"] else synced
    assert calls(record, "all_reduce", "dp_replicate") == replicas


def check_tensor_parallel(model, knobs, record):
    """Gathers of the sequence: one before attention and MLP of each layer, and the head's.

    Backward scatters what forward gathered and gathers what it scattered; recompute gathers
    each once more, and checkpointing gathers again inside the layers. Experts run on the
    rank's own part of the sequence, so that an expert layer has one gather where others
    have two.
    """
    if knobs["tp_size"] == 1:
        return
    inside = LAYERS + {"mixtral": 0, "qwen3_moe": 1}.get(model, LAYERS)
    per_micro_batch = 2 * (inside + 1)
    per_micro_batch += inside + 1 if knobs["tp_recompute_allgather"] else 0
    shares = {"none": 0.0, "every_2": 0.5, "full": 1.0, "offload": 1.0}
    share = shares[knobs["activation_checkpointing"]]
    per_micro_batch += int(inside * share)
    assert calls(record, "all_gather", "tp") == per_micro_batch * ACCUMULATION


def check_whole_sequences(values, record):
    """All-reduces of activations: one leads out of the embedding and of each block, and backward
    has one for each of a layer's five linears that are split by output features, and the head."""
    again = LAYERS if values["settings"]["activation_checkpointing"] == "full" else 0
    of_loss = 0 if values["tensor_parallel"] == "gathered_logits" else 2
    forward = (1 + 2 * LAYERS + of_loss) * ACCUMULATION
    assert calls(record, "all_reduce", "tp", "forward") == forward
    backward = (5 * LAYERS + 1 + again) * ACCUMULATION
    # head norms, two in a layer, are summed at each of FSDP2's reductions, else once
    if values["model"]["model_type"] == "qwen3":
        passes = ACCUMULATION if values["settings"]["sharding"] != "ddp" else 1
        backward += 2 * LAYERS * passes
    assert calls(record, "all_reduce", "tp", "backward") == backward
    gathers = ACCUMULATION if values["tensor_parallel"] == "gathered_logits" else 0
    assert calls(record, "all_gather", "tp") == gathers
