"""Files as people have them: what is taken from them, and what is refused."""

import json

import pytest
import yaml

from tuner.client.files import asked_of, case_of
from tuner.cost.prediction import predict
from tuner.errors import UsageError
from tuner.launchfiles.files import open_file
from tuner.launchfiles.trainer import LIGER_CONFIG

FSDP = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "FSDP",
    "downcast_bf16": "no",
    "fsdp_config": {
        "fsdp_activation_checkpointing": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": False,
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_version": 2,
    },
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 8,
    "rdzv_backend": "static",
    "same_network": True,
    "use_cpu": False,
}
"""As ``accelerate config`` writes it."""
TRAINER = {
    "output_dir": "out",
    "learning_rate": 2e-5,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "gradient_checkpointing": True,
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
    "gradient_clipping": 1.0,
}
NANOTRON = {
    "parallelism": {"dp": 2, "tp": 4, "pp": 1, "tp_mode": "REDUCE_SCATTER", "pp_engine": "1f1b"},
    "tokens": {
        "sequence_length": 2048,
        "micro_batch_size": 2,
        "batch_accumulation_per_replica": 8,
        "train_steps": 100,
    },
    "optimizer": {"zero_stage": 1, "accumulate_grad_in_fp32": True},
    "model": {
        "dtype": "bfloat16",
        "model_config": {
            "is_llama_config": True,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
        },
    },
}
BOMB = "\n".join(
    ["a0: &a0 x", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))]
)
"""Some hundred bytes that stand for a hundred million values."""
HERE = {"model": "llama-3.1-8b", "sequence_length": 2048, "cluster": "8xh100-80gb"}


def changed(values, path, value):
    """A copy with another value at a dotted path."""
    name, _, rest = path.partition(".")
    inner = changed(values.get(name, {}), rest, value) if rest else value
    return {**values, name: inner}


@pytest.fixture
def written(tmp_path):
    """Writes a file; its path."""

    def write(values):
        path = tmp_path / "file"
        path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
        return str(path)

    return write


def test_a_file_of_accelerate_leaves_the_batch_to_the_script(written):
    found = open_file(written(FSDP)).found
    beside = dict(**HERE, global_batch_size=32, settings={"micro_batch_size": 4})
    case = case_of(found, beside)
    assert case.settings.as_dict() | {"sync_each_batch": None} == {
        "sharding": "full_shard", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
        "micro_batch_size": 4, "gradient_accumulation_steps": 1, "sync_each_batch": None,
        "activation_checkpointing": "full", "cpu_offload": False,
    }  # fmt: skip
    assert case.question.workload.precision == "bf16_mixed"
    assert case.question.framework.name == "accelerate"
    more = dict(**HERE, global_batch_size=64, settings={"micro_batch_size": 4})
    with pytest.raises(UsageError, match="sync_each_batch: got nothing; the training script"):
        case_of(found, more)
    told = {"micro_batch_size": 4, "sync_each_batch": False}
    case = case_of(found, dict(**HERE, global_batch_size=64, settings=told))
    assert case.settings.gradient_accumulation_steps == 2
    assert not case.settings.sync_each_batch


def test_yaml_may_have_braces_anchors_and_merged_mappings_and_json_a_mark(tmp_path):
    braces = tmp_path / "braces.yaml"
    braces.write_text("{distributed_type: NO, num_processes: 1}")
    assert open_file(str(braces)).found.ranks == 1
    merged = tmp_path / "merged.yaml"
    merged.write_text(
        "parallelism: &p {dp: 1, tp: 1, pp: 1}\n"
        "tokens: &t {micro_batch_size: 1, sequence_length: 8}\n"
        "model: {<<: *t, micro_batch_size: 2}\noptimizer: {}\nmore: {<<: *p, dp: 2}\n"
    )
    assert open_file(str(merged)).found.knobs["micro_batch_size"] == 1
    plain = tmp_path / "plain.yaml"  # YAML 1.1 reads a bare no as false
    plain.write_text("distributed_type: NO\nmixed_precision: no\nnum_processes: 1\nuse_cpu: no\n")
    assert open_file(str(plain)).found.may["precision"] == ("bf16", "fp32")
    marked = tmp_path / "marked.json"
    marked.write_text('{\n\t"per_device_train_batch_size": 3\n}', encoding="utf-8-sig")
    assert open_file(str(marked)).found.knobs["micro_batch_size"] == 3


def test_a_file_of_nanotron_says_all_but_the_cluster(written):
    found = open_file(written(NANOTRON)).found
    case = case_of(found, dict(cluster="8xh100-80gb"))
    assert case.question.framework.name == "nanotron"
    assert case.question.workload.global_batch_size == 2 * 8 * 2
    assert case.question.workload.sequence_length == 2048
    assert case.question.workload.model.hidden_size == 2048
    assert case.settings.tp_size == 4
    assert case.settings.sharding == "zero1"
    question = case.question
    assert predict(
        question.workload, question.cluster, question.framework, case.settings
    ).needed_bytes.value
    with pytest.raises(UsageError, match="cluster: got nothing"):
        case_of(found, dict())
    with pytest.raises(UsageError, match="model: got 'gpt2'; the file says which"):
        case_of(found, dict(cluster="8xh100-80gb", model="gpt2"))


def test_inputs_of_layers_that_wait_on_the_host_are_read(written):
    plugin = changed(FSDP, "fsdp_config.fsdp_activation_checkpointing_offload", True)
    argument = changed(TRAINER, "gradient_checkpointing_kwargs", {"offload": True})
    sharded = {"fsdp": True, "fsdp_config": {
        "fsdp_version": 2, "activation_checkpointing": True,
        "activation_checkpointing_offload": True,
    }}  # fmt: skip
    by_plugin = {**TRAINER, "gradient_checkpointing": False, **sharded}
    for values in (plugin, argument, by_plugin):
        found = open_file(written(values)).found
        assert found.knobs["activation_checkpointing"] == "offload"
        for release, acts in (("1.12.0", values is argument), ("1.15.0", True)):
            stated = {"accelerate": release, "torch": "2.13.0", "transformers": "5.23.0"}
            here = {**HERE, "framework_versions": stated, "framework": "trainer"}
            here |= {"settings": {"micro_batch_size": 1}} if values is plugin else {}
            here |= {"global_batch_size": 8} if values is plugin else {}
            case = case_of(found, here)
            assert case.settings.activation_checkpointing == ("offload" if acts else "full")
            assert any("taken as full" in note for note in case.notes) is not acts


REFUSED = [
    (FSDP, "fsdp_config.fsdp_version", 3, "fsdp_config.fsdp_version: got 3; must be 1 or 2"),
    (FSDP, "fsdp_config.fsdp_sharding_strategy", 1, "fsdp_sharding_strategy: got 1; is FSDP1's"),
    (changed(FSDP, "fsdp_config.fsdp_version", 1), "fsdp_config.fsdp_sharding_strategy", 6,
     "fsdp_config.fsdp_sharding_strategy: got 6; must be one of full_shard, shard_grad_op"),
    (FSDP, "fsdp_config.fsdp_new", 1, "fsdp_config.fsdp_new: got 1; is not known"),
    (changed(FSDP, "fsdp_config.fsdp_activation_checkpointing", False),
     "fsdp_config.fsdp_activation_checkpointing_offload", True, "where no layer is checkpointed"),
    (TRAINER, "gradient_checkpointing_kwargs", {"offload": True, "every_n_layers": 2},
     "every_n_layers: got 2; must be 1 with offload"),
    (FSDP, "distributed_type", "MEGATRON_LM", "distributed_type: got 'MEGATRON_LM'"),
    (FSDP, "mixed_precision", "fp16", "mixed_precision: got 'fp16'"),
    (FSDP, "parallelism_config.parallelism_config_tp_size", 8, "tp_size: got 8; must be 1"),
    (FSDP, "distributed_type", "DEEPSPEED", "is of another engine"),
    (FSDP, "distributed_type", "NO", "num_processes: got 8; must be 1 where"),
    (FSDP, "parallelism_config.cp_size", 2, "sizes of parallelism_config make 2 ranks"),
    (changed(FSDP, "parallelism_config.cp_size", 8), "parallelism_config.cp_backend", "te",
     "cp_backend: got 'te'"),
    (FSDP, "parallelism_config.dp_shard_sise", 2, "did you mean dp_shard_size?"),
    (TRAINER, "per_device_train_batchsize", 4, "did you mean per_device_train_batch_size?"),
    (TRAINER, "fp16", True, "fp16: got true"),
    (TRAINER, "deepspeed", "ds.json", "deepspeed: got 'ds.json'; is not here"),
    (
        {**TRAINER, "use_liger_kernel": True},
        "liger_kernel_config.cross_entropy",
        True,
        "liger_kernel_config.cross_entropy: got true; must be false",
    ),
    (TRAINER, "optim", "lion_8bit", "optim: got 'lion_8bit'"),
    (TRAINER, "accelerator_config.split_batches", True, "split_batches: got true"),
    ({**TRAINER, "fsdp": True}, "fsdp_config.min_num_params", "1e8", "min_num_params: got '1e8'"),
    ({**TRAINER, "fsdp": True}, "fsdp_config.fsdp_min_num_params", 1, "must be 0: figures are of"),
    ({**TRAINER, "fsdp_config": {"reshard_after_forward": True}}, "fsdp", "shard_grad_op",
     "fsdp: got 'shard_grad_op'; does not say what fsdp_config says"),
    (DEEPSPEED, "zero_optimization.stage", 4, "zero_optimization.stage: got 4"),
    (DEEPSPEED, "zero_optimization.offload_optimizer.device", "cpu", "offload_param: got"),
    (DEEPSPEED, "bf16.enabled", "on", "bf16.enabled: got 'on'; must be true or false"),
    (DEEPSPEED, "fp16.enabled", True, "fp16.enabled: got true"),
    (DEEPSPEED, "bf16.bf16_optimizer_states", False, "bf16.bf16_optimizer_states: got false"),
    (NANOTRON, "parallelism.tp_mode", "ALL_REDUCE", "parallelism.tp_mode: got 'ALL_REDUCE'"),
    (NANOTRON, "parallelism.dp", None, "parallelism.dp: got nothing; must be there"),
    (NANOTRON, "model.dtype", "float32", "model.dtype: got 'float32'"),
]  # fmt: skip


def test_what_is_not_predicted_is_refused(written):
    for values, path, value, said in REFUSED:
        with pytest.raises(UsageError) as caught:
            open_file(written(changed(values, path, value)))
        assert said in str(caught.value), (path, value)


FSDP1 = "figures are of FSDP2's"


@pytest.mark.parametrize(
    ("strategy", "nodes", "sharding", "told"),
    [
        ({"fsdp_sharding_strategy": "FULL_SHARD"}, 1, "full_shard", ""),
        ({"fsdp_sharding_strategy": 2}, 2, "shard_grad_op", ""),
        ({"sharding_strategy": "3"}, 1, "ddp", ""),
        ({"fsdp_sharding_strategy": "HYBRID_SHARD"}, 1, "full_shard", ""),
        ({"fsdp_sharding_strategy": 4}, 2, "hybrid_shard", ""),
        ({"fsdp_sharding_strategy": "_HYBRID_SHARD_ZERO2"}, 1, "shard_grad_op", ""),
        ({"fsdp_sharding_strategy": 5}, 2, "hybrid_shard", "more memory than predicted"),
        ({"fsdp_reshard_after_forward": "SHARD_GRAD_OP"}, 1, "shard_grad_op", "passes over it"),
        ({"fsdp_reshard_after_forward": True, "fsdp_version": 1}, 1, "full_shard", ""),
        ({}, 1, "full_shard", ""),
    ],
)  # fmt: skip
def test_fsdp1_is_read_as_the_fsdp2_that_corresponds(written, strategy, nodes, sharding, told):
    kept = {"fsdp_offload_params": "false", "fsdp_min_num_params": 0, "fsdp_use_orig_params": True}
    file = {**FSDP, "num_machines": nodes, "num_processes": 8 * nodes}
    found = open_file(written({**file, "fsdp_config": {**kept, **strategy}})).found
    assert (found.knobs["sharding"], found.knobs["cpu_offload"]) == (sharding, False)
    *more, version = map(str, found.uncounted)
    assert version.startswith("fsdp_version: ")
    assert version.endswith("figures are of DDP's" if sharding == "ddp" else FSDP1)
    assert [told in one for one in more] == [True] * bool(told)
    cluster = {"cluster": "8xh100-80gb" if nodes == 1 else "2x8xh100-80gb"}
    case = case_of(found, {**HERE, **cluster, "global_batch_size": 16,
                           "settings": {"micro_batch_size": 16 // (8 * nodes)}})  # fmt: skip
    assert case.settings.sharding == sharding
    assert version in case.notes


def test_the_trainers_words_are_fsdp1s_where_no_version_is_said(written):
    for words, knobs in (
        ("full_shard auto_wrap", ("full_shard", False)),
        (["shard_grad_op", "auto_wrap", "offload"], ("shard_grad_op", True)),
        (True, ("full_shard", False)),
    ):
        found = open_file(written({**TRAINER, "fsdp": words})).found
        assert (found.knobs["sharding"], found.knobs["cpu_offload"]) == knobs
        assert [str(one) for one in found.uncounted] == [
            f"fsdp_version: not said: older releases of transformers take FSDP1 then: the {FSDP1}"
        ]


def test_nodes_that_shard_by_themselves_are_told_of_the_trainers_file(written):
    options = {"version": 1, "sharding_strategy": "hybrid_shard"}
    found = open_file(written({**TRAINER, "fsdp": True, "fsdp_config": options})).found
    assert found.knobs["sharding"] == "full_shard"
    assert "each shards by itself" in str(found.uncounted[0])


def test_what_no_version_says_is_told_of_fsdp1_alone(written):
    file = {**TRAINER, "fsdp": True, "fsdp_config": {"reshard_after_forward": False}}
    passed_over, _ = map(str, open_file(written(file)).found.uncounted)
    assert "where FSDP1 shards, accelerate 1.15 passes over it" in passed_over


@pytest.mark.parametrize(
    ("options", "got"), [({"version": 1}, "1"), ({}, "nothing"), ({"version": 2}, "2")]
)
def test_an_older_trainer_is_refused_by_what_the_file_says(written, options, got):
    found = open_file(written({**TRAINER, "fsdp": True, "fsdp_config": options})).found
    stated = {"transformers": "4.57.6", "accelerate": "1.15.0", "torch": "2.13.0"}
    beside = {**HERE, "framework": "trainer", "framework_versions": stated}
    with pytest.raises(UsageError, match=rf"fsdp_config\.version: got {got}; transformers 4\.57"):
        case_of(found, beside)


def test_figures_of_versions_with_fsdp1_are_its_own(written):
    options = {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}
    found = open_file(written({**FSDP, "fsdp_config": options})).found
    for release, told in (("1.4.0", False), ("1.6.0", True)):
        stated = {"accelerate": release, "torch": "2.6.0", "transformers": "4.57.6"}
        beside = {**HERE, "framework": "accelerate", "framework_versions": stated,
                  "global_batch_size": 8}  # fmt: skip
        lines = asked_of(found, beside).uncounted
        assert [FSDP1 in str(one) for one in lines] == [True] * told


def test_ligers_kernels_fuse_the_loss_of_a_file(written):
    """All of them are on where none is named; a model that it has none for keeps its own loss."""
    alone = {name: name == "fused_linear_cross_entropy" for name in LIGER_CONFIG}
    plain, bare, only, off = (
        case_of(open_file(written({**TRAINER, **more})).found, HERE)
        for more in (
            {"use_liger_kernel": False, "liger_kernel_config": {"rope": True}},
            {"use_liger_kernel": True},
            {"use_liger_kernel": True, "liger_kernel_config": alone},
            {
                "use_liger_kernel": True,
                "liger_kernel_config": {"fused_linear_cross_entropy": False},
            },
        )
    )
    assert [one.settings.fused_loss for one in (plain, bare, only, off)] == [0, 1, 1, 0]
    assert only.question.framework.versions["liger-kernel"] == "0.8.5"
    said = [any("rope, rms_norm, swiglu" in note for note in one.notes) for one in (bare, only)]
    assert said == [True, False]
    fused = open_file(written({**TRAINER, "use_liger_kernel": True})).found
    other = case_of(fused, {**HERE, "model": "gpt2", "sequence_length": 1024})
    assert not other.settings.fused_loss
    assert any("none for gpt2" in note for note in other.notes)
    with pytest.raises(UsageError, match="framework: got 'accelerate'"):
        case_of(fused, {**HERE, "framework": "accelerate"})


CONTRADICTED = [
    (FSDP, {"cluster": "4xh100-80gb"}, "num_processes: got 8; 4xh100-80gb has 4 ranks"),
    (FSDP, {"cluster": "2x4xh100-80gb"}, "num_machines: got 1; 2x4xh100-80gb has 2"),
    (FSDP, {"precision": "bf16"}, "precision: got 'bf16'; the file says bf16_mixed"),
    (FSDP, {"framework": "nanotron"}, "framework: got 'nanotron'; the file says accelerate"),
    (FSDP, {"settings": {}}, "micro_batch_size: got nothing; the file does not say it"),
    (FSDP, {"model": None}, "model: got nothing"),
    (
        FSDP,
        {"settings": {"sharding": "ddp", "micro_batch_size": 1}},
        "settings: got 'sharding=ddp'; the file says sharding=full_shard",
    ),
    (
        changed(FSDP, "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "GPT2Block"),
        {},
        "got 'GPT2Block'; the blocks of this model are of the class LlamaDecoderLayer",
    ),
    (TRAINER, {"global_batch_size": 128}, "global_batch_size: got 128; the file makes 64"),
    (
        changed(TRAINER, "per_device_train_batch_size", None),
        {"settings": {"micro_batch_size": 4}},
        "got 'micro_batch_size=4'; the file says nothing of it, which means micro_batch_size=8",
    ),
    (NANOTRON, {"model": None, "global_batch_size": 128}, "global_batch_size: got 128"),
    (changed(DEEPSPEED, "train_batch_size", 1), {}, "global_batch_size: got 32; the file says"),
]


def test_what_is_said_twice_must_be_the_same(written):
    for values, more, said in CONTRADICTED:
        facts = {**HERE, "global_batch_size": 32}
        if "distributed_type" in values:
            facts["settings"] = {"micro_batch_size": 4}
        with pytest.raises(UsageError) as caught:
            case_of(open_file(written(values)).found, dict(**{**facts, **more}))
        assert said in str(caught.value), more


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is neither JSON nor YAML"),
        ("!!python/object/apply:os.system ['true']", "is neither JSON nor YAML"),
        ("learning_rate: 1", "is like none of the formats: say --format axolotl|"),
        (json.dumps({**FSDP, **TRAINER}), "could be of accelerate or trainer"),
        ("x" * 2**21, "must have 1048576 bytes at most"),
        ("output_dir: a\noutput_dir: b", "names 'output_dir' twice in one object"),
        (
            "output_dir: a\nfsdp_config: {version: 1, version: 2}",
            "names 'version' twice in one object",
        ),
        ('{"output_dir": {"a": 1, "a": 2}}', "names 'a' twice in one object"),
        (f"{BOMB}\noutput_dir: *a8", "must hold 100000 values at most"),
        ("output_dir: a\nx: &x [*x]", "must hold 100000 values at most"),
    ],
)
def test_a_file_that_is_none_is_refused(written, text, said):
    with pytest.raises(UsageError) as caught:
        open_file(written(text))
    assert said in str(caught.value)
