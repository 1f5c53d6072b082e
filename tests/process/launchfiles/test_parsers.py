"""Files as accelerate and transformers themselves read them."""

import json
import shlex
import sys

import pytest
import torch
import yaml

from tests.unit.launchfiles.cases import ABOUT, CASES, Case, trainer
from tuner.client.from_file import patched, read_question
from tuner.core.configuration import Settings
from tuner.core.framework import installed_versions
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles import export, why_not
from tuner.launchfiles.accelerate import configuration
from tuner.launchfiles.trainer import OPTIMIZERS
from tuner.model import read_model_config
from tuner.model.fields import ARCHITECTURES
from workers.probe.errors import OptimizerUnavailableError
from workers.probe.optimizers import make_optimizer

FULL = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=true"


@pytest.mark.smoke
def test_accelerate_loads_the_file(tmp_path):
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

    path = tmp_path / "accelerate.yaml"
    for case in CASES.values():
        path.write_text(export("accelerate", *case.parts(), ABOUT), encoding="utf-8")
        loaded = load_config_from_file(str(path))
        assert isinstance(loaded, ClusterConfig)
        values = configuration(*case.parts())
        assert {field: getattr(loaded, field) for field in values} == values


@pytest.mark.parametrize(
    ("name", "reshard", "offload", "checkpointing", "layer"),
    [
        ("full_shard", True, True, False, "LlamaDecoderLayer"),
        ("bf16_mixed", False, False, False, "LlamaDecoderLayer"),
        ("checkpointing", True, False, True, "LlamaDecoderLayer"),
        ("checkpointing_with_dropout", True, False, False, "GPT2Block"),
    ],
)
def test_what_the_launcher_hands_on_and_the_plugin_reads(
    launched_environment, name, reshard, offload, checkpointing, layer
):
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy

    assert launched_environment(name)["ACCELERATE_USE_FSDP"] == "true"
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is reshard
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) is offload
    assert plugin.transformer_cls_names_to_wrap == [layer]
    assert plugin.activation_checkpointing is checkpointing
    assert plugin.mixed_precision_policy is None


@pytest.mark.parametrize(
    ("strategy", "reshards"),
    [("FULL_SHARD", True), ("SHARD_GRAD_OP", False), ("HYBRID_SHARD", True),
     ("HYBRID_SHARD_ZERO2", False)],
)  # fmt: skip
def test_a_file_of_fsdp1_becomes_what_accelerates_own_command_makes_of_it(
    tmp_path, strategy, reshards
):
    """And the same for the strategy's number, which that command leaves as it is."""
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2
    from accelerate.utils.constants import FSDP_SHARDING_STRATEGY

    options = {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_cpu_ram_efficient_loading": True, "fsdp_forward_prefetch": False,
        "fsdp_offload_params": False, "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_sync_module_states": True, "fsdp_use_orig_params": True,
    }  # fmt: skip
    file = {"distributed_type": "FSDP", "num_processes": 8, "mixed_precision": "bf16"}
    beside = {"model": "stories15m", "sequence_length": 128, "global_batch_size": 8}
    place = {"cluster": "8xa100-80gb", "framework": "accelerate", "fidelity": "predicted"}
    path = tmp_path / "accelerate.yaml"
    theirs = convert_config_to_fsdp2(
        {**file, "fsdp_config": {**options, "fsdp_sharding_strategy": strategy}}
    )
    for spelled in (strategy, FSDP_SHARDING_STRATEGY.index(strategy) + 1):
        values = {**file, "fsdp_config": {**options, "fsdp_sharding_strategy": spelled}}
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        question = read_question(str(path), None, {**beside, **place})
        present = Settings.from_dict({**question.asked.knobs, "micro_batch_size": 1})
        made, _ = patched(question, question.request.question(installed_versions()), present)
        assert yaml.safe_load(made) == theirs
        assert theirs["fsdp_config"]["fsdp_reshard_after_forward"] is reshards


def test_hybrid_shard_reaches_the_parallelism_config(launched_environment):
    from accelerate.utils import ParallelismConfig

    assert launched_environment("hybrid_shard")["ACCELERATE_USE_PARALLELISM_CONFIG"] == "true"
    config = ParallelismConfig()
    assert (config.dp_replicate_size, config.dp_shard_size, config.total_size) == (2, 8, 16)


def test_ddp_hands_nothing_of_fsdp_on(launched_environment):
    environment = launched_environment("ddp_cpu")
    assert "ACCELERATE_USE_FSDP" not in environment
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"


def test_layer_classes_are_what_transformers_would_not_split():
    import torch

    from workers.probe.model import build_on_meta, decoder_layers

    for model_type, layer in ((name, one.layer) for name, one in ARCHITECTURES.items()):
        fields = {"model_type": model_type, "num_hidden_layers": 2}
        model = build_on_meta(read_model_config(fields, model_type).as_config(), torch.float32)
        assert layer in model._no_split_modules
        assert type(decoder_layers(model)[0]).__name__ == layer


def _read(path, text, **more):
    from transformers import HfArgumentParser, TrainingArguments

    path.write_text(json.dumps({**json.loads(text), **more}), encoding="utf-8")
    (read,) = HfArgumentParser(TrainingArguments).parse_json_file(str(path))
    return read


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("full", ["none", "full"])
def test_the_trainers_parser_reads_the_sharded_arguments(tmp_path, precision, full):
    reduce_dtype = ReduceDtype.FP32 if precision is Precision.FP32 else ReduceDtype.BF16
    parts = Case(
        settings=f"{FULL},activation_checkpointing={full}",
        framework=trainer(),
        workload={"precision": precision, "reduce_dtype": reduce_dtype},
    ).parts()
    text = export("trainer", *parts, ABOUT)
    read = _read(tmp_path / "args.json", text, use_cpu=True, output_dir=str(tmp_path))
    assert (read.per_device_train_batch_size, read.gradient_accumulation_steps) == (2, 4)
    assert read.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert read.bf16 is (precision is Precision.BF16_MIXED)
    assert read.run_name.startswith("tuner st-0123456789ab 2026-01-15 measured")
    plugin = read.fsdp_plugin_args
    assert plugin["fsdp_version"] == 2
    assert plugin["reshard_after_forward"] is True
    assert plugin["activation_checkpointing"] is (full == "full")
    assert plugin["transformer_cls_names_to_wrap"] == "LlamaDecoderLayer"
    assert read.activation_checkpointing is False  # the plugin's, or none


def test_the_trainers_parser_reads_the_flags_as_the_file(tmp_path):
    from transformers import HfArgumentParser, TrainingArguments

    for sharding in ("full_shard", "ddp"):
        settings = f"sharding={sharding},micro_batch_size=2,gradient_accumulation_steps=4"
        parts = Case(settings=settings, cluster="2x4xa100-80gb", framework=trainer()).parts()
        text = export("trainer-flags", *parts, ABOUT)
        command = shlex.split(text[text.index("exec torchrun") :].replace("\\\n", " "))
        flags = [*command[command.index("$@") + 1 :], "--output_dir", str(tmp_path)]
        (flagged,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
        text = export("trainer", *parts, ABOUT)
        as_json = _read(tmp_path / "args.json", text, output_dir=str(tmp_path))
        flagged, as_json = flagged.to_dict(), as_json.to_dict()
        for values in (flagged, as_json):
            values.pop("logging_dir", None)
        assert flagged == as_json


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_the_trainers_optimizers_are_those_of_the_probes(tmp_path):
    """Each by a name that it knows, which is read back; what they keep after a step is the same."""
    from transformers import Trainer

    names = {}
    for optimizer in set(Optimizer) - {Optimizer.MUON}:
        work = {"optimizer": optimizer, "precision": Precision.FP32}
        case = Case(settings="sharding=ddp", framework=trainer(), workload=work)
        text = export("trainer", *case.parts(), ABOUT)
        name = names[str(optimizer)] = json.loads(text)["optim"]
        assert OPTIMIZERS[name] is optimizer
        args = _read(tmp_path / "args.json", text, use_cpu=True, output_dir=str(tmp_path))
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
        if optimizer is Optimizer.ADAMW_8BIT:  # compiles its step
            continue
        model = _Model()
        mine = make_optimizer(str(optimizer), model)
        theirs = kind(model.parameters(), **options)
        for one in (mine, theirs):
            model(torch.ones(2, 64)).sum().backward()
            one.step()
        assert _kept(mine) == _kept(theirs)
        assert bool(_kept(mine)) is (optimizer is not Optimizer.SGD)
    assert names == {
        "adamw": "adamw_torch", "adamw_fused": "adamw_torch_fused",
        "adamw_8bit": "adamw_torch_8bit", "sgd": "sgd", "adamw_bnb_8bit": "adamw_bnb_8bit",
        "paged_adamw_8bit": "paged_adamw_8bit", "lion": "lion_32bit", "adafactor": "adafactor",
    }  # fmt: skip
    assert OPTIMIZERS["adamw_8bit"] is Optimizer.ADAMW_BNB_8BIT  # torchao's has another name
    old = trainer(transformers="4.48.0", accelerate="1.2.0")
    case = Case(
        settings="sharding=ddp", framework=old, workload={"optimizer": Optimizer.ADAMW_8BIT}
    )
    assert "--optimizer adamw_bnb_8bit" in (why_not("trainer", *case.parts()) or "")


def test_an_optimizer_without_its_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(OptimizerUnavailableError, match="lion needs bitsandbytes: pip install"):
        make_optimizer("lion", _Model())


class _Model(torch.nn.Sequential):
    """A matrix of 8192 elements, and a vector."""

    def __init__(self):
        super().__init__(torch.nn.Linear(64, 128))


def _kept(optimizer):
    states = (item for state in optimizer.state.values() for item in state.items())
    return [(name, v.dtype, v.shape) for name, v in states if torch.is_tensor(v)]
