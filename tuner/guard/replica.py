"""A small model of the same architecture: the same kinds of layers, few channels, no dropout."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from tuner.core.adapter import Adapter
from tuner.core.cluster import Cluster, Device, Gpu, Link, parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import (
    NOT_PROBED,
    OF_ADAPTERS,
    framework,
    packages_beside,
    usual_loss_kernel,
)
from tuner.core.packing import Packing, PackingVariant
from tuner.core.study import Question
from tuner.core.workload import LossKernel, Optimizer, Precision, TensorParallel, Workload
from tuner.dryrun.plan import at_depth, depths_of, rank_spec
from tuner.errors import TunerError, UsageError
from tuner.model import ModelConfig, load_model, read_model_config

# Tokens of a small model.
VOCABULARY = 128
# Learned positions of a small model, where it has some.
POSITIONS = 64
# Tokens that sliding layers see: half of a sequence, so that sliding does something.
WINDOW = 16
# Key and value heads, where there are several; each part of tensor parallelism gets some.
KV_HEADS = 2
# Heads, where each has keys and values of its own.
HEADS = 4
# Query heads that share one head of keys and values.
MOST_QUERY_HEADS = 16
# Channels between the two matrices of a replica's adapter, and alpha over them: what the product of
# the two is scaled by, whatever the workload's own.
RANK, SCALE = 4, 2.0
# Experts of a small model.
MOST_EXPERTS = 8
# Layers: a model whose layers follow no pattern that comes twice keeps all of them.
MOST_LAYERS = 64
# Channels of a head, the first that the configuration's rules let pass: what is rotated of them
# must be even, also where it is 0.4 of them (Phi-2).
HEAD_DIMS = (8, 10, 12, 16, 20, 32, 64)
# Widths are multiples of this: of 16 bytes in bf16, which grouped products want.
ROUND = 8

_WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")


class NoReplicaError(TunerError):
    """There is no small model or no few ranks that stand for these."""


@lru_cache(maxsize=256)
def small_model(model: ModelConfig, parts: int) -> tuple[ModelConfig, tuple[str, ...]]:
    """A small model of the same architecture, and what was left out of it, in words.

    Kept are the kinds of layers and their order (:mod:`tuner.dryrun.plan`), query heads for each
    key head, the shape of the MLP, experts chosen of experts, ties, biases, norms, caps and the
    kind of position embeddings.

    Heads and the MLP must be divisible by ``parts``: ranks of tensor parallelism. Raises
    NoReplicaError: its layers follow no pattern, or no small shape is allowed.
    """
    if model.is_traced:
        raise NoReplicaError(f"{model.type_and_task} is known by dry runs alone")
    depth = depths_of(model)[0]
    if depth > MOST_LAYERS:
        raise NoReplicaError(f"{model.name} has {depth} layers that follow no pattern")
    config = at_depth(model, depth)
    notes = []
    for name in config:  # what is random, or not the mean over a batch's tokens, is not compared
        if ("drop" in name or name == "router_jitter_noise") and config[name]:
            config[name] = 0.0
            notes.append(f"{name} was set to 0")
    if config.get("output_router_logits"):
        config["output_router_logits"] = False
        notes.append("the router's auxiliary loss was left out")
    error: TunerError | None = None
    for fields in _shapes(model, config, parts):
        try:
            return read_model_config(fields, name=f"replica of {model.name}"), tuple(notes)
        except TunerError as refused:
            error = refused
    raise NoReplicaError(f"no small {model.model_type} of its kind is allowed: {error}")


def _shapes(model: ModelConfig, config: Mapping[str, Any], parts: int) -> Iterator[dict[str, Any]]:
    # heads, and key and value heads: divisible by the parts where the model's own are
    if model.kv_heads == model.heads:
        heads = kv_heads = model.heads if model.heads < HEADS else _multiple(HEADS, parts)
    else:
        kv_heads = 1 if model.kv_heads == 1 else _multiple(KV_HEADS, parts)
        heads = kv_heads * (model.heads // model.kv_heads)
        if kv_heads == 1:
            heads = min(heads, MOST_QUERY_HEADS)
    experts: dict[str, Any] = {}
    if model.experts > MOST_EXPERTS:  # as large a share is chosen: several where the model's are
        chosen = round(MOST_EXPERTS * model.experts_per_token / model.experts)
        name = "num_experts" if "num_experts" in config else "num_local_experts"
        least = min(2, model.experts_per_token)
        experts = {name: MOST_EXPERTS, "num_experts_per_tok": max(least, chosen)}
    for head_dim in HEAD_DIMS:
        hidden, own = heads * head_dim, model.heads * model.head_dim
        if model.hidden_size != own:
            hidden = _multiple(hidden * model.hidden_size // own, ROUND)
        elif hidden % ROUND:
            continue
        fields = dict(config)
        fields |= {"vocab_size": VOCABULARY, "hidden_size": hidden, "num_attention_heads": heads}
        own_sizes = {
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "query_pre_attn_scalar": head_dim,
        }
        fields |= {name: size for name, size in own_sizes.items() if name in config}
        if "max_position_embeddings" in config and "rope_parameters" not in config:
            fields["max_position_embeddings"] = POSITIONS
        if config.get("sliding_window"):
            fields["sliding_window"] = WINDOW
        for name in (*_WIDTHS, "n_inner"):  # MLPs as wide for the hidden size as the model's
            if config.get(name):
                width = config[name] * hidden // model.hidden_size
                fields[name] = _multiple(width, ROUND * parts)
        fields |= experts
        fields |= _rope(config, head_dim / model.head_dim)
        yield fields


def _rope(config: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Scalings by channel pair, thinned out to the pairs that are left."""
    given = config.get("rope_parameters")
    if given is None or "short_factor" not in given:
        return {}
    thinned = dict(given)
    for name in ("short_factor", "long_factor"):
        whole = given[name]
        count = max(1, round(len(whole) * share))
        thinned[name] = [whole[i * len(whole) // count] for i in range(count)]
    return {"rope_parameters": thinned}


def _multiple(number: int, of: int) -> int:
    return max(1, -(-number // of)) * of


# Of what a replica is, of the program that trains it and of how it is judged.
#
# Checks of another are of no use. A test holds the digest of all these sources beside it, and
# says when to raise it.
GUARD_FORMAT = 5
# Of every replica: sequences of a step, micro-batches where there are several, tokens.
GLOBAL_BATCH, ACCUMULATION, SEQUENCE = 24, 3, 32
# Of documents that are packed: lengths, and how many have each.
REPLICA_DOCUMENTS = ((5, 1), (11, 1), (16, 1))
# Optimizer steps that are compared. A reused buffer was seen at the second, not at the first.
STEPS = 4
# Data-parallel ranks of a shard group, and replicas of it under ``hybrid_shard``.
DATA_RANKS = 2
# Processes of a replica.
MOST_RANKS = 8
# Of weights and tokens.
SEED = 11
# The packages that a check is about, and that of adapters where one is trained.
STACK = ("torch", "accelerate", "transformers")
# What a replica is trained with in the place of an optimizer that it cannot have.
#
# AdamW has the same states and updates as torchao's, in more bits. That is compiled in every rank,
# in bf16 not at all where parameters are sharded, and its version is not one of those that a
# question states. In fp32 two of its replicas agreed within 1.3e-7; they took 80 s, and 32 s with
# what was compiled at hand, where eight with AdamW took 32 s (torchao 0.18, torch 2.13, two cores).
STANDS_FOR = {Optimizer.ADAMW_8BIT: Optimizer.ADAMW}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A small model, the few ranks that train it, and their settings."""

    workload: Workload  # the small model, its batch and number formats
    cluster: Cluster  # CPU processes; nodes stand for the groups of ``hybrid_shard``
    settings: Settings  # the knobs under test, with the replica's own sizes
    family: str  # of its check (:func:`family_of`)
    notes: tuple[str, ...] = ()  # what the replica leaves out

    @property
    def reference(self) -> "Replica":
        """One process that trains the same, every knob off, with all sequences in one batch.

        It accumulates nothing: a fault of accumulation must not be in what shows it.
        """
        alone = Settings(micro_batch_size=GLOBAL_BATCH, sync_each_batch=False)
        return replace(self, cluster=_processes(1, 1), settings=alone)

    @property
    def structure(self) -> str:
        nodes, ranks = self.cluster.nodes, self.cluster.gpus_per_node
        where = f"{nodes}x{ranks} ranks" if nodes > 1 else f"{ranks} ranks"
        return f"{self.settings} on {where} in {self.workload.precision}"

    def spec(self) -> dict[str, Any]:
        """The spec that the probe program reads: all compared steps are tracked, few are timed."""
        return {
            **rank_spec(self.workload, self.settings, self.cluster),
            "memory_limit_bytes": None,
            "seed": SEED,
            "accumulation_counts": [self.settings.gradient_accumulation_steps],
            "warmup_steps": STEPS,
            "tracked_steps": STEPS,
            "measured_steps": 1,
            "minimum_steps": 1,
            "time_budget_s": 1.0,
        }

    def key(self, versions: Mapping[str, str]) -> str:
        """SHA-256, in hex, of all that the replica's check depends on."""
        return _hash([GUARD_FORMAT, self.spec(), stack_of(versions, self.workload)])


def replica_of(
    question: Question, settings: Settings, precision: Precision | None = None
) -> Replica:
    """The replica of settings.

    It has the workload's optimizer, or what stands for it (:data:`STANDS_FOR`), and the settings'
    class: sharding, whether gradients accumulate and when they are synchronized, recomputation and
    checkpointing. ``tp_size`` becomes its smallest prime factor, and two data-parallel ranks stand
    for any number (``hybrid_shard``: two groups of two). The number format is fp32 unless given, in
    which nothing hides a fault. Raises NoReplicaError: the probe program does not run these
    settings, or no small model has the model's structure.
    """
    if question.framework.name in NOT_PROBED or settings.pp_size > 1:
        name = question.framework.name
        raise NoReplicaError(f"{name} is not run here, so nothing of it is trained")
    if (adapter := question.workload.adapter) is not None and adapter.eight_bits:
        raise NoReplicaError("a model in eight bits is not run here, so nothing of it is trained")
    world_size = question.cluster.world_size
    tp = smallest_factor(settings.tp_size)
    parallel = settings.data_parallel_size(world_size) > 1
    nodes = DATA_RANKS if settings.sharding is Sharding.HYBRID_SHARD else 1
    cluster = _processes(nodes, tp * (DATA_RANKS if parallel else 1))
    if cluster.world_size > MOST_RANKS:
        raise NoReplicaError(
            f"its replica would take {cluster.world_size} ranks, {MOST_RANKS} at most"
        )
    model, notes = small_model(question.workload.model, tp)
    optimizer = _optimizer(question.workload)
    left_out = [*notes]
    if question.workload.adapter is not None and question.workload.adapter.dropout:
        left_out.append("the adapter's dropout was set to 0")
    if question.workload.freezes_layers:
        left_out.append("of the frozen layers the replica has the first alone")
    if (own := question.workload.optimizer) is not optimizer:
        left_out.append(f"the replica was trained with {optimizer} in the place of {own}")
    if settings.cpu_offload:
        left_out.append("on a CPU cpu_offload is not seen to act, only to train the same")
    if settings.fused_loss and usual_loss_kernel(question.framework.name) is LossKernel.LIGER:
        left_out.append("on a CPU the loss was computed part by part by torch, not by Liger")
    packing, own_packing = _replica_packing(question.workload, model), question.workload.packing
    if packing is not None and packing.variant is PackingVariant.VARLEN:
        left_out.append(
            "FlashAttention's library was not run: on a CPU documents were attended to by torch's"
            " kernel, one by one"
        )
    elif packing and own_packing and packing.variant is not own_packing.variant:
        left_out.append("in the small model's windows documents were kept apart by position_ids")
    # in fp32 nothing is rounded more
    rounds = precision is question.workload.precision and precision is not Precision.FP32
    count = ACCUMULATION if settings.gradient_accumulation_steps > 1 else 1
    replicas = cluster.world_size // tp
    return Replica(
        workload=Workload(
            model=model,
            sequence_length=-(-SEQUENCE // tp) * tp,  # a little more where ranks cannot share it
            global_batch_size=GLOBAL_BATCH,
            optimizer=optimizer,
            precision=precision or Precision.FP32,
            reduce_dtype=question.workload.reduce_dtype if rounds else None,
            loss=question.workload.loss,
            tensor_parallel=question.workload.tensor_parallel
            if tp > 1
            else TensorParallel.SEQUENCE_PARALLEL,
            adapter=_replica_adapter(question.workload),
            packing=packing,
            frozen=_replica_frozen(question.workload),
        ),
        cluster=cluster,
        settings=replace(
            settings,
            tp_size=tp,
            micro_batch_size=GLOBAL_BATCH // replicas // count,
            gradient_accumulation_steps=count,
        ),
        family=family_of(question),
        notes=tuple(left_out),
    )


def key_of_probe(study_id: str, program: str, settings: Settings, stack: Mapping[str, str]) -> str:
    """SHA-256, in hex, of what a study's probes of a class have in common, which is kept as the
    check of a replica is."""
    accumulates = settings.gradient_accumulation_steps > 1
    layout = settings.layout.as_dict()
    probed = [study_id, program, layout, accumulates, dict(stack)]
    return _hash([GUARD_FORMAT, *probed])


def family_of(question: Question) -> str:
    """Hashes what all checks that may say something of a question share, as SHA-256 in hex.

    That is the small model's structure, without tensor parallelism, the optimizer, and the stack's
    versions.
    Empty where there are no such checks: a version of the stack is not known, or there is no
    small model.
    """
    versions = question.framework.versions
    if any(package not in versions for package in STACK):
        return ""
    try:
        model, _ = small_model(question.workload.model, 1)
    except NoReplicaError:
        return ""
    optimizer = str(_optimizer(question.workload))
    adapter = _replica_adapter(question.workload)
    packing = _replica_packing(question.workload, model)
    trained: list[object] = [one.as_dict() for one in (adapter, packing) if one is not None]
    trained += [[*frozen]] if (frozen := _replica_frozen(question.workload)) else []
    stack = stack_of(versions, question.workload)
    return _hash([GUARD_FORMAT, model.fingerprint, optimizer, stack, *trained])


def stack_of(versions: Mapping[str, str], workload: Workload) -> dict[str, str]:
    """Of ``versions`` those of the packages that a check of a workload is about."""
    wanted = (*STACK, *OF_ADAPTERS.intersection(packages_beside(workload)))
    return {package: versions[package] for package in wanted if package in versions}


def _processes(nodes: int, ranks_per_node: int) -> Cluster:
    share = Gpu(name="cpu", device=Device.CPU, memory_bytes=2**30)
    return Cluster(
        nodes=nodes, gpus_per_node=ranks_per_node, gpu=share, intra_node=Link(), inter_node=Link()
    )


def _replica_adapter(workload: Workload) -> Adapter | None:
    """The workload's adapter, of a small rank and the usual scale, without what is random."""
    if workload.adapter is None:
        return None
    rank = min(workload.adapter.rank, RANK)
    return replace(workload.adapter, rank=rank, alpha=SCALE * rank, dropout=0.0)


def _replica_frozen(workload: Workload) -> tuple[str, ...]:
    """The workload's frozen parts; of layers the first stands for any, for a replica has few."""
    return tuple({re.sub(r"\.\d+(-\d+)?\b", ".0", part) for part in workload.frozen})


def _replica_packing(workload: Workload, model: ModelConfig) -> Packing | None:
    """The workload's packing of a few short documents, as the small model can be trained on."""
    if workload.packing is None:
        return None
    packing = replace(workload.packing, documents=REPLICA_DOCUMENTS)
    try:
        packing.check(model, SEQUENCE)
    except UsageError:  # of windows, which are always shorter than a replica's sequence
        return replace(packing, variant=PackingVariant.POSITION_IDS)
    return packing


def _optimizer(workload: Workload) -> Optimizer:
    return STANDS_FOR.get(workload.optimizer, workload.optimizer)


def smallest_factor(number: int) -> int:
    """The smallest prime factor of a number above 1; 1 of 1."""
    return next((n for n in range(2, number) if number % n == 0), number)


def _hash(values: object) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# A Llama with grouped queries.
MODEL = "tinyllama-1.1b"
_MANY = Settings(gradient_accumulation_steps=4)
_SHARDINGS = (Sharding.DDP, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD)


def usual_cases() -> Iterator[tuple[Question, Settings]]:
    """Questions with settings of theirs, in the versions that are installed.

    Every sharding with gradients put off and not, the all-reduce of replicas put off, all
    checkpointing, state in host memory, which CPU processes only show to train the same, a fused
    loss, and tensor parallelism with and without recomputation, both under full checkpointing too,
    where buffers that are used again were seen to train wrongly.
    """
    on_off = (True, False)
    workload = Workload(model=load_model(MODEL), sequence_length=512, global_batch_size=64)
    stack = framework("torch")

    def case(cluster: str, **knobs: object) -> tuple[Question, Settings]:
        question = Question(workload=workload, cluster=parse_cluster(cluster), framework=stack)
        return question, Settings.from_dict({**_MANY.as_dict(), **knobs})

    for sharding, sync in product(_SHARDINGS, on_off):
        yield case("8xa100-80gb", sharding=sharding, sync_each_batch=sync)
    for checkpointing in Checkpointing:
        if checkpointing is Checkpointing.NONE:
            continue
        full = {"sharding": Sharding.FULL_SHARD, "activation_checkpointing": checkpointing}
        yield case("8xa100-80gb", **full)
    yield case("8xa100-80gb", sharding=Sharding.FULL_SHARD, cpu_offload=True)
    yield case("8xa100-80gb", sharding=Sharding.FULL_SHARD, fused_loss=True)
    for recompute, checkpointing in product(on_off, (Checkpointing.NONE, Checkpointing.FULL)):
        knobs = {"tp_recompute_allgather": recompute, "activation_checkpointing": checkpointing}
        yield case("2xa100-80gb", tp_size=2, **knobs)
    for sync in on_off:
        knobs = {"sharding": Sharding.HYBRID_SHARD, "sync_each_batch": sync}
        yield case("2x8xa100-80gb", **knobs)
    yield case("2x8xa100-80gb", sharding=Sharding.HYBRID_SHARD, defer_all_reduce=True)
