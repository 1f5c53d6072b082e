"""The tiny models and the training runs of ``tensor_parallel_ranks.py``."""

from dataclasses import dataclass
from typing import Any

LAYERS = 2
SEQUENCE_LENGTH = 16
MICRO_BATCH_SIZE = 2
"""Of all data-parallel ranks together."""
ACCUMULATION = 3
STEPS = 4
HIDDEN = 32
VOCABULARY = 97
"""Not divisible by the ranks."""

COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": SEQUENCE_LENGTH,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "pad_token_id": 3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "tied_llama": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "grouped_query_llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": 6},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [0],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training run."""

    model: str
    """Name in ``MODELS``."""
    recompute_allgather: bool = False
    checkpointing: bool = False
    data_parallel: str = ""
    """Empty (alone on a pair), fully_shard, hybrid_shard or replicate (on all ranks)."""
    no_sync: bool = False
    """Reduce over dp after the last micro-batch only."""
    precision: str = "fp32"
    """fp32, autocast, bf16, or fsdp_mixed."""
    fault: bool = False
    """Leave out the sum of replicated parameters' gradients over ranks."""

    @property
    def name(self) -> str:
        parts = [self.model, self.data_parallel, self.precision]
        flags = ("recompute_allgather", "checkpointing", "no_sync", "fault")
        return "-".join(filter(None, parts + [flag for flag in flags if getattr(self, flag)]))


def tensor_parallel_cases() -> list[Case]:
    """Both knobs both ways for one model of each pair, together and apart for the others."""
    on_and_off = [
        Case(model=model, recompute_allgather=recompute, checkpointing=checkpointing)
        for model in MODELS
        for recompute in (False, True)
        for checkpointing in (False, True)
        if model in ("tied_llama", "mixtral") or recompute == checkpointing
    ]
    return [
        *on_and_off,
        Case(model="tied_llama", fault=True),
        Case(model="tied_llama", precision="autocast", recompute_allgather=True),
        Case(model="mixtral", precision="bf16", checkpointing=True),
    ]


def two_dimensional_cases() -> list[Case]:
    sharded = [
        Case(
            model=model,
            data_parallel=how,
            recompute_allgather=on,
            checkpointing=on,
            no_sync=no_sync,
        )
        for model in ("tied_llama", "mixtral")
        for how, on, no_sync in (
            ("fully_shard", False, False),
            ("fully_shard", True, True),
            ("replicate", True, False),
            ("replicate", False, True),
        )
    ]
    return [
        *sharded,
        Case(model="qwen3", data_parallel="hybrid_shard", no_sync=True),
        Case(model="tied_llama", data_parallel="fully_shard", precision="fsdp_mixed", no_sync=True),
    ]
