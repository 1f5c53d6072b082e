"""Finds what would make a question fit where nothing does, with what it needs, by arithmetic."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations, islice, product
from math import ceil
from typing import Any

from tuner.catalog.versions import version_table
from tuner.core.adapter import Adapter, AdapterMethod, Quantize
from tuner.core.cluster import MOST_NODES, Cluster, Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import Framework, FrameworkName
from tuner.core.study import Limits, Question
from tuner.core.workload import Optimizer, Precision, Workload
from tuner.cost.memory.optimizers import state_bytes
from tuner.cost.memory.shards import WEIGHT_BYTES, host_inputs, parameter_bytes, pinned_bytes
from tuner.cost.memory.tensors import counts, trained_elements
from tuner.cost.prediction import predict
from tuner.errors import UsageError
from tuner.planner.sizing import parts_of
from tuner.space import SHARDINGS, divisors, legal_settings
from tuner.space.rules import fixed_by_framework, logits_matter, possible, why_only_ddp
from tuner.text import show, size_text

# Larger clusters that are looked at, from the first on that may have room.
MOST_PARTS = 12
# GPUs of a node where more of them are proposed.
WHOLE_NODE = 8
# Ways that are told, and those where none suffices.
MOST, FEW = 6, 3
# A sequence is not cut below this part of what was asked: what is trained would be another thing.
SHARE = 4
# Nor below this, where nothing else does.
SHORTEST = 256
# More GPUs beside another change are at most so many times those that are there.
TIMES = 4
# Values of knobs that need least memory, the one that needs least first.
LIGHTEST: Mapping[str, Sequence[Any]] = {
    "sharding": (
        Sharding.FULL_SHARD,
        Sharding.HYBRID_SHARD,
        Sharding.SHARD_GRAD_OP,
        Sharding.ZERO1,
    ),
    "activation_checkpointing": (Checkpointing.OFFLOAD, Checkpointing.FULL),
    "sync_each_batch": (True,),
    "tp_recompute_allgather": (True,),
    "fused_loss": (True,),
}
# What options train other than what was asked.
TRAINED: Mapping[str, str] = {
    "--precision": "in lower precision",
    "--optimizer": "with 8-bit optimizer state",
    "--adapter lora": "an adapter alone",
    "--adapter qlora": "an adapter on 4-bit weights",
    "--sequence-length": "on shorter sequences",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """Changes of a question, with what its lightest configuration needs then."""

    options: tuple[str, ...] = ()
    """As the command line has them, such as ``--optimizer adamw_8bit``."""
    settings: Settings
    needed_bytes: float
    gpus: int  # on which
    most_bytes: float
    """The same at the upper end of its interval."""
    limit_bytes: float
    host_bytes: float = 0.0
    """What a node's memory keeps for its devices, about."""

    @property
    def fits(self) -> bool:
        """True where it does at the upper end too."""
        return self.most_bytes <= self.limit_bytes

    @property
    def option(self) -> str:
        """Its options, as one types them."""
        return " ".join(self.options)

    @property
    def trains(self) -> dict[str, str]:
        """What it trains other than what was asked, by option; empty where it is the same."""
        return {
            option: said
            for option, said in TRAINED.items()
            if any(one.startswith(option) for one in self.options)
        }

    @property
    def needed_text(self) -> str:
        """What it needs; with the upper end where that alone does not fit."""
        said = size_text(self.needed_bytes)
        only_most = self.needed_bytes <= self.limit_bytes < self.most_bytes
        return f"{said} (up to {size_text(self.most_bytes)})" if only_most else said

    def as_dict(self) -> dict[str, Any]:
        return {
            "option": self.option,
            "trains": list(self.trains.values()),
            "settings": self.settings.as_dict(),
            "needed_gib": self.needed_bytes / 2**30,
            "most_gib": self.most_bytes / 2**30,
            "limit_gib": self.limit_bytes / 2**30,
            "host_gib": self.host_bytes / 2**30,
            "fits": self.fits,
            "provenance": "predicted",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    option: str
    workload: Mapping[str, Any] = field(default_factory=dict)
    framework: Framework | None = None
    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    cluster: Cluster | None = None

    @property
    def gpus(self) -> int:
        """Of a larger cluster."""
        return self.cluster.world_size if self.cluster else 0

    @property
    def is_other(self) -> bool:
        """True where other parameters or sequences are trained than was asked."""
        return not self.workload.keys().isdisjoint(("adapter", "sequence_length"))


# Changes of one kind, of which one is made: the mildest first, which also needs most memory.
_Kind = tuple[_Change, ...]


def _kinds(question: Question) -> Iterator[_Kind]:
    """Those with a meaning for a question, in the order in which people would try them."""
    own = question.framework
    if own.name is FrameworkName.TRAINER and why_only_ddp(question):
        name = FrameworkName.ACCELERATE
        packages = version_table().frameworks[name].oldest
        versions = {package: one for package, one in own.versions.items() if package in packages}
        accelerate = Framework(name=name, versions=versions)
        yield (_Change(option=f"--framework {name}", framework=accelerate),)
    whole = Sharding.FULL_SHARD
    if whole in SHARDINGS[own.name] and whole not in question.knobs.get("sharding", (whole,)):
        yield (_of_knob("sharding", whole),)
    work, asked = question.workload, question.knobs.get("activation_checkpointing", ("full",))
    found = ("offload",) if {*asked} & {"full", "offload"} else ("full", "offload")
    yield tuple(_of_knob("activation_checkpointing", value) for value in found)
    if work.optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_FUSED):
        yield (_of_workload("optimizer", Optimizer.ADAMW_8BIT),)
    if work.precision is not Precision.BF16 and question.cluster.gpu.device is Device.CUDA:
        yield (_of_workload("precision", Precision.BF16),)
    yield (_of_knob("cpu_offload", True),)
    searched = (False, True) if logits_matter(question) else (False,)
    if True not in question.knobs.get("fused_loss", searched):
        yield (_of_knob("fused_loss", True),)
    sizes = [size for size in divisors(question.cluster.gpus_per_node) if size > 1]
    yield tuple(_of_knob("cp_size", size) for size in sizes)
    methods = [AdapterMethod.QLORA]
    if work.adapter is None:
        methods.insert(0, AdapterMethod.LORA)
    adapter = work.adapter or Adapter()
    if not adapter.quantizes:
        made = [replace(adapter, method=one, quantize=Quantize.NF4) for one in methods]
        yield tuple(
            _Change(option=f"--adapter {one.method}", workload={"adapter": one}) for one in made
        )
    halves = (work.sequence_length // times for times in (2, SHARE))
    yield tuple(_of_workload("sequence_length", one) for one in halves if one >= SHORTEST)


def _of_knob(knob: str, value: Any) -> _Change:
    return _Change(option=f"--knob {knob}={show(value)}", knobs={knob: (value,)})


def _of_workload(name: str, value: Any) -> _Change:
    return _Change(option=f"--{name.replace('_', '-')} {value}", workload={name: value})


class _Finder:
    """Looks for changes that suffice, each set of them once."""

    def __init__(self, question: Question, limits: Limits) -> None:
        self._question, self._limits = question, limits
        self._seen: dict[tuple[str, ...], WayOut | None] = {}

    def tried(self, changes: tuple[_Change, ...]) -> WayOut | None:
        """The lightest configuration once all are made; ``None`` where they cannot be."""
        options = tuple(change.option for change in changes)
        if options not in self._seen:
            self._seen[options] = self._made(changes, options)
        return self._seen[options]

    def _made(self, changes: tuple[_Change, ...], options: tuple[str, ...]) -> WayOut | None:
        made = self._question
        try:
            for change in sorted(changes, key=lambda one: -one.gpus):  # its knobs are not asked for
                workload = replace(made.workload, **change.workload)
                knobs = {**made.knobs, **change.knobs}
                cluster = change.cluster or made.cluster
                named = change.framework or made.framework
                made = replace(
                    made, workload=workload, cluster=cluster, knobs=knobs, framework=named
                )
        except UsageError:
            return None
        found = least_need(made, self._limits, options)
        asked = [item for change in changes if not change.gpus for item in change.knobs.items()]
        if found and all(getattr(found.settings, knob) in values for knob, values in asked):
            return found
        return None  # or a knob does not act, and nothing is changed

    def mildest(self, sets: Sequence[tuple[_Change, ...]]) -> WayOut | None:
        """The first of several sets of changes that suffices, of which the last that is possible
        needs least; ``None`` where that does not suffice either."""
        lightest = next(filter(None, map(self.tried, reversed(sets))), None)
        if lightest is None or not lightest.fits:
            return None
        return next(one for one in map(self.tried, sets) if one is not None and one.fits)

    def on_a_few_more(self, parts: Sequence[_Change], kinds: Iterable[_Kind]) -> WayOut | None:
        """Another change on the fewest of these parts of a larger cluster; the mildest of those
        that do on so few."""
        found = None
        for kind in kinds:
            if not parts or self.mildest([(change, parts[-1]) for change in kind]) is None:
                continue
            made = (self.mildest([(change, part) for change in kind]) for part in parts)
            found = next(filter(None, made))
            parts = [one for one in parts if one.gpus < found.gpus]
        return found

    def closest(self) -> tuple[WayOut, ...]:
        """Of all that was tried what needs least, of each kind of change once."""
        made: dict[tuple[str, ...], WayOut] = {}
        tried = filter(None, self._seen.values())
        for one in sorted(tried, key=lambda one: (one.needed_bytes, len(one.options))):
            made.setdefault(tuple(option.partition(" ")[0] for option in one.options), one)
        return tuple(made.values())[:FEW]


def ways_out(question: Question, limits: Limits, *, of_file: bool = False) -> tuple[WayOut, ...]:
    """The few changes that make a question fit; where none does, those that come closest.

    Those that do alone come first: the fewest devices, then what leaves most as it was asked. Then
    pairs of which neither does alone. Nothing is known of what only dry runs know, nor of a script
    of the user's own. What reads a file of the user's own (``of_file``) stays.
    """
    if question.script is not None or question.workload.is_traced:
        return ()
    # A question's hash leaves the restrictions of its knobs out.
    return _found(str(sorted(question.knobs.items())), question, limits, of_file)


@lru_cache(maxsize=64)
def _found(text: str, question: Question, limits: Limits, of_file: bool) -> tuple[WayOut, ...]:
    finder, left = _Finder(question, limits), []
    kinds = [one for one in _kinds(question) if one and not (of_file and one[0].framework)]
    few, many = _larger(question)
    more = next(
        (one for one in map(finder.tried, ((part,) for part in many)) if one and one.fits), None
    )
    singles = [] if more is None else [more]
    for kind in kinds:
        if (one := finder.mildest([(change,) for change in kind])) is not None:
            singles.append(one)
        else:
            left.append(kind)
    few = [one for one in few if more is None or one.gpus < more.gpus]
    # one of all parameters on whole sequences, and one of other parameters or sequences
    sides = [[kind for kind in left if kind[0].is_other is other] for other in (False, True)]
    on_more = (finder.on_a_few_more(few, side) for side in sides)
    # pairs of the kinds that come first leave most as it was asked
    order = sorted(combinations(range(len(left)), 2), key=sum)
    both = (finder.mildest([*product(left[one], left[other])]) for one, other in order)
    pairs = islice(filter(None, chain(on_more, both)), max(0, MOST - len(singles)))
    if found := [*singles[:MOST], *pairs]:
        return tuple(found)
    length = question.workload.sequence_length // (2 * SHARE)
    while length >= SHORTEST:
        shorter = finder.tried((_of_workload("sequence_length", length),))
        if shorter is not None and shorter.fits:
            return (shorter,)
        length //= 2
    return finder.closest()


def least_need(question: Question, limits: Limits, options: tuple[str, ...] = ()) -> WayOut | None:
    """The lightest configuration of a question, by arithmetic; ``None`` where none is legal, or
    nothing is known.

    Looked at is what is lightest of the values of each knob but for sizes.
    """
    if question.workload.is_traced:
        return None
    lightest: dict[tuple[Any, ...], Settings] = {}
    for one in sorted(legal_settings(_light(question)), key=_heaviness):
        sizes = one.tp_size, one.pp_size, one.cp_size, one.micro_batch_size
        lightest.setdefault(sizes, one)
    limit = limits.limit_bytes(question.cluster)
    found = [predict(*question.job, one, limit_bytes=limit) for one in lightest.values()]
    known = [one for one in found if one.needed_bytes.value is not None]
    if not known:
        return None
    least = min(known, key=lambda one: (one.needed_bytes.value, str(one.settings)))
    return WayOut(
        options=options,
        settings=least.settings,
        gpus=question.cluster.world_size,
        needed_bytes=least.needed_bytes.value or 0.0,
        most_bytes=least.most_bytes,
        limit_bytes=limit,
        host_bytes=_on_host(question, least.settings),
    )


def _on_host(question: Question, settings: Settings) -> float:
    """What of a node's memory settings keep for its devices."""
    work, cluster = question.workload, question.cluster
    inputs = pinned_bytes(host_inputs(work.part(settings.cp_size), settings, cluster))
    held = float(cluster.gpus_per_node * inputs)
    if settings.cpu_offload:
        held += _kept(work, cluster) / (
            1 if settings.sharding is Sharding.HYBRID_SHARD else cluster.nodes
        )
    return held


def _light(question: Question) -> Question:
    """With what needs least alone of two knobs that nobody restricted: looking through all values
    would take longer than pricing them."""
    light: dict[str, tuple[Any, ...]] = {"micro_batch_size": (1,)}
    knob, full = "activation_checkpointing", Checkpointing.FULL
    if fixed_by_framework(question, knob) is None and possible(question, knob, (full,)):
        light[knob] = (full,)
    return replace(question, knobs={**light, **question.knobs})


def _heaviness(settings: Settings) -> tuple[int, ...]:
    """Less for what needs less."""
    return tuple(
        values.index(value) if (value := getattr(settings, knob)) in values else len(values)
        for knob, values in LIGHTEST.items()
    )


def _larger(question: Question) -> tuple[list[_Change], Iterator[_Change]]:
    """Clusters of more devices of the same kind, the fewest first, of one node and then of more: a
    few times as many, and those that may have room for what a step keeps."""
    cluster, work = question.cluster, question.workload
    if cluster.gpu.device is Device.CPU:  # whose ranks share one machine's memory
        return [], iter(())
    question = _light(question)
    wide = max(cluster.gpus_per_node, WHOLE_NODE) if cluster.nodes == 1 else cluster.gpus_per_node

    def above(least: int, nodes: int) -> Iterator[_Change]:
        most = replace(question, cluster=replace(cluster, nodes=nodes, gpus_per_node=wide))
        for part in parts_of(most, above=least):
            option = f"--cluster {part.cluster.name}"
            yield _Change(option=option, cluster=part.cluster, knobs=part.knobs)

    world = cluster.world_size
    times = above(world, TIMES * cluster.nodes)
    few = [one for one in times if one.gpus <= TIMES * world and one.gpus % world == 0]
    least = _kept(work, cluster) / cluster.gpu.memory_bytes
    return few, islice(above(max(world, ceil(least) - 1), MOST_NODES), MOST_PARTS)


def _kept(work: Workload, cluster: Cluster) -> float:
    """Bytes of parameters, gradients and optimizer state of all ranks together."""
    trained = trained_elements(work.model, work.adapter)
    parameters = counts(work.model).parameters + (trained if work.adapter else 0)
    each = WEIGHT_BYTES[work.precision] + state_bytes(work, cluster)
    return parameter_bytes(work, parameters, trained) + trained * each
