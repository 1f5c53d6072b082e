"""The usual cases: every knob, with a model that nearly everything in use is built like."""

from collections.abc import Iterator
from functools import cache
from itertools import product

from tuner.cluster import parse_cluster
from tuner.framework import framework
from tuner.model import load_model
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.study import Question
from tuner.workload import Workload

MODEL = "tinyllama-1.1b"
"""A Llama with grouped queries."""
_MANY = Settings(gradient_accumulation_steps=4)
_SHARDINGS = (Sharding.DDP, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD)


def usual_cases() -> Iterator[tuple[Question, Settings]]:
    """Questions with settings of theirs, in the versions that are installed.

    Every sharding with gradients put off and not, full checkpointing, state in host memory, which
    CPU processes only show to train the same, and tensor parallelism with
    and without recomputation, both under checkpointing too, where buffers that are used again were
    seen to train wrongly.
    """
    on_off, checkpointings = (True, False), tuple(Checkpointing)
    for sharding, sync in product(_SHARDINGS, on_off):
        yield _question("8xa100-80gb"), _with(sharding=sharding, sync_each_batch=sync)
    full = {"sharding": Sharding.FULL_SHARD, "activation_checkpointing": Checkpointing.FULL}
    yield _question("8xa100-80gb"), _with(**full)
    yield _question("8xa100-80gb"), _with(sharding=Sharding.FULL_SHARD, cpu_offload=True)
    for recompute, checkpointing in product(on_off, checkpointings):
        knobs = {"tp_recompute_allgather": recompute, "activation_checkpointing": checkpointing}
        yield _question("2xa100-80gb"), _with(tp_size=2, **knobs)
    for sync in on_off:
        knobs = {"sharding": Sharding.HYBRID_SHARD, "sync_each_batch": sync}
        yield _question("2x8xa100-80gb"), _with(**knobs)


@cache
def _question(cluster: str) -> Question:
    model = load_model(MODEL)
    workload = Workload(model=model, sequence_length=512, global_batch_size=64)
    return Question(workload=workload, cluster=parse_cluster(cluster), framework=framework("torch"))


def _with(**knobs: object) -> Settings:
    return Settings.from_dict({**_MANY.as_dict(), **knobs})
