"""Questions and configurations that the tests export."""

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle, product
from typing import Any

from tests.records import VERSIONS as STATED
from tuner.core.adapter import Adapter
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Sharding, parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.quantity import Provenance
from tuner.core.script import Launch, Script
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.launchfiles import About
from tuner.model import load_model

ABOUT = About(
    study_id="st-0123456789ab",
    date="2026-01-15",
    provenance=Provenance.MEASURED,
    versions=STATED,
    figures=(
        "3425 tokens/s per GPU (3390 to 3460)",
        "61.9 GiB of 79.2 GiB allocated on the fullest GPU (61.9 to 62.3)",
    ),
)
TORCH = Framework(name=FrameworkName.TORCH, versions={"torch": "2.13.0"})
ZERO = Framework(name=FrameworkName.DEEPSPEED, versions={"deepspeed": "0.19.8"})
NANOTRON = Framework(name=FrameworkName.NANOTRON, versions={"nanotron": "0.4"})


def trainer(**versions):
    """The Trainer, of the usual versions but for those given."""
    return Framework(name=FrameworkName.TRAINER, versions={**STATED, **versions})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One export."""

    model: str = "llama-3.1-8b"
    cluster: str = "8xa100-80gb"
    settings: str
    sequence_length: int = 1024
    framework: Framework = TORCH
    workload: dict[str, Any] = field(default_factory=dict)

    def parts(self):
        """Question and configuration; the global batch is what the configuration makes."""
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


STORIES = {"model": "stories15m", "sequence_length": 128}
FP32 = {"reduce_dtype": ReduceDtype.FP32}
MIXED = {"precision": Precision.BF16_MIXED}
TWICE = "micro_batch_size=2,gradient_accumulation_steps=2"
# Those of accelerate's golden files.
CASES = {
    "ddp_cpu": Case(
        cluster="cpu:2", **STORIES, workload={"precision": Precision.FP32},
        settings="sharding=ddp,gradient_accumulation_steps=4,sync_each_batch=false"),
    "one_gpu": Case(
        cluster="l4", **STORIES, workload={"optimizer": Optimizer.SGD},
        settings="sharding=ddp,micro_batch_size=8,activation_checkpointing=full"),
    "ddp_reduced_in_fp32": Case(
        model="gpt2", cluster="2x4xa10g", settings=f"sharding=ddp,{TWICE}", workload=FP32),
    "full_shard": Case(
        sequence_length=4096, workload={"optimizer": Optimizer.ADAMW_8BIT},
        settings="sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4"
        ",sync_each_batch=true,cpu_offload=true"),
    "hybrid_shard": Case(
        model="mixtral-8x7b", cluster="2x8xh100-80gb", sequence_length=4096, workload=FP32,
        settings="sharding=hybrid_shard,gradient_accumulation_steps=4,sync_each_batch=false"),
    "ring": Case(
        cluster="2x8xh100-80gb", sequence_length=65536, workload=FP32,
        settings="sharding=hybrid_shard,cp_size=4,gradient_accumulation_steps=2"
        ",defer_all_reduce=true,activation_checkpointing=full"),
    "bf16_mixed": Case(
        sequence_length=4096, settings="sharding=shard_grad_op", workload=MIXED),
    "checkpointing": Case(
        sequence_length=4096,
        settings="sharding=full_shard,micro_batch_size=4,activation_checkpointing=full"),
    "checkpointing_with_dropout": Case(
        model="gpt2", cluster="2xl4",
        settings="sharding=full_shard,micro_batch_size=4,activation_checkpointing=full"),
    "checkpointing_with_adapter": Case(
        sequence_length=4096, workload={**MIXED, "adapter": Adapter(rank=8)},
        settings="sharding=full_shard,activation_checkpointing=full"),
    "full_shard_cpu": Case(
        cluster="cpu:2", **STORIES, workload={**MIXED, **FP32},
        settings=f"sharding=full_shard,{TWICE},sync_each_batch=false,activation_checkpointing=full"),
}  # fmt: skip
TITAN = Case(
    cluster="2x8xh100-80gb", sequence_length=4096, workload=FP32,
    settings="sharding=hybrid_shard,tp_size=2,micro_batch_size=1,gradient_accumulation_steps=4"
    ",activation_checkpointing=full",
)  # fmt: skip
TENSOR = Case(
    sequence_length=4096,
    settings="sharding=full_shard,tp_size=2,tp_recompute_allgather=true,micro_batch_size=2"
    ",gradient_accumulation_steps=4,sync_each_batch=false",
)
FLAGS = f"sharding=ddp,{TWICE},sync_each_batch=false"
# One for each format: those of the golden files, which docs/exports.md shows.
EXAMPLES = {
    "accelerate": CASES["full_shard"],
    "trainer": CASES["checkpointing"],
    "trainer-flags": Case(model="gpt2", cluster="2x4xa10g", settings=FLAGS),
    "torch": TENSOR,
    "torchrun": TENSOR,
    "nanotron": Case(
        cluster="2x8xh100-80gb", sequence_length=4096, framework=NANOTRON,
        settings="sharding=zero1,tp_size=4,tp_recompute_allgather=true,pp_size=2"
        ",gradient_accumulation_steps=16,sync_each_batch=false"),
    "deepspeed": Case(
        cluster="2x8xa100-80gb", sequence_length=4096, framework=ZERO,
        workload={**MIXED, "reduce_dtype": ReduceDtype.BF16},
        settings="sharding=hybrid_shard,micro_batch_size=2,gradient_accumulation_steps=4"
        ",activation_checkpointing=full"),
    "torchtitan": TITAN,
    "sbatch": TITAN,
    "kubernetes": TITAN,
    "env": TENSOR,
    "json": TENSOR,
}  # fmt: skip


@cache
def grid():
    """Layouts of all kinds, each on a cluster and for frameworks; not all of them are legal."""
    clusters = cycle(("8xa100-80gb", "2x4xh100-80gb", "cpu:2", "4xmi300x", "h100-80gb"))
    found = [case.parts() for case in (*CASES.values(), *EXAMPLES.values())]
    layouts = product(Sharding, (TORCH, trainer(), NANOTRON, ZERO), ("none", "full"), (True, False))
    for (sharding, framework, full, sync), tp in product(layouts, (1, 2)):
        cluster = next(clusters)
        if tp <= parse_cluster(cluster).gpus_per_node:
            dropout = full == "full" and not sync and tp == 1
            case = Case(
                model="gpt2" if dropout else "qwen3-8b",
                cluster=cluster,
                framework=framework,
                settings=f"sharding={sharding},micro_batch_size=2,gradient_accumulation_steps=3"
                f",sync_each_batch={str(sync).lower()},tp_size={tp},activation_checkpointing={full}"
                f",tp_recompute_allgather={str(tp > 1 and full == 'full').lower()}"
                f",cpu_offload={str(sharding is Sharding.FULL_SHARD and sync).lower()}",
            )
            found.append(case.parts())
    return tuple(found)


# What a user need not have said of a script, and no file may say.
NUMBERS = {"precision": Precision.BF16_MIXED, "optimizer": Optimizer.ADAMW_8BIT}


def of_script(name, *arguments, **more):
    """A question about a script of the user's own, which is not there, and a configuration."""
    given = {"cluster": "8xh100-80gb", "settings": "sharding=full_shard", "workload": NUMBERS}
    question, settings = Case(**{**given, **more}).parts()
    versions = {"nanotron": "0.4"} if name == "nanotron" else STATED
    script = Script(
        path="train.py",
        sha256="0" * 64,
        folder=".",
        arguments=("{micro_batch_size}", "{gradient_accumulation_steps}", *arguments),
        launch=Launch.ACCELERATE if name in ("accelerate", "trainer") else Launch.TORCHRUN,
    )
    framework = Framework(name=FrameworkName(name), versions=versions)
    return replace(question, framework=framework, script=script), settings
