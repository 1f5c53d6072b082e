"""Packing: what documents a sequence is made of, and how attention is kept within each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar

from tuner.core.bounds import choice
from tuner.errors import UsageError
from tuner.model import ModelConfig
from tuner.model.shape import SLIDING

# Different lengths that are told apart; and documents or tokens of one, above which is a mistake.
MOST_LENGTHS = 4096
LARGEST_COUNT = 2**40
LONGEST_DOCUMENT = 2**22

Histogram = tuple[tuple[int, int], ...]
DOCUMENTS = "must be one of {lengths: [...]}, {histogram: [[length, count], ...]} or {mean: N}"


class PackingVariant(StrEnum):
    """How documents lie in a sequence, and what keeps attention within each."""

    VARLEN = "varlen"
    """A micro-batch is one row, attended document by document by FlashAttention's kernel, without
    a mask; as TRL's packing (``padding_free`` in trl/trainer/sft_trainer.py, 1.14) and
    ``DataCollatorWithFlattening`` (transformers/data/data_collator.py, 5.23)."""
    POSITION_IDS = "position_ids"
    """Positions begin anew in each document, of which transformers makes a mask for torch's own
    attention (``find_packed_sequence_indices`` in transformers/masking_utils.py, 5.23)."""
    BLOCK_DIAGONAL = "block_diagonal"
    """A mask of numbers comes with the batch, as LLaMA-Factory's ``neat_packing``
    (``prepare_4d_attention_mask`` in src/llamafactory/data/collator.py)."""
    PADDED = "padded"  # not packed: one document in each sequence, which is padded to its length


# The oldest releases of transformers that keep attention within documents, by model type (the
# wheels of 4.43.4 to 5.23.0, read): ``DataCollatorWithFlattening`` came with 4.44, as did
# positions for FlashAttention, which older classes hand on later; the mask that
# ``find_packed_sequence_indices`` in masking_utils.py is for with 4.53.1, and to some models later.
# Before, torch's attention passes over positions without a word.
_OLDEST: Mapping[PackingVariant, Mapping[str, str]] = {
    PackingVariant.VARLEN: {"": "4.44", "gpt_neox": "4.48", "gpt2": "5.2"},
    PackingVariant.POSITION_IDS: {
        "": "4.53.1", "gpt_bigcode": "4.54", "gpt2": "4.55",
        "granitemoe": "5.0", "qwen2_moe": "5.0",
    },
    PackingVariant.BLOCK_DIAGONAL: {
        "": "4.44", "gpt_neox": "4.48", "gpt_bigcode": "4.54", "gpt2": "4.55",
    },
    PackingVariant.PADDED: {"": ""},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Documents in the sequences of a workload."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    variant: PackingVariant = PackingVariant.VARLEN  # what keeps attention within each document
    documents: Histogram | None = None
    """Lengths of documents with how many have each, the shortest first; by default each is a whole
    sequence, of which attention is the longest that there can be; with ``position_ids`` half of
    one, for of one alone transformers makes no mask."""

    def __post_init__(self) -> None:
        if self.documents is not None:
            object.__setattr__(self, "documents", _histogram(self.documents))
        elif self.variant is PackingVariant.PADDED:
            raise UsageError("documents", None, f"{DOCUMENTS} with variant padded")

    def __str__(self) -> str:
        """Such as ``varlen, documents of 512 tokens on average``."""
        if self.documents is None:
            return f"{self.variant}, of any documents"
        tokens = sum(length * count for length, count in self.documents)
        mean = tokens / sum(count for _, count in self.documents)
        return f"{self.variant}, documents of {mean:,.0f} tokens on average"

    @property
    def restarts(self) -> bool:
        """Whether each micro-batch comes with positions of its own."""
        return self.variant is not PackingVariant.PADDED

    def masks(self, sequence_length: int) -> bool:
        """Tells whether attention takes a mask in all layers.

        transformers makes none where there is one document (``find_packed_sequence_indices``), or
        nothing padded (``_ignore_causal_mask_sdpa``).
        """
        if self.variant in (PackingVariant.VARLEN, PackingVariant.BLOCK_DIAGONAL):
            return self.variant is PackingVariant.BLOCK_DIAGONAL
        return self.row(sequence_length) != (sequence_length,)

    def row(self, sequence_length: int) -> tuple[int, ...]:
        """Lengths of the documents in one sequence that stands for all.

        Each length has its share of the tokens, the longest first; what is longer than a sequence
        is cut off, as TRL's ``bfd`` does. Of lengths with too small a share for one document there
        is none, or of the longest of them one. The last document may be what is left of one. One
        that is padded is as long as they are on average.
        """
        if self.documents is None:
            half = sequence_length // 2
            is_masked = self.variant is PackingVariant.POSITION_IDS
            return (sequence_length - half, half) if is_masked else (sequence_length,)
        return _row(self.documents, sequence_length, self.variant is PackingVariant.PADDED)

    def useful_share(self, sequence_length: int) -> float:
        """Share of the tokens that are not padding."""
        return sum(self.row(sequence_length)) / sequence_length

    def oldest_transformers(self, model: ModelConfig) -> str:
        """The oldest release that keeps a model's attention within documents; empty of any."""
        oldest = _OLDEST[self.variant]
        return oldest.get(model.model_type, oldest[""])

    def check(self, model: ModelConfig, sequence_length: int) -> None:
        """Refuses models that are not trained so here. Raises UsageError: with the reason."""
        kind, window = self.variant, model.fields.get("sliding_window") or 0
        slides = 0 < window <= sequence_length
        slides = slides and any(one.attention == SLIDING for one in model.layer_kinds)
        why = ""
        if model.is_traced:
            why = f"is not covered for {model.type_and_task}, which only dry runs know"
        elif model.has_biased_scores:
            why = f"is not covered for {model.model_type}, whose positions are distances"
        elif kind is PackingVariant.VARLEN and model.model_type == "gpt_bigcode":
            # ``GPTBigCodeModel.forward`` hands none on (modeling_gpt_bigcode.py, 4.44 to 5.23)
            why = "would attend across documents: gpt_bigcode tells FlashAttention no positions"
            why += "; take position_ids"
        elif kind is PackingVariant.BLOCK_DIAGONAL and slides:
            why = "would take the place of the model's windows; take position_ids"
        elif kind is PackingVariant.VARLEN and (slides or model.has_capped_scores):
            what = "windows" if slides else "capped scores"
            why = f"is not covered with {what} of {model.name}; take position_ids"
        if why:
            raise UsageError("packing", str(kind), why)

    def as_dict(self) -> dict[str, Any]:
        histogram = None if self.documents is None else [[*pair] for pair in self.documents]
        documents = {} if histogram is None else {"documents": {"histogram": histogram}}
        return {"variant": str(self.variant), **documents}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Packing":
        """The reverse of :meth:`as_dict`."""
        variant = choice("packing.variant", PackingVariant, values["variant"])
        return cls(variant=variant, documents=read_documents(values.get("documents")))


def read_documents(value: Any) -> Histogram | None:
    """Lengths and counts of documents, ascending, of any of the ways to say them. Raises
    UsageError: it is none of these."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UsageError("documents", value, DOCUMENTS)
    kind = next(iter(value), "")
    if len(value) != 1 or kind not in ("lengths", "histogram", "mean"):
        raise UsageError("documents", ", ".join(map(str, value)), DOCUMENTS)
    given = value[kind]
    if kind == "mean":  # a document is of whole tokens
        is_length = _is_number(given) and 0 < given <= LONGEST_DOCUMENT
        return _histogram([[round(given), 1]] if is_length else [given])
    if kind == "lengths" and isinstance(given, list | tuple):
        return _histogram([[length, 1] for length in given])
    return _histogram(given)


def _histogram(pairs: Any) -> Histogram:
    """Pairs of a length and a count, checked, each length once, ascending."""
    counts: dict[int, int] = {}
    each: list[Any] = [*pairs] if isinstance(pairs, list | tuple) else [pairs]
    for pair in each:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(n, int) and _is_number(n) and n > 0 for n in pair):
            raise UsageError("documents", pair, f"{DOCUMENTS}, of integers above 0")
        length, count = pair
        if length > LONGEST_DOCUMENT or count > LARGEST_COUNT:
            allowed = f"a length is {LONGEST_DOCUMENT} at most, a count {LARGEST_COUNT}"
            raise UsageError("documents", pair, allowed)
        counts[length] = counts.get(length, 0) + count
    if not 0 < len(counts) <= MOST_LENGTHS:
        allowed = f"must have from 1 to {MOST_LENGTHS} different lengths; round them"
        raise UsageError("documents", f"{len(counts)} lengths", allowed)
    return tuple(sorted(counts.items()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@lru_cache(maxsize=64)
def _row(documents: Histogram, sequence_length: int, padded: bool) -> tuple[int, ...]:
    cut = [(min(length, sequence_length), count) for length, count in documents]
    tokens = sum(length * count for length, count in cut)
    if padded:
        return (max(2, round(tokens / sum(count for _, count in cut))),)
    found: list[int] = []
    left, owed = sequence_length, 0.0  # tokens of the row; tokens that are due and not yet there
    for length, count in reversed(cut):
        owed += sequence_length * length * count / tokens
        # more than was due of those before may be there already
        times = max(0, min(int(owed / length + 0.5), left // length))
        found += [length] * times
        owed -= length * times
        left -= length * times
    return (*found, left) if left else tuple(found)
