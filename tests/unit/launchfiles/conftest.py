"""Questions and settings that the tests export."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, Sharding, parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.quantity import Provenance
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.launchfiles import About, export
from tuner.model import load_model
from tuner.script import Launch, Script

ABOUT = About(
    study_id="st-0123456789ab",
    date="2026-01-15",
    provenance=Provenance.MEASURED,
    versions={"torch": "2.13.0", "accelerate": "1.15.0", "transformers": "5.23.0"},
    figures=(
        "3425 tokens/s per GPU (3390 to 3460)",
        "61.9 GiB of 79.2 GiB allocated on the fullest GPU (61.9 to 62.3)",
    ),
)
TORCH = Framework(name=FrameworkName.TORCH, versions={"torch": "2.13.0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One export."""

    model: str
    cluster: str
    settings: str
    sequence_length: int = 4096
    framework: Framework = TORCH
    workload: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> tuple[Question, Settings]:
        """Question and settings; the global batch is what the settings make."""
        settings, cluster = parse_settings(self.settings), parse_cluster(self.cluster)
        micro_batches = settings.micro_batch_size * settings.gradient_accumulation_steps
        workload = Workload(
            model=load_model(self.model),
            sequence_length=self.sequence_length,
            global_batch_size=micro_batches * settings.data_parallel_size(cluster.world_size),
            **self.workload,
        )
        question = Question(workload=workload, cluster=cluster, framework=self.framework)
        return question, settings


CASES = {
    "ddp_cpu": Case(
        model="stories15m",
        cluster="cpu:2",
        sequence_length=128,
        settings="sharding=ddp,micro_batch_size=1,gradient_accumulation_steps=4"
        ",sync_each_batch=false",
        workload={"precision": Precision.FP32},
    ),
    "one_gpu": Case(
        model="stories15m",
        cluster="l4",
        sequence_length=128,
        settings="sharding=ddp,micro_batch_size=8,activation_checkpointing=full",
        workload={"optimizer": Optimizer.SGD},
    ),
    "ddp_reduced_in_fp32": Case(
        model="gpt2",
        cluster="2x4xa10g",
        sequence_length=1024,
        settings="sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2",
        workload={"reduce_dtype": ReduceDtype.FP32},
    ),
    "full_shard": Case(
        model="llama-3.1-8b",
        cluster="8xa100-80gb",
        settings="sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4"
        ",sync_each_batch=true,cpu_offload=true",
        workload={"optimizer": Optimizer.ADAMW_8BIT},
    ),
    "hybrid_shard": Case(
        model="mixtral-8x7b",
        cluster="2x8xh100-80gb",
        settings="sharding=hybrid_shard,micro_batch_size=1,gradient_accumulation_steps=4"
        ",sync_each_batch=false",
        workload={"reduce_dtype": ReduceDtype.FP32},
    ),
    "bf16_mixed": Case(
        model="llama-3.1-8b",
        cluster="8xa100-80gb",
        settings="sharding=shard_grad_op,micro_batch_size=1",
        workload={"precision": Precision.BF16_MIXED},
    ),
    "checkpointing": Case(
        model="llama-3.1-8b",
        cluster="8xa100-80gb",
        settings="sharding=full_shard,micro_batch_size=4,activation_checkpointing=full",
    ),
    "checkpointing_with_dropout": Case(
        model="gpt2",
        cluster="2xl4",
        sequence_length=1024,
        settings="sharding=full_shard,micro_batch_size=4,activation_checkpointing=full",
    ),
    "full_shard_cpu": Case(
        model="stories15m",
        cluster="cpu:2",
        sequence_length=128,
        settings="sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2"
        ",sync_each_batch=false,activation_checkpointing=full",
        workload={"precision": Precision.BF16_MIXED, "reduce_dtype": ReduceDtype.FP32},
    ),
}


def _grid() -> list[Case]:
    """Classes of settings on clusters of all kinds; not all of them are legal."""
    found = []
    versions = {"accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.23.0"}
    trainer = Framework(name=FrameworkName.TRAINER, versions=versions)
    nanotron = Framework(name=FrameworkName.NANOTRON, versions={"nanotron": "0.4"})
    clusters = ("8xa100-80gb", "2x4xh100-80gb", "h100-80gb", "4xmi300x", "cpu:2")
    for cluster, sharding, framework in product(clusters, Sharding, (TORCH, trainer, nanotron)):
        for full, sync, tp in product(("none", "full"), ("true", "false"), (1, 2)):
            if tp > parse_cluster(cluster).gpus_per_node:
                continue
            recompute = "true" if tp > 1 and full == "full" else "false"
            offload = "true" if sharding is Sharding.FULL_SHARD and sync == "true" else "false"
            found.append(
                Case(
                    model="gpt2" if (full, sync) == ("full", "false") and tp == 1 else "qwen3-8b",
                    cluster=cluster,
                    sequence_length=1024,
                    framework=framework,
                    settings=f"sharding={sharding},micro_batch_size=2"
                    f",gradient_accumulation_steps=3,sync_each_batch={sync},tp_size={tp}"
                    f",tp_recompute_allgather={recompute},activation_checkpointing={full}"
                    f",cpu_offload={offload}",
                )
            )
    return found


GRID = _grid()


@cache
def grid_parts() -> tuple[tuple[Question, Settings], ...]:
    """Questions and settings of the grid."""
    return tuple(case.parts() for case in GRID)


NANOTRON = Case(
    model="llama-3.1-8b",
    cluster="2x8xh100-80gb",
    framework=Framework(name=FrameworkName.NANOTRON, versions={"nanotron": "0.4"}),
    settings="sharding=zero1,tp_size=4,tp_recompute_allgather=true,pp_size=2,micro_batch_size=1"
    ",gradient_accumulation_steps=16,sync_each_batch=false",
)
TITAN = Case(
    model="llama-3.1-8b",
    cluster="2x8xh100-80gb",
    settings="sharding=hybrid_shard,tp_size=2,micro_batch_size=1,gradient_accumulation_steps=4"
    ",activation_checkpointing=full",
    workload={"reduce_dtype": ReduceDtype.FP32},
)
TENSOR = Case(
    model="llama-3.1-8b",
    cluster="8xa100-80gb",
    settings="sharding=full_shard,tp_size=2,tp_recompute_allgather=true,micro_batch_size=2"
    ",gradient_accumulation_steps=4,sync_each_batch=false",
)
FLAGS = Case(
    model="gpt2",
    cluster="2x4xa10g",
    sequence_length=1024,
    settings="sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false",
)
EXAMPLES: Mapping[str, Case] = {
    "accelerate": CASES["full_shard"],
    "trainer": CASES["checkpointing"],
    "trainer-flags": FLAGS,
    "torch": TENSOR,
    "torchrun": TENSOR,
    "nanotron": NANOTRON,
    "deepspeed": CASES["checkpointing"],
    "torchtitan": TITAN,
    "sbatch": TITAN,
    "kubernetes": TITAN,
    "env": TENSOR,
    "json": TENSOR,
}
"""One for each format: those of the golden files, which the documentation shows."""


def a_script(*arguments: str, launch: Launch = Launch.TORCHRUN) -> Script:
    """A script of the user's own, which is not there."""
    return Script(path="train.py", sha256="0" * 64, folder=".", arguments=arguments, launch=launch)


@pytest.fixture
def cases() -> Mapping[str, Case]:
    """By name of the golden file."""
    return CASES


@pytest.fixture
def case() -> type[Case]:
    """To make one."""
    return Case


@pytest.fixture
def about() -> About:
    """Where the settings come from."""
    return ABOUT


@pytest.fixture
def written(cases: Mapping[str, Any], about: About, tmp_path: Path) -> Any:
    """Writes a case's file and returns its path."""

    def write(name: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(export("accelerate", *cases[name].parts(), about), encoding="utf-8")
        return path

    return write


@pytest.fixture
def launched_environment(written: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts this process into the environment that ``accelerate launch`` makes of a file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    def enter(name: str) -> dict[str, str]:
        argv = ["--config_file", str(written(name)), "--main_process_port", "0", "script.py"]
        args, *_ = _validate_launch_command(launch_command_parser().parse_args(argv))
        ours = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
        made = prepare_multi_gpu_env(args)
        environment = {k: v for k, v in made.items() if k.startswith(ours)}
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        return environment

    return enter
