"""Files for ``accelerate launch``: compared with golden files, and loaded by accelerate.

``TUNER_WRITE_GOLDEN=1`` writes the golden files instead of comparing.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.core.configuration import parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.quantity import Provenance
from tuner.launchfiles import About, export, why_not
from tuner.launchfiles.accelerate import LAYER_CLASSES, configuration, script
from tuner.model import read_model_config
from tuner.model.fields import ARCHITECTURES

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "golden").glob("*.yaml"))


# ---- the text --------------------------------------------------------------------------------


def test_golden_files(cases: Mapping[str, Any], written: Any) -> None:
    for name in cases:
        golden = HERE / "golden" / f"{name}.yaml"
        if os.environ.get("TUNER_WRITE_GOLDEN"):
            golden.write_text(written(name).read_text(encoding="utf-8"), encoding="utf-8")
        assert written(name).read_text(encoding="utf-8") == golden.read_text(encoding="utf-8")
    assert set(cases) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_comments_with_the_code_and_then_the_configuration(
    name: str, cases: Mapping[str, Any], written: Any
) -> None:
    question, settings = cases[name].parts()
    text = written(name).read_text(encoding="utf-8")
    assert yaml.safe_load(text) == configuration(question, settings)
    lines = text.splitlines()
    start, end = lines.index("# ```python"), lines.index("# ```")
    assert all(line.startswith("#") for line in lines[: end + 1])
    code = [line.removeprefix("#").removeprefix(" ") for line in lines[start + 1 : end]]
    assert code == script(question, settings).splitlines()
    assert str(settings) == str(parse_settings(_comment_with(lines, "sharding=")))


def _comment_with(lines: list[str], start: str) -> str:
    """The comment from the line that begins so up to the next item."""
    text = "\n".join(line.removeprefix("# ") for line in lines)
    return text[text.index(start) :].partition("\n- ")[0].replace("\n", " ")


def test_nothing_in_a_comment_can_leave_it(cases: Mapping[str, Any]) -> None:
    hostile = "fast\nnum_processes: 1\r\x85\u2028use_cpu: true \x00 ```python"
    about = About(study_id=hostile, date=hostile, provenance=Provenance.UNKNOWN, figures=(hostile,))
    question, settings = cases["full_shard"].parts()
    text = export("accelerate", question, settings, about)
    assert yaml.safe_load(text) == configuration(question, settings)
    assert text.count("```python") == 1
    assert text.isprintable() or set(text) - {"\n"} <= set(map(chr, range(32, 127)))


def test_a_multi_node_file_says_how_to_start_each_node(written: Any) -> None:
    text = written("hybrid_shard").read_text(encoding="utf-8")
    assert "on each of the 2 nodes" in text
    assert "--machine_rank NUMBER" in text


def test_a_sharded_file_for_a_cpu_begins_with_what_accelerate_would_do(written: Any) -> None:
    first = written("full_shard_cpu").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# NOT FOR A CPU: accelerate ignores FSDP on a CPU")


def test_groups_of_cpu_ranks_are_one_machine(case: Any, about: About) -> None:
    parts = case(model="stories15m", cluster="2x2xcpu", sequence_length=8, settings="sharding=ddp")
    values = configuration(*parts.parts())
    assert (values["num_machines"], values["num_processes"]) == (1, 4)
    text = " ".join(export("accelerate", *parts.parts(), about).replace("#", "").split())
    assert "On 2 machines, set num_machines: 2, and give machine_rank, main_process_ip" in text


def test_the_trainer_is_told_that_the_script_is_not_for_it(case: Any, about: About) -> None:
    versions = {"transformers": "5.23.0", "accelerate": "1.15.0", "torch": "2.13.0"}
    parts = case(
        model="gpt2",
        cluster="2xl4",
        sequence_length=8,
        settings="sharding=ddp",
        framework=Framework(name=FrameworkName.TRAINER, versions=versions),
    ).parts()
    assert "The Trainer makes its own Accelerator" in export("accelerate", *parts, about)


# ---- what cannot be expressed ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "settings", "reason"),
    [
        ("8xa100-80gb", "sharding=full_shard,tp_size=2", "--knob tp_size=1"),
        ("8xa100-80gb", "sharding=ddp,pp_size=2", "--framework accelerate"),
        ("8xa100-80gb", "sharding=zero1", "--framework accelerate"),
        ("2x1xl4", "sharding=hybrid_shard", "a node has one GPU"),
        ("8xa100-80gb", "sharding=ddp,cpu_offload=true", "only what it shards"),
    ],
)
def test_why_not(case: Any, cluster: str, settings: str, reason: str) -> None:
    parts = case(model="llama-3.1-8b", cluster=cluster, settings=settings).parts()
    told = why_not("accelerate", *parts)
    assert told is not None
    assert reason in told


@pytest.mark.parametrize(
    ("settings", "oldest"),
    [
        ("sharding=ddp,gradient_accumulation_steps=2", "0.31"),
        ("sharding=full_shard,gradient_accumulation_steps=2", "1.6"),
        ("sharding=full_shard,activation_checkpointing=full", "1.10"),
        ("sharding=hybrid_shard", "1.10"),
        ("sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false", "1.11"),
    ],
)
def test_a_stated_version_of_accelerate_must_know_the_settings(
    case: Any, settings: str, oldest: str
) -> None:
    major, minor = oldest.split(".")
    for version, expressed in ((f"{oldest}.0", True), (f"{major}.{int(minor) - 1}.0", False)):
        stated = {"accelerate": version, "torch": "2.13.0"}
        question, chosen = case(
            model="llama-3.1-8b",
            cluster="2x8xa100-80gb",
            settings=settings,
            framework=Framework(name=FrameworkName.ACCELERATE, versions=stated),
        ).parts()
        told = why_not("accelerate", question, chosen)
        assert (told is None) is expressed, told
        assert expressed or f"--framework-version accelerate={oldest}" in str(told)


# ---- accelerate reads it ---------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_loads_the_file(name: str, cases: Mapping[str, Any], written: Any) -> None:
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

    question, settings = cases[name].parts()
    loaded = load_config_from_file(str(written(name)))
    assert isinstance(loaded, ClusterConfig)
    values = configuration(question, settings)
    assert {field: getattr(loaded, field) for field in values} == values
    assert loaded.num_processes == question.cluster.world_size


def test_the_fields_of_each_kind(cases: Mapping[str, Any]) -> None:
    values = {name: configuration(*case.parts()) for name, case in cases.items()}
    kinds = {name: value["distributed_type"] for name, value in values.items()}
    assert kinds["ddp_cpu"] == kinds["ddp_reduced_in_fp32"] == "MULTI_GPU"
    assert kinds["one_gpu"] == "NO"
    assert {kinds[name] for name in values if "fsdp_config" in values[name]} == {"FSDP"}
    assert [name for name in values if values[name]["use_cpu"]] == ["ddp_cpu", "full_shard_cpu"]
    mixed = [name for name in values if values[name]["mixed_precision"] == "bf16"]
    assert mixed == ["bf16_mixed", "full_shard_cpu"]
    assert values["hybrid_shard"]["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 8,
    }
    assert not any("parallelism_config" in values[n] for n in values if n != "hybrid_shard")


def test_layer_classes_are_what_transformers_would_not_split() -> None:
    import torch

    from workers.probe.model import build_on_meta, decoder_layers

    assert set(LAYER_CLASSES) == set(ARCHITECTURES)
    for model_type, layer in LAYER_CLASSES.items():
        fields = {"model_type": model_type, "num_hidden_layers": 2}
        model = build_on_meta(read_model_config(fields, model_type).as_config(), torch.float32)
        assert layer in model._no_split_modules
        assert type(decoder_layers(model)[0]).__name__ == layer


@pytest.mark.parametrize(
    ("name", "reshard", "offload", "checkpointing", "layer"),
    [
        ("full_shard", True, True, False, "LlamaDecoderLayer"),
        ("bf16_mixed", False, False, False, "LlamaDecoderLayer"),
        ("checkpointing", True, False, True, "LlamaDecoderLayer"),
        ("checkpointing_with_dropout", True, False, False, "GPT2Block"),
        ("hybrid_shard", True, False, False, "MixtralDecoderLayer"),
        ("full_shard_cpu", True, False, True, "LlamaDecoderLayer"),
    ],
)
def test_what_the_launcher_hands_on_and_the_plugin_reads(
    launched_environment: Any,
    name: str,
    reshard: bool,
    offload: bool,
    checkpointing: bool,
    layer: str,
) -> None:
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy

    environment = launched_environment(name)
    expected = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_RESHARD_AFTER_FORWARD": str(reshard).lower(),
        "FSDP_OFFLOAD_PARAMS": str(offload).lower(),
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": layer,
        "FSDP_ACTIVATION_CHECKPOINTING": str(checkpointing).lower(),
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    }
    assert {variable: environment[variable] for variable in expected} == expected
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is reshard
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) is offload
    assert plugin.transformer_cls_names_to_wrap == [layer]
    assert plugin.activation_checkpointing is checkpointing
    assert plugin.mixed_precision_policy is None


def test_hybrid_shard_reaches_the_parallelism_config(launched_environment: Any) -> None:
    from accelerate.utils import ParallelismConfig

    assert launched_environment("hybrid_shard")["ACCELERATE_USE_PARALLELISM_CONFIG"] == "true"
    config = ParallelismConfig()
    assert (config.dp_replicate_size, config.dp_shard_size, config.total_size) == (2, 8, 16)


def test_ddp_hands_nothing_of_fsdp_on(launched_environment: Any) -> None:
    environment = launched_environment("ddp_cpu")
    assert "ACCELERATE_USE_FSDP" not in environment
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
