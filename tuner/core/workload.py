"""The workload: model, batch, optimizer and precisions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any

from tuner.catalog.models import Task
from tuner.core.adapter import Adapter, names_of
from tuner.core.bounds import Whole, check_bounds, choice
from tuner.core.packing import Packing
from tuner.errors import UsageError
from tuner.model import ModelConfig, read_model_config
from tuner.serialization import plain

# Sequences in a global batch; more is a mistake in units.
LARGEST_BATCH = 2**20
# Tokens in a sequence; more is a mistake in units.
LARGEST_SEQUENCE = 2**22

SequenceLength = Annotated[int, Whole(2, LARGEST_SEQUENCE)]
BatchSize = Annotated[int, Whole(1, LARGEST_BATCH)]


class Optimizer(StrEnum):
    """The optimizer, which decides the bytes of state per parameter."""

    ADAMW = "adamw"  # two moments in the parameters' precision
    ADAMW_FUSED = "adamw_fused"  # the same, in one kernel that makes no copies
    ADAMW_8BIT = "adamw_8bit"  # two moments of one byte each, by torchao
    SGD = "sgd"  # no state: momentum is off
    ADAMW_BNB_8BIT = "adamw_bnb_8bit"  # two moments of one byte each, by bitsandbytes
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"  # the same, in memory that host and GPU share
    LION = "lion"  # one moment in fp32, by bitsandbytes
    ADAFACTOR = "adafactor"  # means of squares over rows and columns, by transformers
    MUON = "muon"  # one moment of layers' matrices; AdamW of all else


class Precision(StrEnum):
    """Number formats of weights and compute."""

    BF16 = "bf16"  # weights, gradients and optimizer state in bf16
    BF16_MIXED = "bf16_mixed"  # fp32 weights, gradients and state; matrices multiplied in bf16
    FP32 = "fp32"


class ReduceDtype(StrEnum):
    """Number format in which gradients are reduced over the data-parallel ranks."""

    BF16 = "bf16"
    FP32 = "fp32"
    FRAMEWORK = "framework"  # what accelerate and the Trainer do unasked (`Workload.reduced_in`)


class Loss(StrEnum):
    """What a training script does with whole logits."""

    HF = "hf"  # transformers' own loss, of the release that is installed or stated
    FP32 = "fp32"  # cross entropy of an fp32 copy of the logits, in any release
    OWN_DTYPE = "own_dtype"  # cross entropy of the logits as they are


class LossKernel(StrEnum):
    """What computes logits and loss part by part where ``fused_loss`` is true."""

    CHUNKED = "chunked"  # torch, an eighth of the tokens at a time: the probe program's, exported
    LIGER = "liger"  # Liger-Kernel's fused linear cross entropy, in Triton: on GPUs only


class TensorParallel(StrEnum):
    """How a training script splits layers under tensor parallelism."""

    SEQUENCE_PARALLEL = "sequence_parallel"  # tokens are split between the blocks, logits always
    SHARDED_LOGITS = "sharded_logits"  # whole sequences between the blocks, logits in parts
    GATHERED_LOGITS = "gathered_logits"  # whole sequences, whole logits: transformers' own plans


# A part of the model that is not trained: a name of modules, with numbers and ranges of them where
# these are in lists.
_PART = re.compile(r"[A-Za-z_]\w*(\.(\w+|\d{1,4}-\d{1,4}))*")
MOST_PARTS = 64
PART = "must be embeddings, head, or names such as embed_tokens, norm and layers.0-15"


# Fields that came later.
_LATER = frozenset({"loss", "tensor_parallel", "adapter", "packing", "frozen", "image_tokens"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload. Nothing in it may be changed to make training faster."""

    model: ModelConfig  # the model's shape, and the task that it is trained for
    sequence_length: SequenceLength
    """Tokens of one sequence; at least 2, for each is predicted from those before it."""
    global_batch_size: BatchSize
    """Sequences of one optimizer step, over all ranks and micro-batches."""
    optimizer: Optimizer = Optimizer.ADAMW  # the optimizer
    precision: Precision = Precision.BF16  # number formats of weights and compute
    reduce_dtype: ReduceDtype | None = None
    """Number format of gradient reduction; ``None`` becomes the precision's own, and ``framework``
    stays where it depends on sharding, in mixed precision."""
    loss: Loss = Loss.HF  # what is done with whole logits
    tensor_parallel: TensorParallel = TensorParallel.SEQUENCE_PARALLEL
    """How layers are split under tensor parallelism."""
    adapter: Adapter | None = None  # what is trained in the model's place; all of it where none is
    packing: Packing | None = None  # the documents of a sequence; one text where there is none
    frozen: tuple[str, ...] = ()
    """Parts of the model that are not trained (``freeze`` in workers/probe/model.py)."""
    image_tokens: Annotated[int, Whole(0, LARGEST_SEQUENCE)] = 0
    """Tokens of each sequence that stand for images."""

    def __post_init__(self) -> None:
        check_bounds(self)
        longest = self.model.max_sequence_length
        if self.sequence_length > longest:
            raise UsageError(
                "sequence_length",
                self.sequence_length,
                f"{self.model.name} takes {longest} at most",
            )
        if self.loss is not Loss.HF and not self.model.is_causal_lm:
            allowed = f"must be hf for {self.model.task}: another is not covered"
            raise UsageError("loss", str(self.loss), allowed)
        if self.adapter is not None:
            self.adapter.check(self.model)
        sees = self.model.task is Task.IMAGE_TEXT_TO_TEXT
        if sees and not 0 < self.image_tokens < self.sequence_length:
            allowed = f"must be from 1 to below the sequence's {self.sequence_length} tokens"
            raise UsageError(
                "image_tokens", self.image_tokens, f"{allowed} with task {Task.IMAGE_TEXT_TO_TEXT}"
            )
        if self.image_tokens and not sees:
            allowed = f"needs task {Task.IMAGE_TEXT_TO_TEXT}"
            raise UsageError("image_tokens", self.image_tokens, allowed)
        object.__setattr__(self, "frozen", names_of("frozen", self.frozen))
        if odd := [one for one in self.frozen if len(one) > 200 or not _PART.fullmatch(one)]:
            raise UsageError("frozen", ",".join(odd), PART)
        if len(self.frozen) > MOST_PARTS:
            raise UsageError("frozen", len(self.frozen), f"must be {MOST_PARTS} parts at most")
        if self.frozen and self.adapter is not None:
            allowed = "all but an adapter is frozen; modules_to_save says what is trained beside it"
            raise UsageError("frozen", ",".join(self.frozen), allowed)
        if self.packing is not None:
            self.packing.check(self.model, self.sequence_length)
        mixed = self.precision is Precision.BF16_MIXED
        unasked = self.reduce_dtype is ReduceDtype.FRAMEWORK and not mixed
        if self.reduce_dtype is None or unasked:
            own = ReduceDtype.FP32 if self.precision is Precision.FP32 else ReduceDtype.BF16
            object.__setattr__(self, "reduce_dtype", own)

    @property
    def splits_sequence(self) -> bool:
        """Tells whether tensor parallelism, where there is any, is sequence parallel."""
        return self.tensor_parallel is TensorParallel.SEQUENCE_PARALLEL

    @property
    def gathers_logits(self) -> bool:
        """Tells whether each rank has whole logits, and the loss that one process has."""
        return self.tensor_parallel is TensorParallel.GATHERED_LOGITS

    @property
    def is_traced(self) -> bool:
        """Tells whether dry runs alone know it: no arithmetic has its model's type, or what of the
        model is trained: parts of it, whole modules beside an adapter, one beside experts."""
        model, adapter = self.model, self.adapter
        beside = adapter is not None and bool(adapter.modules_to_save or model.experts)
        return model.is_traced or bool(self.frozen) or beside

    @property
    def has_arithmetic(self) -> bool:
        """Tells whether needs and times are computed; else rules of thumb stand for them."""
        return self.model.is_named and not self.is_traced

    @property
    def freezes_layers(self) -> bool:
        """Tells whether some layers are trained and others are not."""
        return any(re.search(r"\.\d", part) for part in self.frozen)

    @property
    def masked(self) -> bool | None:
        """Whether packing gives all layers' attention a mask; ``None`` where each has its own."""
        return None if self.packing is None else self.packing.masks(self.sequence_length)

    @property
    def row(self) -> tuple[int, ...]:
        """Tokens of the documents in a sequence."""
        packing = self.packing
        return packing.row(self.sequence_length) if packing else (self.sequence_length,)

    @property
    def unlike_usual(self) -> tuple[str, ...]:
        """How it is not all of a model that is trained on whole texts, such as ``qlora of rank 16``
        and ``packing varlen``."""
        found = [f"{self.adapter.method} of rank {self.adapter.rank}"] if self.adapter else []
        found += [f"frozen {', '.join(self.frozen)}"] * bool(self.frozen)
        found += [f"{self.image_tokens} tokens of images"] * bool(self.image_tokens)
        return (*found, *([f"packing {self.packing.variant}"] if self.packing else []))

    def reduced_in(self, *, sharded: bool, split: bool = False) -> ReduceDtype:
        """Number format in which FSDP reduces gradients, or else DDP; ``split`` says whether layers
        are split over ranks too.

        Unasked DDP reduces them as they are, which under autocast is in the weights' fp32
        (``torch/nn/parallel/distributed.py``, 2.13); accelerate has FSDP reduce in bf16
        (``FullyShardedDataParallelPlugin.set_mixed_precision``, 1.15), and transformers, which
        shards what it splits itself, in fp32 (``_get_fsdp_policy_kwargs`` in distributed/fsdp.py,
        5.23).
        """
        assert self.reduce_dtype is not None
        if self.reduce_dtype is not ReduceDtype.FRAMEWORK:
            return self.reduce_dtype
        by_accelerate = self.splits_sequence or not split
        return ReduceDtype.BF16 if sharded and by_accelerate else ReduceDtype.FP32

    def part(self, ranks: int) -> "Workload":
        """The workload of one of so many ranks that split each sequence (``cp_size``)."""
        return self if ranks == 1 else replace(self, sequence_length=self.sequence_length // ranks)

    @property
    def tokens_per_step(self) -> int:
        return self.sequence_length * self.global_batch_size

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; the model as its whole configuration, with its name beside it.

        What came later, the task and the fields from ``loss`` on, is left out while it is the
        default: identities stay.
        """
        return {
            "model": self.model.as_config(),
            "model_name": self.model.name,
            "sequence_length": self.sequence_length,
            "global_batch_size": self.global_batch_size,
            "optimizer": str(self.optimizer),
            "precision": str(self.precision),
            "reduce_dtype": str(self.reduce_dtype),
            **self.added_later(),
        }

    def added_later(self) -> dict[str, Any]:
        """The fields that came later, as JSON values, but for those that hold their default."""
        found = {} if self.model.is_causal_lm else {"task": str(self.model.task)}
        later = [one for one in fields(self) if one.name in _LATER]
        values = ((one.name, getattr(self, one.name), one.default) for one in later)
        return found | {name: plain(value) for name, value, usual in values if value != usual}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Workload":
        """The reverse of :meth:`as_dict`. Raises UsageError: a field is missing, unknown or
        impossible."""
        return cls(
            model=read_model_config(
                values["model"],
                name=values["model_name"],
                task=choice("task", Task, values.get("task", Task.CAUSAL_LM)),
            ),
            sequence_length=values["sequence_length"],
            global_batch_size=values["global_batch_size"],
            optimizer=choice("optimizer", Optimizer, values["optimizer"]),
            precision=choice("precision", Precision, values["precision"]),
            reduce_dtype=choice("reduce_dtype", ReduceDtype, values["reduce_dtype"]),
            loss=choice("loss", Loss, values.get("loss", Loss.HF)),
            tensor_parallel=choice(
                "tensor_parallel",
                TensorParallel,
                values.get("tensor_parallel", TensorParallel.SEQUENCE_PARALLEL),
            ),
            adapter=None if values.get("adapter") is None else Adapter.from_dict(values["adapter"]),
            packing=None if values.get("packing") is None else Packing.from_dict(values["packing"]),
            frozen=values.get("frozen", ()),
            image_tokens=values.get("image_tokens", 0),
        )
