"""Seconds of a step from what a rehearsed script launched, in its order, on its streams.

Rates and links are those of :mod:`tuner.cost.time.compute` and its neighbours. A stream is a queue,
and so is the host, which launches one kernel after another and waits where the script does. All
ranks are taken to do what this one does, at the same time.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

from tuner.core.cluster import Cluster
from tuner.core.quantity import UNKNOWN, Quantity, predicted
from tuner.cost.constants import Costs
from tuner.cost.time.collectives import Op
from tuner.cost.time.communication import Group, collective_s
from tuner.cost.time.compute import AMOUNTS, LAYER_KERNELS, Amounts, gpu_s, host_bytes_per_s
from tuner.serialization import Plain

# Steps that are played one after another: the last one's time is a steady step's.
PLAYED = 2
ALL_TO_ALL, REDUCE = "all_to_all", "reduce"


class What(StrEnum):
    """Entries of a queue, each of a stream and of what is named here."""

    OPERATOR = "operator"  # index of an operator
    COLLECTIVE = "collective"  # index of a collective
    RECORDS = "records"  # an event
    WAITS = "waits"  # for an event
    HOST_WAITS_STREAM = "host_waits_stream"
    HOST_WAITS_EVENT = "host_waits_event"
    HOST_WAITS_ALL = "host_waits_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One kind of operator, by its tensors' shapes."""

    name: str
    phase: str  # forward, backward or optimizer
    numbers: str  # format that its products are made in; empty where it makes none
    amounts: Mapping[str, float]
    """Of :class:`Amounts`; ``on_host_bytes`` are moved in the host's memory, by the host."""

    @property
    def kind(self) -> str:
        if any(name.startswith("attention") for name in self.amounts):
            return "attention"
        if "product_flops" in self.amounts:
            return "matrix products"
        return "copies with the host" if "host_bytes" in self.amounts else "other kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One kind of collective."""

    op: str
    ranks: int
    ranks_per_node: int
    bytes: int  # of the whole tensors

    @property
    def group(self) -> Group:
        return Group(ranks=self.ranks, ranks_per_node=self.ranks_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """One step."""

    operators: tuple[Operator, ...]
    collectives: tuple[Sent, ...]
    queue: tuple[tuple[What, int, int], ...]  # in the host's order: what, on which stream, of what
    full: bool  # more was launched than is told
    tokens: int  # that this rank's embedding looked up; 0 where there was none
    uncounted: tuple[str, ...] = ()  # operators whose work is not known

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Launches":
        """Reads what ``workers/rehearsal/launches.py`` tells."""
        return cls(
            operators=tuple(Operator(**one) for one in values["operators"]),
            collectives=tuple(Sent(**one) for one in values["collectives"]),
            queue=tuple((What(what), stream, of) for what, stream, of in values["queue"]),
            full=values["full"],
            tokens=values["tokens"],
            uncounted=tuple(values["uncounted"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """Seconds that one kind of work takes of a step, beside whatever else goes on."""

    kind: str
    phase: str  # empty of collectives
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedTime(Plain):
    """The time of one steady step of the whole cluster."""

    step_time_s: Quantity = UNKNOWN
    tokens_per_s: Quantity = UNKNOWN
    tokens_per_step: int = 0  # of all ranks; 0 where it is not known
    exposed_s: Quantity = UNKNOWN  # what a step would be shorter by if nothing were sent
    host_s: float = 0.0  # in which the GPU waits for the host, of a step that sends nothing
    parts: tuple[TimePart, ...] = ()  # the longest first
    unknown: str = ""  # the reason where the time is unknown
    uncounted: tuple[str, ...] = ()  # operators that were taken to take no time


def rehearsed_time(
    launches: Launches, cluster: Cluster, costs: Costs, *, tokens_per_step: int = 0
) -> RehearsedTime:
    """Prices a step; its interval is that of steps that nothing was fitted on.

    ``tokens_per_step`` are those of all ranks; left out, each rank is taken to have its own.
    """
    if missing := _missing(launches, cluster):
        return RehearsedTime(unknown=missing, uncounted=launches.uncounted)
    # the host launches kernels, or does an operator itself as all ranks of the node do with it
    launch_s, own_rate = costs.torch.layer_host_s, costs.time.host_memory_bytes_per_s
    host = [one.amounts.get("kernels", 0.0) / LAYER_KERNELS * launch_s
            + one.amounts.get("on_host_bytes", 0.0) * cluster.gpus_per_node / own_rate
            for one in launches.operators]  # fmt: skip
    computing = [_operator_s(one, cluster, costs) for one in launches.operators]
    quick = [_operator_s(one, cluster, costs.quickest) for one in launches.operators]
    sending = [collective_s(one.op, one.bytes, one.group, cluster, costs)
               for one in launches.collectives]  # fmt: skip

    def played(computing: Sequence[float], slower: float = 1.0) -> tuple[float, float]:
        return _play(launches, host, computing, [slower * s for s in sending], costs)

    width = costs.time.unfitted
    step, _ = played(computing)
    alone, busy = played(computing, 0.0)
    least, most = (played(computing, factor)[0] for factor in width)
    seconds = predicted(step, min(step, width.low * played(quick)[0]), width.high * step)
    ends = sorted(max(0.0, end - alone) for end in (least, step, most))
    tokens = tokens_per_step or launches.tokens * cluster.world_size
    speed = UNKNOWN
    if tokens and seconds.low and seconds.high:
        speed = predicted(tokens / step, tokens / seconds.high, tokens / seconds.low)
    parts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for what, _, of in launches.queue:
        if what is What.OPERATOR:
            operator = launches.operators[of]
            parts[operator.kind, operator.phase] += computing[of]
        elif what is What.COLLECTIVE:
            parts[launches.collectives[of].op, ""] += sending[of]
    return RehearsedTime(
        step_time_s=seconds,
        tokens_per_s=speed,
        tokens_per_step=tokens,
        exposed_s=predicted(ends[1], ends[0], ends[2]),
        host_s=max(0.0, alone - busy),
        parts=tuple(
            TimePart(kind=kind, phase=phase, seconds=took)
            for (kind, phase), took in sorted(parts.items(), key=lambda item: -item[1])
            if took
        ),
        uncounted=launches.uncounted,
    )


def _missing(launches: Launches, cluster: Cluster) -> str:
    """The reason why a step has no price; empty if it has one."""
    unknown = f"of {cluster.gpu.name} is not known"
    if launches.full:
        return "the step launches more than is noted"
    if not any(what is What.OPERATOR for what, _, _ in launches.queue):
        return "the step launched nothing"
    if cluster.gpu.memory_bytes_per_s is None:
        return f"the memory's bandwidth {unknown}"
    for numbers in {one.numbers for one in launches.operators} - {""}:
        if _peak(numbers, cluster) is None:
            return f"the matrix rate in {numbers} {unknown}"
    priced = {*Op, ALL_TO_ALL, REDUCE}
    for one in launches.collectives:
        if one.op not in priced:
            return f"it calls {one.op}, whose other end was not rehearsed"
        if one.group.nodes > 1 and cluster.inter_node.bytes_per_s is None:
            return "the bandwidth of the link between nodes is not known"
        if min(one.ranks, one.ranks_per_node) > 1 and cluster.intra_node.bytes_per_s is None:
            return "the bandwidth of the link within a node is not known"
    return ""


def _peak(numbers: str, cluster: Cluster) -> float | None:
    gpu = cluster.gpu
    half = gpu.dense_bf16_flops_per_s
    tf32 = None if half is None else half / 2  # on tensor cores, by twice the bits
    peaks = {"bfloat16": half, "float16": gpu.dense_fp16_flops_per_s or half, "tf32": tf32}
    return peaks.get(numbers, gpu.fp32_flops_per_s if numbers == "float32" else None)


def _operator_s(operator: Operator, cluster: Cluster, costs: Costs) -> float:
    amounts = {name: operator.amounts.get(name, 0.0) for name in AMOUNTS}
    t, peak = costs.torch, _peak(operator.numbers, cluster) or inf
    if operator.numbers == "float32" and (half := _peak("bfloat16", cluster)):
        # a narrow product, as of an adapter, waits for its sides: twice the bytes, at any rate
        amounts["product_sides"] *= 2 * peak / half
    done = Amounts(**amounts)
    factor = t.update_factor if operator.phase == "optimizer" else t.traffic_factor
    return gpu_s(done, peak, cluster, costs, factor) + done.host_bytes / (
        host_bytes_per_s(cluster) or inf
    )


class _Link:
    """What is sent on a link, one after another: who is ready goes into the first gap."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, float]] = []  # by start

    def take(self, ready: float, seconds: float) -> float:
        """Sends from a moment on; the moment at which it is done."""
        index = bisect_right(self.taken, (ready, inf))
        start = max(ready, self.taken[index - 1][1]) if index else ready
        for begins, ends in self.taken[index:]:
            if begins - start >= seconds:
                break
            start = max(start, ends)
        insort(self.taken, (start, start + seconds))
        return start + seconds


def _play(
    launches: Launches,
    host_s: Sequence[float],
    computing_s: Sequence[float],
    sending_s: Sequence[float],
    costs: Costs,
) -> tuple[float, float]:
    """Seconds of a steady step, and those of it in which the GPU computes.

    Computing loses a share to what is sent at the same time, as in
    :func:`tuner.cost.time.communication.passes_s`.
    """
    host, streams = 0.0, defaultdict[int, float](float)
    events: dict[int, float] = {}
    links = defaultdict[bool, _Link](_Link)  # between nodes, or within one
    computed: list[tuple[float, float]] = []
    over = [0.0]
    for _ in range(PLAYED):
        for what, stream, of in launches.queue:
            if what is What.OPERATOR:
                host += host_s[of]
                if seconds := computing_s[of]:
                    start = max(host, streams[stream])
                    streams[stream] = start + seconds
                    computed.append((start, start + seconds))
            elif what is What.COLLECTIVE:
                if seconds := sending_s[of]:
                    link = links[launches.collectives[of].group.nodes > 1]
                    streams[stream] = link.take(max(host, streams[stream]), seconds)
            elif what is What.RECORDS:
                events[of] = max(host, streams[stream])
            elif what is What.WAITS:
                streams[stream] = max(streams[stream], events.get(of, 0.0))
            elif what is What.HOST_WAITS_STREAM:
                host = max(host, streams[stream])
            elif what is What.HOST_WAITS_EVENT:
                host = max(host, events.get(of, 0.0))
            else:
                host = max([host, *streams.values()])
        over.append(max([host, *streams.values()]))
    begins, ends = over[-2:]
    busy = _joined(computed, begins, ends)
    sent = _joined((one for link in links.values() for one in link.taken), begins, ends)
    either = _joined((*busy, *sent), begins, ends)
    busy_s, sent_s, either_s = (
        sum(end - start for start, end in spans) for spans in (busy, sent, either)
    )
    at_once_s = max(0.0, busy_s + sent_s - either_s)
    return ends - begins + costs.time.overlap_cost * at_once_s, busy_s


def _joined(
    spans: Iterable[tuple[float, float]], begins: float, ends: float
) -> list[tuple[float, float]]:
    """Spans within two moments, without overlaps, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        start, end = max(start, begins), min(end, ends)
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
