"""Probes on the stand-in's GPUs, with the product's own launcher and records."""

import contextlib
import time

from tuner.core.measurement import Fidelity
from workers.measuring.ranks import Kind, WarmRanks

DEADLINE_S = 300.0
"""Of a probe: it ends within seconds, and on a machine that is busy all the same."""
LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2816,
    "vocab_size": 32_000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
FIELDS = (
    "optimizer", "precision", "reduce_dtype", "sequence_length", "memory_limit_bytes", "model",
    "fidelity", "tracked_steps",
)  # fmt: skip


def spec(ranks, *, count=2, micro=2, **choices):
    """A spec of the probe program: settings and fields by name, ``count`` micro-batches a step."""
    settings = {
        "sharding": "ddp", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
        "micro_batch_size": micro, "gradient_accumulation_steps": count, "sync_each_batch": True,
        "activation_checkpointing": "none", "cpu_offload": False,
        **{name: value for name, value in choices.items() if name not in FIELDS},
    }  # fmt: skip
    fields = {"optimizer": "adamw", "precision": "bf16", "sequence_length": 512, "model": LLAMA}
    fields |= {name: value for name, value in choices.items() if name in FIELDS}
    fields.setdefault("reduce_dtype", "bf16" if fields["precision"] == "bf16" else "fp32")
    return {
        "format": 1, "settings": settings,
        "global_batch_size": micro * count * ranks // settings["tp_size"], "world_size": ranks,
        "gpus_per_node": max(1, ranks // 2) if ranks > 2 else ranks, "memory_limit_bytes": None,
        "seed": 1, "accumulation_counts": [count], "warmup_steps": 2, "tracked_steps": 2,
        "measured_steps": 1, "minimum_steps": 1, "time_budget_s": 1.0, "device": "cuda", **fields,
    }  # fmt: skip


@contextlib.contextmanager
def prober(folder, *, warm=True):
    """Under this, runs a spec; ``warm`` ones of equal ranks in the same processes."""
    with WarmRanks(folder=folder, keep=warm) as ranks:
        yield lambda each: ranks.measure(_kind(each), each, deadline_s=DEADLINE_S, pause=_pause)


def probe_all(specs, folder, *, warm=True):
    """Run specs one after another; see :func:`prober`."""
    with prober(folder, warm=warm) as probe:
        return [probe(each) for each in specs]


def _kind(values):
    fidelity, world = Fidelity(values.get("fidelity", "measured")), int(values["world_size"])
    ranks = 1 if fidelity is Fidelity.EMULATED else world
    return Kind(ranks=ranks, world_size=world, device="cuda", fidelity=fidelity)


def _pause(seconds):
    """Nothing but the deadline ends a probe."""
    time.sleep(seconds)
    return ""
