"""What is run in each part: one list each, the most telling first.

A line is model, ranks, settings and what else differs; it leaves out what every line has. With
``reduced``, tiny models stand for the real ones, and a few lines for each list.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, zip_longest
from typing import Any

from probe_cases import Case, case
from public_rows import issue_rows

from gpu.place import Place
from tuner.core.configuration import Settings
from tuner.planner.timing import counts_to_run
from tuner.space import enumerate_space


class Part(StrEnum):
    """Parts, in the order in which they are run: where probes went wrong, the first says so."""

    WARM = "warm"  # probes in a process that has had others, against one process each
    MEMORY = "memory"  # predicted against emulated peaks, under the card's own size
    RECOMPUTE = "recompute"  # tp_recompute_allgather on and off: memory saved, time paid
    SEED = "seed"  # the rows of transformers issue 29425, under the 80 GiB of its cards
    TIME = "time"  # predicted against emulated computing
    GRID = "grid"  # all settings of one question, as a table to replay


class Way(StrEnum):
    """How a probe is started."""

    COLD = "cold"  # in a process of its own
    WARM = "warm"  # in a process that has had other probes


BRIEF = {"warmup_steps": 2, "tracked_steps": 2, "measured_steps": 3, "minimum_steps": 2,
         "time_budget_s": 2.0}  # fmt: skip
"""Where memory is wanted: the second step is in steady state, and peaks as all others do."""
TIMED = {"warmup_steps": 3, "tracked_steps": 2, "measured_steps": 10, "minimum_steps": 3,
         "time_budget_s": 6.0}  # fmt: skip
"""Where time is: as a worker's probe, but for its budget."""
QUICK = {**BRIEF, "measured_steps": 1, "minimum_steps": 1, "time_budget_s": 0.0}
"""Where only the way is tried out."""
MEMORY_STATED = "precision=bf16 sequence_length=4096"
REDUCED_STATED = "precision=fp32 sequence_length=64"

SMALL = """
llama-3.2-1b  8   sharding=full_shard,micro_batch_size=4
llama-3.2-1b  8   sharding=ddp,micro_batch_size=4
llama-3.2-1b  8   sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=false
llama-3.2-1b  8   tp_size=8,tp_recompute_allgather=true,micro_batch_size=4
llama-3.2-1b  64  sharding=hybrid_shard,micro_batch_size=2,gradient_accumulation_steps=2  precision=bf16_mixed
llama-3.2-1b  8   sharding=shard_grad_op,micro_batch_size=2,gradient_accumulation_steps=2
llama-3.2-1b  8   sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=false  precision=bf16_mixed
llama-3.2-1b  8   sharding=full_shard,tp_size=2,micro_batch_size=4
llama-3.2-1b  64  sharding=full_shard,micro_batch_size=8,activation_checkpointing=full
llama-3.2-1b  8   sharding=full_shard  precision=fp32
llama-3.2-1b  8   sharding=full_shard,micro_batch_size=4  optimizer=sgd
llama-3.2-1b  8   sharding=ddp,micro_batch_size=8,activation_checkpointing=full  reduce_dtype=fp32
llama-3.2-1b  8   tp_size=8,micro_batch_size=8,activation_checkpointing=full
llama-3.2-1b  64  sharding=shard_grad_op,tp_size=4,tp_recompute_allgather=true,micro_batch_size=4,gradient_accumulation_steps=2,sync_each_batch=false
llama-3.2-1b  8   sharding=full_shard,micro_batch_size=16  sequence_length=1024
"""  # noqa: E501  (a table)
MIDDLE = """
llama-3.1-8b  8   sharding=full_shard,micro_batch_size=2,activation_checkpointing=full
llama-3.1-8b  8   sharding=full_shard
llama-3.1-8b  8   tp_size=8,tp_recompute_allgather=true,micro_batch_size=2
llama-3.1-8b  8   tp_size=8,micro_batch_size=2
llama-3.1-8b  8   sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false,activation_checkpointing=full
llama-3.1-8b  8   sharding=full_shard,gradient_accumulation_steps=2,activation_checkpointing=full
llama-3.1-8b  64  sharding=hybrid_shard,micro_batch_size=2,activation_checkpointing=full  precision=bf16_mixed
llama-3.1-8b  8   sharding=shard_grad_op,micro_batch_size=2,gradient_accumulation_steps=4,activation_checkpointing=full  precision=bf16_mixed
llama-3.1-8b  8   sharding=ddp,activation_checkpointing=full
llama-3.1-8b  64  sharding=full_shard,tp_size=8,tp_recompute_allgather=true,micro_batch_size=4
llama-3.1-8b  64  sharding=full_shard,tp_size=4,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
llama-3.1-8b  64  sharding=full_shard,micro_batch_size=4
llama-3.1-8b  8   sharding=full_shard,micro_batch_size=8,activation_checkpointing=full  optimizer=sgd
llama-3.1-8b  8   sharding=full_shard  precision=bf16_mixed reduce_dtype=fp32 sequence_length=8192
llama-3.1-8b  8   sharding=ddp,gradient_accumulation_steps=2,sync_each_batch=false,activation_checkpointing=full  optimizer=sgd
llama-3.1-8b  64  sharding=shard_grad_op
"""  # noqa: E501  (a table)
LARGE = """
codellama-34b  8   sharding=full_shard,activation_checkpointing=full
codellama-34b  8   sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false,activation_checkpointing=full
codellama-34b  8   sharding=full_shard,gradient_accumulation_steps=2,activation_checkpointing=full
codellama-34b  8   tp_size=8,tp_recompute_allgather=true,activation_checkpointing=full
codellama-34b  64  sharding=full_shard,micro_batch_size=2,activation_checkpointing=full
codellama-34b  64  sharding=hybrid_shard,activation_checkpointing=full
codellama-34b  8   sharding=full_shard
codellama-34b  64  sharding=full_shard,tp_size=8,tp_recompute_allgather=true,micro_batch_size=4
codellama-34b  8   sharding=full_shard,activation_checkpointing=full  precision=bf16_mixed
codellama-34b  64  sharding=full_shard,tp_size=8,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
codellama-34b  8   sharding=full_shard,micro_batch_size=4,activation_checkpointing=full  optimizer=sgd
codellama-34b  64  sharding=shard_grad_op,activation_checkpointing=full
codellama-34b  8   sharding=full_shard,micro_batch_size=2,activation_checkpointing=full  sequence_length=8192
codellama-34b  64  sharding=full_shard,tp_size=4,tp_recompute_allgather=true,activation_checkpointing=full  precision=bf16_mixed
"""  # noqa: E501  (a table)
TIME = """
llama-3.1-8b  8  sharding=full_shard
llama-3.1-8b  8  sharding=full_shard,micro_batch_size=4,activation_checkpointing=full
llama-3.2-1b  8  sharding=full_shard,micro_batch_size=4
codellama-34b  8  sharding=full_shard,micro_batch_size=2,activation_checkpointing=full
llama-3.1-8b  8  tp_size=8,tp_recompute_allgather=true,micro_batch_size=4
llama-3.2-1b  8  sharding=ddp
llama-3.1-8b  8  sharding=full_shard,micro_batch_size=2
llama-3.1-8b  8  sharding=full_shard  sequence_length=8192
codellama-34b  8  tp_size=8,tp_recompute_allgather=true,micro_batch_size=2
llama-3.2-1b  8  sharding=full_shard,micro_batch_size=8,activation_checkpointing=full
llama-3.2-1b  8  sharding=ddp,gradient_accumulation_steps=4,sync_each_batch=false
llama-3.1-8b  8  sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=false
mixtral-8x7b  8  sharding=full_shard,micro_batch_size=2,activation_checkpointing=full
llama-3.1-8b  8  sharding=full_shard,tp_size=2,micro_batch_size=2
llama-3.1-8b  8  sharding=full_shard,micro_batch_size=2  precision=bf16_mixed
llama-3.2-1b  8  sharding=full_shard  sequence_length=16384
codellama-34b  8  sharding=full_shard
llama-3.2-1b  8  sharding=full_shard,micro_batch_size=2  precision=fp32
"""  # noqa: E501  (a table)
RECOMPUTE = """
llama-3.1-8b  4  tp_size=4,micro_batch_size=2
llama-3.1-8b  4  tp_size=4,micro_batch_size=2,tp_recompute_allgather=true
llama-3.1-8b  8  tp_size=8,micro_batch_size=2
llama-3.1-8b  8  tp_size=8,micro_batch_size=2,tp_recompute_allgather=true
"""
REPETITIONS = 3
"""Of a recompute case: what it costs is as little as one short probe is off."""
GRID = "llama-3.2-1b  8  sharding=full_shard,gradient_accumulation_steps=4  sequence_length=2048"
"""Its question has 32 sequences of a global batch, as the settings make them."""
GRID_KNOBS = {"tp_size": (1, 2)}
WARM = """
llama-3.2-1b  8  sharding=full_shard
llama-3.2-1b  8  sharding=full_shard,micro_batch_size=4
llama-3.2-1b  8  sharding=full_shard,micro_batch_size=4,activation_checkpointing=full
llama-3.2-1b  8  sharding=ddp,micro_batch_size=2
llama-3.2-1b  8  sharding=shard_grad_op,micro_batch_size=2
llama-3.1-8b  8  sharding=full_shard
llama-3.1-8b  8  sharding=full_shard,micro_batch_size=2,activation_checkpointing=full
llama-3.1-8b  8  sharding=full_shard,micro_batch_size=2
llama-3.1-8b  8  sharding=ddp,activation_checkpointing=full
"""

REDUCED: Mapping[Part, str] = {
    Part.MEMORY: """
tiny  8   sharding=full_shard,micro_batch_size=2
tiny  64  sharding=hybrid_shard,activation_checkpointing=full
""",
    Part.RECOMPUTE: """
tiny  2  tp_size=2,micro_batch_size=2
tiny  2  tp_size=2,micro_batch_size=2,tp_recompute_allgather=true
""",
    Part.TIME: "tiny  8  sharding=full_shard,gradient_accumulation_steps=2",
    Part.GRID: "tiny  8  sharding=full_shard,gradient_accumulation_steps=2",
    Part.WARM: """
tiny  8  sharding=full_shard
tiny  8  sharding=full_shard,micro_batch_size=2
""",
}
REDUCED_GRID = 2
"""Settings of the reduced grid."""
REDUCED_SEED = "tiny  8  sharding=full_shard,micro_batch_size=2"
REDUCED_LIMITS = {True: 2**30, False: 3 * 2**20}
"""Bytes under which the reduced seed case fits, and does not: its peak is 5.4 MB."""


@dataclass(frozen=True, kw_only=True)
class GpuCase:
    """One probe of a part, and one row."""

    part: Part  # of which
    case: Case  # what is probed
    steps: Mapping[str, Any] = field(default_factory=lambda: BRIEF)
    """Fields of the spec that say how many steps are run."""
    counts: tuple[int, ...] = ()  # accumulation counts that are run; by default the settings' own
    limit_bytes: int | None = None
    """What may be allocated; by default what the cluster's card leaves."""
    published: Mapping[str, Any] = field(default_factory=dict)
    """Of the issue: whether it fits, and the GiB that it took."""
    repetition: int = 0  # counts up from 0
    way: Way = Way.COLD  # how the probe is started

    @property
    def key(self) -> str:
        """Tells rows apart: one that is there is not made again."""
        return f"{self.part} {self.way} {self.case.text} #{self.repetition}"


def cases_of(part: Part, place: Place, way: Way | None = None) -> list[GpuCase]:
    """The cases of a part, in the order in which they are run.

    With ``way`` all are started so, but those of the part that compares ways.
    """
    found = _cases_of(part, place)
    return found if way is None or part is Part.WARM else [replace(one, way=way) for one in found]


def _cases_of(part: Part, place: Place) -> list[GpuCase]:
    if part is Part.SEED:
        return list(_seed(place))
    if part is Part.GRID:
        return list(_grid(place))
    lists = [REDUCED[part]] if place.reduced else _LISTS[part]
    turns = chain.from_iterable(zip_longest(*(text.strip().splitlines() for text in lists)))
    found = [case_of(line, place) for line in turns if line]
    times = REPETITIONS if part is Part.RECOMPUTE and not place.reduced else 1
    ways = list(Way) if part is Part.WARM else [Way.COLD]
    steps = _steps(part, place)
    return [
        GpuCase(part=part, case=one, steps=steps, repetition=number, way=way)
        for way in ways
        for number in range(times)
        for one in found
    ]


def _steps(part: Part, place: Place) -> Mapping[str, Any]:
    if place.reduced:
        return QUICK
    return BRIEF if part in (Part.MEMORY, Part.SEED) else TIMED


_LISTS = {
    Part.MEMORY: [SMALL, MIDDLE, LARGE],
    Part.RECOMPUTE: [RECOMPUTE],
    Part.TIME: [TIME],
    Part.WARM: [WARM],
}
"""Lists of a part; where there are several they take turns."""


def case_of(line: str, place: Place) -> Case:
    """A case from its line; what the line states goes before what all lines have."""
    model, ranks, knobs, *stated = line.split()
    common = (REDUCED_STATED if place.reduced else MEMORY_STATED).split()
    where = place.cluster(int(ranks))
    return case(" ".join((model, where, knobs, *common, *stated)))


def _seed(place: Place) -> Iterator[GpuCase]:
    """The issue's rows, on its own cards: a larger one is capped."""
    if place.reduced:
        one = case_of(REDUCED_SEED, place)
        for fits, limit in REDUCED_LIMITS.items():
            text = f"{one.text} limit={limit}"
            yield GpuCase(
                part=Part.SEED,
                case=replace(one, text=text),
                steps=QUICK,
                limit_bytes=limit,
                published={"fits": fits, "gib": None},
            )
        return
    for row in issue_rows():
        published = {"fits": row.measured_gib is not None, "gib": row.measured_gib}
        found = Case(
            text=row.name, workload=row.workload, cluster=row.cluster, settings=row.settings
        )
        yield GpuCase(part=Part.SEED, case=found, published=published)


def _grid(place: Place) -> Iterator[GpuCase]:
    """All settings of a question, classes in turn: what is there early covers them all."""
    one = case_of(REDUCED[Part.GRID] if place.reduced else GRID, place)
    question = replace(one.question, knobs=GRID_KNOBS)
    by_class: dict[Settings, list[Settings]] = {}
    for settings in enumerate_space(question).legal:
        by_class.setdefault(settings.layout, []).append(settings)
    turns = [s for s in chain.from_iterable(zip_longest(*by_class.values())) if s]
    name = f"{one.workload.model.name} {one.cluster.name}"
    for settings in turns[:REDUCED_GRID] if place.reduced else turns:
        yield GpuCase(
            part=Part.GRID,
            case=replace(one, text=f"{name} {settings}", settings=settings),
            steps=_steps(Part.GRID, place),
            counts=counts_to_run(settings.gradient_accumulation_steps),
        )
