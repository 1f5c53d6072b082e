"""Probes on the stand-in's GPUs, with the product's own launcher and records."""

import contextlib
import time

from tests.process.probe import specs
from tuner.core.measurement import Fidelity
from workers.measuring.ranks import Kind, WarmRanks

DEADLINE_S = 300.0
"""Of a probe: it ends within seconds, and on a machine that is busy all the same."""
LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2816,
    "vocab_size": 32_000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
USUAL = {
    "precision": "bf16", "sequence_length": 512, "seed": 1, "warmup_steps": 2, "tracked_steps": 2,
    "measured_steps": 1, "minimum_steps": 1, "time_budget_s": 1.0, "device": "cuda",
}  # fmt: skip


def spec(ranks, *, count=2, micro=2, model=LLAMA, **choices):
    """A spec of the probe program: settings and fields by name, ``count`` micro-batches a step."""
    batch = {"micro_batch_size": micro, "gradient_accumulation_steps": count}
    return specs.spec(model, ranks, **batch, **{**USUAL, **choices})


@contextlib.contextmanager
def prober(folder, *, warm=True):
    """Under this, runs a spec; ``warm`` ones of equal ranks in the same processes."""
    with WarmRanks(folder=folder, keep=warm) as ranks:
        yield lambda each: ranks.measure(_kind(each), each, deadline_s=DEADLINE_S, pause=_pause)


def probe_all(asked, folder, *, warm=True):
    """Run specs one after another; see :func:`prober`."""
    with prober(folder, warm=warm) as probe:
        return [probe(each) for each in asked]


def _kind(values):
    fidelity, world = Fidelity(values.get("fidelity", "measured")), int(values["world_size"])
    ranks = 1 if fidelity is Fidelity.EMULATED else world
    return Kind(ranks=ranks, world_size=world, device="cuda", fidelity=fidelity)


def _pause(seconds):
    """Nothing but the deadline ends a probe."""
    time.sleep(seconds)
    return ""
