"""Orders: the JSON file for a rank, and the line for a dry run, that cross from the supervisor."""

import json
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

FORMAT = 1
# With all ranks, or by rank 0 alone in a process group of which the others are not there: also
# rehearsed, that is on no device, where nothing is timed.
FIDELITIES = ("measured", "emulated", "rehearsed")
# How documents lie in a sequence.
PACKING_VARIANTS = ("varlen", "position_ids", "block_diagonal", "padded")
# What a model is trained for, with the class of transformers that builds it.
TASKS = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "image_text_to_text": "AutoModelForImageTextToText",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    sharding: str  # ddp, shard_grad_op, full_shard or hybrid_shard
    tp_size: int  # ranks that split each layer
    tp_recompute_allgather: bool  # true: backward gathers activations again
    micro_batch_size: int  # sequences of one forward pass of one data-parallel rank
    gradient_accumulation_steps: int  # micro-batches in one optimizer step of one rank
    sync_each_batch: bool  # true: gradients are reduced after every micro-batch
    activation_checkpointing: str  # none, selective, every_2, full or offload
    cpu_offload: bool  # true: sharded state lives in host memory
    pp_size: int = 1  # pipeline stages; the probe program runs one
    fused_loss: bool = False  # true: logits and loss part by part
    defer_all_reduce: bool = False  # true: replicas of shards reduce after the last micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One probe. Every rank reads the same file."""

    format: int  # version of this file's form
    model: dict[str, Any]  # fields of the model's configuration, `model_type` among them
    settings: Knobs  # the configuration
    sequence_length: int  # tokens of one sequence
    global_batch_size: int
    """Sequences of one optimizer step at the configuration's own accumulation."""
    optimizer: str  # one of ``Optimizer`` in tuner/core/workload.py
    precision: str  # bf16, bf16_mixed or fp32
    reduce_dtype: str  # bf16 or fp32
    world_size: int  # ranks
    gpus_per_node: int  # ranks that share a node; hybrid_shard shards within it
    device: str  # cpu or cuda
    memory_limit_bytes: int | None  # bytes one rank may allocate on its device
    seed: int  # seed of weights and tokens
    accumulation_counts: list[int]
    """Micro-batches per optimizer step that are run, one after the other; the last is tracked."""
    warmup_steps: int  # steps before time is taken, at each count; the tracked ones are among them
    tracked_steps: int  # steps whose memory and collectives are tracked, at the last count
    measured_steps: int  # steps whose time is taken
    minimum_steps: int  # steps whose time is taken even when the time budget is short
    time_budget_s: float  # seconds for the measured steps of all counts
    fidelity: str = "measured"  # one of `FIDELITIES`; of no meaning to a dry run
    give_up_above_s: float | None = None
    """Seconds of an optimizer step at the configuration's own accumulation: one that takes more is
    not timed further. ``None`` where all steps are to be timed."""

    loss: str = "hf"  # hf, fp32 or own_dtype: what is done with whole logits
    loss_kernel: str = "chunked"  # chunked or liger: what computes a fused loss
    tensor_parallel: str = "sequence_parallel"
    """Or ``sharded_logits`` or ``gathered_logits``, without sequence parallelism; with ``tp_size``
    above 1."""

    adapter: dict[str, Any] | None = None
    """What is trained in the model's place: method (lora or qlora), rank, alpha, dropout and
    target_modules; with qlora also quantize (nf4, fp4) and double_quant. modules_to_save, if there
    are any, are trained whole beside it."""

    frozen: list[str] = field(default_factory=list)
    """Parts of the model that are not trained, as ``freeze`` in model.py finds them."""

    packing: dict[str, Any] | None = None
    """How documents lie in a sequence: variant (varlen, position_ids, block_diagonal or padded),
    and documents, the tokens of each, the same in every sequence."""

    task: str = "causal_lm"  # one of `TASKS`
    image_tokens: int = 0  # of each sequence; some of image_text_to_text, else none
    attention_backends: dict[str, str] = field(default_factory=dict)
    """Kernels of attention that the cost model says torch chooses on the device: by kind of call,
    ``unmasked`` or ``masked``. A dry run takes ``math`` where it is said so, and else a fused one.
    A probe on a device leaves the choice to torch, and records it."""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format: got {self.format}; this program reads {FORMAT}")
        if self.settings.pp_size != 1:
            raise ValueError("settings.pp_size: the probe program runs one pipeline stage")
        if not self.accumulation_counts:
            raise ValueError("accumulation_counts: must name at least one count")
        if self.fidelity not in FIDELITIES:
            raise ValueError(f"fidelity: got {self.fidelity!r}; must be one of {FIDELITIES}")
        if self.task not in TASKS:
            raise ValueError(f"task: got {self.task!r}; must be one of {', '.join(TASKS)}")
        if self.task != "causal_lm":
            self._check_other_task()
        if (self.task == "image_text_to_text") != (self.image_tokens > 0):
            raise ValueError("image_tokens: some are of image_text_to_text, and of it alone")
        if odd := set(self.attention_backends) - {"unmasked", "masked"}:
            raise ValueError(f"attention_backends: got {sorted(odd)}; there are unmasked, masked")
        if (self.adapter is not None or self.frozen) and self.settings.tp_size > 1:
            raise ValueError("adapter, frozen: are not run with tensor parallelism")
        if self.packing is not None:
            self._check_packing(**self.packing)
        if self.give_up_above_s is not None and not self.give_up_above_s > 0:
            raise ValueError(f"give_up_above_s: got {self.give_up_above_s}; must be positive")

    def _check_other_task(self) -> None:
        if self.settings.tp_size > 1 or self.settings.fused_loss:
            raise ValueError("task: only causal_lm is run with tp_size or fused_loss")
        if self.loss != "hf" or self.packing:
            raise ValueError("task: only causal_lm is run with a loss or packing")
        quantizes = self.adapter is not None and self.adapter["method"] == "qlora"
        if self.adapter is not None and (self.task != "image_text_to_text" or quantizes):
            raise ValueError("task: only causal_lm and, by lora, image_text_to_text are adapted")

    def _check_packing(self, variant: str, documents: list[int]) -> None:
        if variant not in PACKING_VARIANTS:
            raise ValueError(f"packing.variant: got {variant!r}; one of {PACKING_VARIANTS}")
        tokens = sum(documents)
        if not 0 < tokens <= self.sequence_length or min(documents) < 1:
            raise ValueError("packing.documents: must be tokens of one sequence")
        if variant != "padded" and tokens != self.sequence_length:
            raise ValueError("packing.documents: must fill a sequence")
        if self.settings.tp_size > 1:
            raise ValueError("packing: is not run with tensor parallelism")

    @property
    def fused_by(self) -> str:
        """What computes the loss part by part; empty where the logits are whole."""
        return self.loss_kernel if self.settings.fused_loss else ""

    @property
    def is_alone(self) -> bool:
        return self.fidelity != "measured"

    @property
    def data_parallel_size(self) -> int:
        """Ranks that see different data."""
        return self.world_size // self.settings.tp_size

    @property
    def replicate_size(self) -> int:
        """Groups that hold the same shards: nodes under hybrid_shard."""
        if self.settings.sharding != "hybrid_shard":
            return 1
        return self.world_size // self.gpus_per_node

    @property
    def shard_size(self) -> int:
        """Ranks that the sharded state is split over; 1 under ddp."""
        if self.settings.sharding == "ddp":
            return 1
        return self.data_parallel_size // self.replicate_size

    @property
    def is_sharded(self) -> bool:
        return self.settings.sharding != "ddp" and self.data_parallel_size > 1

    def data_parallel_rank(self, rank: int) -> int:
        """The share of the global batch that a rank computes; tensor parallelism is innermost."""
        return rank // self.settings.tp_size


def read_spec(path: Path) -> Spec:
    """Read a spec file. Raises ValueError: not JSON, unknown or missing fields, or another
    format."""
    try:
        return parse_spec(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def parse_spec(values: dict[str, Any]) -> Spec:
    """A spec from JSON's values. Raises ValueError: unknown or missing fields, or another
    format."""
    given, known = set(values), {f.name for f in fields(Spec)}
    required = {
        f.name for f in fields(Spec) if f.default is MISSING and f.default_factory is MISSING
    }
    if odd := (required - given) | (given - known):
        raise ValueError(f"unknown or missing fields {sorted(odd)}")
    return Spec(**{**values, "settings": Knobs(**values["settings"])})


# -- dry runs -----------------------------------------------------------------------------------

# A line has two points.
MOST_SIZES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The order for a dry run: one line of its program's input.

    Settings that no dry run shows are refused before they get here (``tuner/dryrun/plan.py``), and
    those that are not legal before that (``tuner/space/rules.py``).
    """

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
    for name in ("micro_batch_sizes", "accumulation_counts"):
        given = values[name]
        good = isinstance(given, list) and given and all(type(x) is int and x >= 1 for x in given)
        if not good or len(set(given)) != len(given):
            raise ValueError(f"{name}: must be distinct integers of 1 or more")
        if name == "micro_batch_sizes" and len(given) > MOST_SIZES:
            raise ValueError(f"{name}: at most two")
        numbers[name] = tuple(sorted(given))
    counts = list(numbers["accumulation_counts"])
    spec = parse_spec({**values["spec"], "accumulation_counts": counts})
    counts_work = values.get("work", False) is True
    return Request(spec=spec, copies=tuple(copies), counts_work=counts_work, **numbers)


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
