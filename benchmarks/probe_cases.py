"""The settings that are measured on CPU ranks: every knob, on two small models.

Each line is a case; what it leaves out has the default of :class:`Case`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from tuner.catalog.models import entry
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import Settings, parse_settings
from tuner.core.framework import Framework, framework
from tuner.core.measurement import Fidelity
from tuner.core.study import (
    Limits,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
)
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.model import ModelConfig, read_model_config
from tuner.model import published_model as read
from tuner.space import check_settings
from workers.measuring.measure import probe_spec

MOE = {
    "model_type": "mixtral",
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
}
"""A mixture of experts that is small: 14 million parameters, 9.4 of them in experts."""

DENSE = {
    "model_type": "qwen3",
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
"""A dense model with norms of heads, and an output head of its own: 1.5 million parameters."""

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
}
"""A model that takes a moment: for trying out how something is run."""

CASES = """
stories15m  cpu:2  sharding=ddp
stories15m  cpu:2  sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2
stories15m  cpu:2  sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
stories15m  cpu:2  sharding=ddp,micro_batch_size=4,activation_checkpointing=full
stories15m  cpu:2  sharding=ddp,micro_batch_size=3,gradient_accumulation_steps=3  precision=bf16
stories15m  cpu:2  sharding=ddp,micro_batch_size=2  precision=bf16_mixed
stories15m  cpu:2  sharding=ddp,micro_batch_size=2  precision=bf16_mixed reduce_dtype=fp32
stories15m  cpu:2  sharding=ddp,micro_batch_size=2  optimizer=sgd
stories15m  cpu:2  sharding=shard_grad_op,micro_batch_size=2
stories15m  cpu:2  sharding=shard_grad_op,micro_batch_size=2,gradient_accumulation_steps=2
stories15m  cpu:2  sharding=shard_grad_op,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
stories15m  cpu:4  sharding=shard_grad_op,micro_batch_size=4,activation_checkpointing=full  precision=bf16_mixed
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
stories15m  cpu:2  sharding=full_shard,micro_batch_size=8,activation_checkpointing=full
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2  precision=bf16
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2  precision=bf16 reduce_dtype=fp32
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2  precision=bf16_mixed
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false  precision=bf16_mixed reduce_dtype=fp32
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2  optimizer=sgd
stories15m  cpu:2  sharding=full_shard,micro_batch_size=2  optimizer=adamw_8bit
stories15m  cpu:4  sharding=full_shard,gradient_accumulation_steps=4,sync_each_batch=false  sequence_length=256
stories15m  cpu:4  sharding=full_shard,micro_batch_size=3  precision=bf16_mixed
stories15m  cpu:2  tp_size=2,tp_recompute_allgather=true,micro_batch_size=2
stories15m  cpu:2  tp_size=2,micro_batch_size=2
stories15m  cpu:2  tp_size=2,micro_batch_size=4,gradient_accumulation_steps=2,activation_checkpointing=full
stories15m  cpu:2  tp_size=2,tp_recompute_allgather=true,micro_batch_size=2  precision=bf16_mixed
stories15m  cpu:4  sharding=full_shard,tp_size=2,tp_recompute_allgather=true,micro_batch_size=2,gradient_accumulation_steps=2
stories15m  cpu:4  sharding=full_shard,tp_size=2,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
stories15m  cpu:4  sharding=shard_grad_op,tp_size=2,micro_batch_size=4,activation_checkpointing=full
stories15m  2x2xcpu  sharding=hybrid_shard,micro_batch_size=2
stories15m  2x2xcpu  sharding=hybrid_shard,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
stories15m  2x2xcpu  sharding=hybrid_shard,gradient_accumulation_steps=4,activation_checkpointing=full  precision=bf16
moe  cpu:2  sharding=ddp,micro_batch_size=2
moe  cpu:2  sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false,activation_checkpointing=full
moe  cpu:2  sharding=shard_grad_op,gradient_accumulation_steps=4
moe  cpu:2  sharding=full_shard,micro_batch_size=4
moe  cpu:2  sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2  precision=bf16
moe  cpu:2  sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
moe  cpu:3  sharding=full_shard,micro_batch_size=2
moe  cpu:4  sharding=full_shard,micro_batch_size=2,activation_checkpointing=full  precision=bf16_mixed
moe  cpu:2  sharding=full_shard,micro_batch_size=4,activation_checkpointing=full  optimizer=sgd
moe  2x2xcpu  sharding=hybrid_shard,micro_batch_size=2,gradient_accumulation_steps=2
moe  cpu:2  tp_size=2,tp_recompute_allgather=true,micro_batch_size=2
moe  cpu:2  tp_size=2,micro_batch_size=2,activation_checkpointing=full
moe  cpu:4  sharding=full_shard,tp_size=2,tp_recompute_allgather=true,micro_batch_size=2
moe  cpu:4  sharding=shard_grad_op,tp_size=2,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
"""  # noqa: E501  (a table)

PROFILED = (
    "stories15m cpu:2 sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2",
    "stories15m cpu:2 sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2",
    "stories15m cpu:2 sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2,"
    "sync_each_batch=false",
    "stories15m cpu:2 tp_size=2,tp_recompute_allgather=true,micro_batch_size=2",
    "stories15m cpu:4 sharding=full_shard,tp_size=2,micro_batch_size=2,"
    "gradient_accumulation_steps=2,sync_each_batch=false",
    "moe cpu:2 sharding=full_shard,micro_batch_size=4",
)
"""Cases whose allocations are counted by torch's profiler too."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One settings of one small model on CPU ranks."""

    text: str  # its line, words apart by one space: its name
    workload: Workload  # what is trained; its batch is what the settings make
    cluster: Cluster  # CPU ranks of this machine
    settings: Settings  # as the space has them, inactive knobs collapsed

    @property
    def framework(self) -> Framework:
        """The stack that the probe program runs, as installed."""
        return framework("torch")

    @property
    def question(self) -> Question:
        """The study that it would be a probe of."""
        return _question(self.workload, self.cluster)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; the machine's memory is left out."""
        workload = self.workload.as_dict()
        del workload["model"]
        return {"cluster": self.cluster.name, "workload": workload, **self.settings.as_dict()}


def cases() -> list[Case]:
    return [case(line) for line in CASES.strip().splitlines()]


def adapter_cases() -> list[Case]:
    """LoRA and QLoRA on two models, by DDP and FSDP2, with layers computed again and not, and with
    gradients of two micro-batches reduced once and twice."""
    return [
        case(
            f"{model} cpu:2 sharding={sharding},micro_batch_size=2,gradient_accumulation_steps=2,"
            f"sync_each_batch={sync},activation_checkpointing={how}"
            f"  precision={precision} adapter={method}"
        )
        for method, (model, precision), sharding, how, sync in product(
            ("lora", "qlora"), (("stories15m", "fp32"), ("dense", "bf16_mixed")),
            ("ddp", "full_shard"), ("none", "full"), ("true", "false"),
        )
    ]  # fmt: skip


def profiled_cases() -> list[Case]:
    """Those that the profiler looks at too."""
    return [one for one in cases() if one.text in PROFILED]


def case(line: str) -> Case:
    """One case from its line: model, cluster, settings, and what else differs.

    Raises:
        UsageError: the settings are not legal.
    """
    name, where, knobs, *others = line.split()
    options = dict(other.split("=") for other in others)
    cluster, settings = parse_cluster(where), parse_settings(knobs)
    replicas = settings.data_parallel_size(cluster.world_size)
    batch = settings.micro_batch_size * settings.gradient_accumulation_steps * replicas
    workload = Workload(
        model=_model(name),
        sequence_length=int(options.get("sequence_length", 128)),
        global_batch_size=batch,
        optimizer=Optimizer(options.get("optimizer", "adamw")),
        precision=Precision(options.get("precision", "fp32")),
        reduce_dtype=ReduceDtype(options["reduce_dtype"]) if "reduce_dtype" in options else None,
        adapter=Adapter(method=AdapterMethod(options["adapter"])) if "adapter" in options else None,
    )
    given = [part.partition("=")[0] for part in knobs.split(",")]
    legal = check_settings(_question(workload, cluster), settings, given=given)
    return Case(text=" ".join(line.split()), workload=workload, cluster=cluster, settings=legal)


def spec_of(
    case: Case,
    fidelity: Fidelity,
    steps: Mapping[str, Any],
    *,
    counts: tuple[int, ...] = (),
    limit_bytes: int | None = None,
) -> dict[str, Any]:
    """The spec with which a worker would probe a case, but for its number of steps.

    Args:
        case: what to probe.
        fidelity: measured or emulated.
        steps: fields of the spec that say how many steps are run.
        counts: accumulation counts that are run; by default the settings' own.
        limit_bytes: what one rank may allocate.
    """
    request = ProbeRequest(settings=case.settings, fidelity=fidelity, accumulation_counts=counts)
    probe = Probe(id=1, request=request, state=ProbeState.RUNNING, memory_limit_bytes=limit_bytes)
    study = Study(
        id="st-benchmark", question=case.question, limits=Limits(), state=StudyState.RUNNING
    )
    return {**probe_spec(study, probe), **steps}


def _question(workload: Workload, cluster: Cluster) -> Question:
    return Question(workload=workload, cluster=cluster, framework=framework("torch"))


@cache
def _model(name: str) -> ModelConfig:
    own = {"moe": MOE, "dense": DENSE, "tiny": TINY}
    if name in own:
        return read_model_config(own[name], name)
    name, _, layers = name.partition(":")  # such as llama-3.2-1b:4, of which 4 layers are taken
    if not layers:
        return read(name)
    return read_model_config({**entry(name)["config"], "num_hidden_layers": int(layers)}, name)
