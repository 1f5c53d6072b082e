"""One line of input: a spec, micro-batch sizes and accumulation counts, and the rules for them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from workers.probe.spec import Spec, parse_spec

# A line has two points.
MOST_SIZES = 2
# Values of the fields that name one; each field's own name is its rule's.
ALLOWED = {
    "settings.sharding": ("ddp", "shard_grad_op", "full_shard", "hybrid_shard"),
    "optimizer": (
        "adamw", "adamw_fused", "adamw_8bit", "sgd", "adamw_bnb_8bit", "paged_adamw_8bit", "lion",
        "adafactor", "muon",
    ),
    "precision": ("bf16", "bf16_mixed", "fp32"),
    "reduce_dtype": ("bf16", "fp32"),
    "loss": ("hf", "fp32", "own_dtype"),
    "tensor_parallel": ("sequence_parallel", "sharded_logits", "gathered_logits"),
    "settings.activation_checkpointing": ("none", "selective", "every_2", "full", "offload"),
    "device": ("cpu", "cuda"),
}  # fmt: skip


class RefusedError(ValueError):
    """A spec breaks a rule."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The order for a dry run."""

    spec: Spec  # its micro-batch size and accumulation counts are of no meaning here
    micro_batch_sizes: tuple[int, ...]  # sequences of one forward pass: one or two sizes, ascending
    accumulation_counts: tuple[int, ...]
    """Micro-batches in one optimizer step, each tracked by a step of its own."""
    copies: tuple[dict[str, Any], ...] = ()
    """The model at two depths, of which the spec's is one, and the whole model: where the two do
    not show the whole, that is run in the place of the deeper one, and nothing in the other's."""
    counts_work: bool = False  # what a micro-batch computes is counted too, which takes time

    def at(self, micro_batch_size: int, count: int) -> Spec:
        knobs = replace(
            self.spec.settings, micro_batch_size=micro_batch_size, gradient_accumulation_steps=count
        )
        return replace(self.spec, settings=knobs, accumulation_counts=[count])


def parse_request(line: str) -> Request:
    """The request of a line.

    Raises:
        RefusedError: the program cannot run the spec, or a dry run would get it wrong.
        ValueError, TypeError: not JSON, or not what a request is made of.
    """
    values = json.loads(line)
    expected = {"id", "spec", "micro_batch_sizes", "accumulation_counts"}
    if not isinstance(values, dict) or set(values) - {"class", "copies", "work"} != expected:
        raise ValueError(f"a request has the fields {sorted(expected)}")
    if not isinstance(values["spec"], dict):
        raise ValueError("spec: must be an object")
    copies = values.get("copies", [])
    if copies and (len(copies) != 3 or values["spec"].get("model") not in copies[:2]):
        raise ValueError("copies: must be the model at two depths, one the spec's, and the whole")
    numbers: dict[str, tuple[int, ...]] = {}
    for field in ("micro_batch_sizes", "accumulation_counts"):
        given = values[field]
        good = isinstance(given, list) and given and all(type(x) is int and x >= 1 for x in given)
        if not good or len(set(given)) != len(given):
            raise RefusedError(field, f"{field}: must be distinct integers of 1 or more")
        if field == "micro_batch_sizes" and len(given) > MOST_SIZES:
            raise RefusedError(field, f"{field}: at most two")
        numbers[field] = tuple(sorted(given))
    counts = numbers["accumulation_counts"]
    spec = parse_spec({**values["spec"], "accumulation_counts": list(counts)})
    counts_work = values.get("work", False) is True
    request = Request(spec=spec, copies=tuple(copies), counts_work=counts_work, **numbers)
    for rule, complaint in broken_rules(request.at(request.micro_batch_sizes[0], counts[0])):
        raise RefusedError(rule, complaint)
    return request


def id_and_class(line: str) -> tuple[str, str]:
    """The id of a line, empty where there is none, and the class that its dry run shares limits in.

    Also of a line that is wrong. The id stands for the class where a line names none.
    """
    try:
        values = json.loads(line)
    except ValueError:
        return "", ""
    if not isinstance(values, dict):
        return "", ""
    name = str(values.get("id", ""))
    return name, str(values.get("class", "")) or name


def broken_rules(spec: Spec) -> Iterator[tuple[str, str]]:
    """The name of each rule that a spec breaks, and what breaks it, the first first."""
    knobs = spec.settings
    for field, allowed in ALLOWED.items():
        name = field.rpartition(".")[2]
        got = getattr(knobs if field.startswith("settings.") else spec, name)
        if got not in allowed:
            yield name, f"{field} is {got!r}; allowed: {', '.join(allowed)}"
    sizes = {
        "world_size": spec.world_size,
        "gpus_per_node": spec.gpus_per_node,
        "sequence_length": spec.sequence_length,
        "settings.micro_batch_size": knobs.micro_batch_size,
        "settings.tp_size": knobs.tp_size,
        "accumulation_counts": min(spec.accumulation_counts),
    }
    if wrong := [f"{name} is {size}" for name, size in sizes.items() if size < 1]:
        yield "sizes", ", ".join(wrong) + ": must be 1 or more"
    if spec.world_size % knobs.tp_size:
        yield (
            "tp_size_divides_world_size",
            f"tp_size {knobs.tp_size} does not divide {spec.world_size} ranks",
        )
    if knobs.sharding == "ddp" and knobs.tp_size > 1 and spec.data_parallel_size > 1:
        yield (
            "ddp_with_tensor_parallel",
            "ddp and tensor parallelism are not run together; shard the replicas instead",
        )
    if knobs.activation_checkpointing == "selective" and knobs.tp_size > 1:
        yield (
            "selective_with_tensor_parallel",
            "products that lead out of a block are whole on every rank before they are summed",
        )
    if knobs.activation_checkpointing == "offload" and spec.device == "cpu":
        yield "offload_on_cpu", "device and host memory of a CPU are one"
    if knobs.sharding == "hybrid_shard":
        rule = "hybrid_shard_within_nodes"
        if spec.world_size % spec.gpus_per_node or spec.gpus_per_node % knobs.tp_size:
            yield (
                rule,
                f"hybrid_shard shards within nodes: {spec.gpus_per_node} ranks of a node must"
                f" divide {spec.world_size} and be divided by tp_size {knobs.tp_size}",
            )
        elif spec.shard_size == 1:
            yield rule, "hybrid_shard needs several data-parallel ranks in a node, to shard over"
    if knobs.cpu_offload and spec.device != "cpu":
        yield (
            "cpu_offload",
            "cpu_offload on cuda: fake tensors are all on one device, so what lives in host memory"
            " cannot be told apart",
        )
