"""Finds what would make a question fit where nothing does, with what it needs, by arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.cluster import MOST_NODES, Device
from tuner.core.configuration import Settings
from tuner.core.study import Limits, Question
from tuner.core.workload import Optimizer
from tuner.cost.prediction import predict
from tuner.errors import UsageError
from tuner.planner.sizing import fits_surely, parts_of
from tuner.space import enumerate_space
from tuner.text import show

# GPUs of a node where more of them are proposed.
WHOLE_NODE = 8
# A sequence is not cut below this: what is trained would be another thing.
SHORTEST = 256
KNOBS = (("cpu_offload", True), ("activation_checkpointing", "offload"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """One change of a question, with what its lightest configuration needs."""

    option: str
    """As the command line has it, such as ``--optimizer adamw_8bit``."""
    settings: Settings
    needed_bytes: float
    limit_bytes: int

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.limit_bytes

    def as_dict(self) -> dict[str, Any]:
        return {
            "option": self.option,
            "settings": self.settings.as_dict(),
            "needed_gib": self.needed_bytes / 2**30,
            "limit_gib": self.limit_bytes / 2**30,
            "fits": self.fits,
            "provenance": "predicted",
        }


@lru_cache(maxsize=64)
def _found(text: str, question: Question, limits: Limits) -> tuple[WayOut, ...]:
    workload, found = question.workload, [_more_devices(question, limits)]

    def tried(option: str, knobs: Mapping[str, Any] | None = None, **changed: Any) -> WayOut | None:
        try:
            other = replace(question, workload=replace(workload, **changed))
            other = replace(other, knobs={**question.knobs, **(knobs or {})})
            return least_need(other, limits, option)
        except UsageError:
            return None

    if workload.optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_FUSED):
        found.append(tried("--optimizer adamw_8bit", optimizer=Optimizer.ADAMW_8BIT))
    found += [tried(f"--knob {knob}={show(value)}", {knob: (value,)}) for knob, value in KNOBS]
    if workload.adapter is None:
        found += [tried(f"--adapter {one}", adapter=Adapter(method=one)) for one in AdapterMethod]
    length = workload.sequence_length // 2
    while length >= SHORTEST and workload.packing is None:
        shorter = tried(f"--sequence-length {length}", sequence_length=length)
        if shorter is None or shorter.fits or length < 2 * SHORTEST:
            found.append(shorter)
            break
        length //= 2
    made = (one for one in found if one is not None)
    return tuple(sorted(made, key=lambda one: not one.fits))


def ways_out(question: Question, limits: Limits) -> tuple[WayOut, ...]:
    """The changes that make a question fit, each by itself; then those that do not suffice.

    The fewest devices, a lighter optimizer, what goes to the host, adapters, a shorter sequence.
    Nothing is known of what only dry runs know, nor of a script of the user's own.
    """
    if question.script is not None or question.workload.model.is_traced:
        return ()
    # A question's hash leaves the restrictions of its knobs out.
    return _found(str(sorted(question.knobs.items())), question, limits)


def least_need(question: Question, limits: Limits, option: str = "") -> WayOut | None:
    """The lightest configuration of a question, by arithmetic; ``None`` where none is legal, or
    nothing is known."""
    if question.workload.model.is_traced:
        return None
    if "micro_batch_size" not in question.knobs:  # a larger one needs no less
        question = replace(question, knobs={**question.knobs, "micro_batch_size": (1,)})
    try:
        legal = enumerate_space(question).legal
    except UsageError:
        return None
    needs = ((predict(*question.job, one).needed_bytes.value, one) for one in legal)
    known = [(need, one) for need, one in needs if need is not None]
    if not known:
        return None
    need, settings = min(known, key=lambda found: (found[0], str(found[1])))
    limit = limits.limit_bytes(question.cluster)
    return WayOut(option=option, settings=settings, needed_bytes=need, limit_bytes=limit)


def _more_devices(question: Question, limits: Limits) -> WayOut | None:
    """The fewest devices of the same kind on which something surely fits, as ``tuner size`` finds
    them: more of one node, then more nodes."""
    cluster = question.cluster
    if cluster.gpu.device is Device.CPU:  # whose ranks share one machine's memory
        return None
    wide = max(cluster.gpus_per_node, WHOLE_NODE) if cluster.nodes == 1 else cluster.gpus_per_node
    most = replace(question, cluster=replace(cluster, nodes=MOST_NODES, gpus_per_node=wide))
    larger = parts_of(most, above=cluster.world_size)
    enough = next((part for part in larger if fits_surely(part, limits)), None)
    if enough is None:
        return None
    return least_need(enough, limits, f"--cluster {enough.cluster.name}")
