"""A study: one question, the limits within which it is answered, and the probes made for it."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

from tuner.core.bounds import Number, Spelled, Whole, check_bounds
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import KNOBS, Settings, knob_value, no_knob
from tuner.core.framework import (
    NOT_PROBED,
    OF_WORKLOADS,
    Framework,
    no_optimizer,
    packages_beside,
    releases_of,
    usual_tensor_parallel,
)
from tuner.core.measurement import Fidelity, Measurement
from tuner.core.packing import PackingVariant
from tuner.core.script import Script, check_script
from tuner.core.workload import Precision, TensorParallel, Workload
from tuner.errors import UsageError
from tuner.serialization import Plain, plain

if TYPE_CHECKING:
    from tuner.cost.calibration import Calibration
    from tuner.dryrun import DryRun
    from tuner.guard.check import GuardCheck


# Share of a GPU's usable memory that an answer leaves free, unless a limit is given.
HEADROOM = 0.05

# Classes that a request dry-runs unless it says otherwise.
MOST_LAYOUTS = 3
# Of a model that only dry runs know, of which nothing is ranked before.
MOST_TRACED = 24
# Dry runs that it makes for them: of each class two, at two depths, and with tensor parallelism
# four. At about a second each, an answer is there in some ten seconds.
MOST_DRY_RUNS = 6
# Probes to run at most, unless a number is given.
MOST_PROBES: Mapping[Fidelity, int] = {
    Fidelity.MEASURED: 20,
    Fidelity.EMULATED: 20,
    Fidelity.REHEARSED: 12,
    Fidelity.PREDICTED: MOST_LAYOUTS,
}

POOL_SPELLING = "must be up to 64 letters, digits, dots, underscores and hyphens"
# Seconds of a budget: a year.
LONGEST_S = 366 * 86_400

Headroom = Annotated[
    float, Number(0, 1, "must be a number from 0 to below 1, such as 0.05", below=True)
]
Tolerance = Annotated[
    float, Number(0, 1, "must be a number from 0 to below 1, such as 0.01", below=True)
]
ProbeCount = Annotated[int, Whole(1, 10_000)]
Seconds = Annotated[
    float,
    Number(0, LONGEST_S, f"must be a number of seconds above 0 and up to {LONGEST_S}", above=True),
]
Pool = Annotated[str, Spelled("[A-Za-z0-9._-]{0,64}", POOL_SPELLING)]

# Labels of one study, and characters of a label's value.
MOST_LABELS, LONGEST_LABEL = 32, 200
LABEL_NAME = "[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"


def read_labels(field: str, value: Any) -> dict[str, str]:
    """Labels of a study, by name in order; an empty value makes a plain tag. Raises UsageError: a
    name or a value is not allowed, or there are too many."""
    if not isinstance(value, Mapping) or len(value) > MOST_LABELS:
        allowed = f"must be up to {MOST_LABELS} texts by name, such as job=1234"
        raise UsageError(field, value, allowed)
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(LABEL_NAME, name):
            allowed = "must be a name of up to 63 letters, digits and . _ / -"
            raise UsageError(field, name, allowed)
        if not isinstance(text, str) or len(text) > LONGEST_LABEL or not text.isprintable():
            allowed = f"must be a text of up to {LONGEST_LABEL} printable characters"
            raise UsageError(f"{field}.{name}", text, allowed)
    return dict(sorted(value.items()))


def parse_labels(field: str, texts: Sequence[str]) -> dict[str, str | None]:
    """Labels written as ``NAME=VALUE``, or as ``NAME`` alone, whose value is ``None`` then."""
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name in found:
            raise UsageError(field, text, f"{name} is given twice")
        found[name] = value if equals else None
    read_labels(field, {name: text or "" for name, text in found.items()})
    return found


class StudyState(StrEnum):
    """States of a study."""

    QUEUED = "queued"  # asked; no worker is at it (also after an interruption)
    RUNNING = "running"  # a worker is at it
    DONE = "done"  # answered: nothing more is expected to help, or the budget is spent
    FAILED = "failed"  # it cannot be answered, with the reason
    CANCELLED = "cancelled"  # somebody asked for it


# States in which probes are entered: the others are ends.
OPEN = frozenset({StudyState.QUEUED, StudyState.RUNNING})

STUDY_TRANSITIONS: Mapping[StudyState, frozenset[StudyState]] = {
    StudyState.QUEUED: frozenset(StudyState) - {StudyState.QUEUED},
    StudyState.RUNNING: frozenset(StudyState) - {StudyState.RUNNING},
    # The same question asked again continues a finished study.
    **dict.fromkeys(frozenset(StudyState) - OPEN, frozenset({StudyState.QUEUED})),
}


class ProbeState(StrEnum):
    """States of a probe."""

    QUEUED = "queued"  # planned, for any worker to claim
    RUNNING = "running"  # an attempt of a worker holds it
    DONE = "done"  # it has its outcome


PROBE_TRANSITIONS: Mapping[ProbeState, frozenset[ProbeState]] = {
    ProbeState.QUEUED: frozenset({ProbeState.RUNNING, ProbeState.DONE}),
    ProbeState.RUNNING: frozenset({ProbeState.QUEUED, ProbeState.DONE}),
    ProbeState.DONE: frozenset(),
}


class SamplerName(StrEnum):
    """The sampler that proposes the next configuration."""

    COST_MODEL = "cost-model"  # ours: a Gaussian process over the cost model's predictions
    TPE = "tpe"  # Optuna's tree-structured Parzen estimator
    GP = "gp"  # Optuna's Gaussian process, which needs torch and scipy
    RANDOM = "random"  # any legal configuration that may fit

    @property
    def why_not_here(self) -> str:
        """The reason why it cannot propose here, with the way out; empty where it can."""
        needed = ("torch", "scipy") if self is SamplerName.GP else ()
        missing = [package for package in needed if find_spec(package) is None]
        return (
            f"needs {' and '.join(missing)} where planning runs: pip install 'tuner[gp]',"
            " or take another sampler"
            if missing
            else ""
        )


def missing_beside(question: "Question", installed: Mapping[str, str] | None = None) -> str:
    """The first package that probes need beside the framework's own and that is not installed, by
    default in this Python; empty of none. Attention of a user's script is its own."""
    device = Device.CPU if question.script is not None else question.cluster.gpu.device
    wanted = packages_beside(question.workload, device)
    here = releases_of(wanted) if installed is None else installed
    return next((package for package in wanted if package not in here), "")


def _not_packed(workload: Workload, cluster: Cluster, framework: Framework) -> str:
    """Why attention is not kept within the documents of a row; empty where it is, or none are."""
    packing, gpu = workload.packing, cluster.gpu
    if packing is None:
        return ""
    oldest = packing.oldest_transformers(workload.model)
    if oldest and (old := framework.too_old("transformers", f">={oldest}")):
        return (
            f"needs transformers {oldest} or newer: in {old} tokens of"
            f" {workload.model.model_type} would see other documents"
        )
    if packing.variant is not PackingVariant.VARLEN:
        return ""
    why = ""
    if gpu.device is Device.CPU:  # whose stand-in is the probe program's
        drops = any(workload.model.fields.get(one) for one in ("attention_dropout", "attn_pdrop"))
        why = "needs attention without dropout on a CPU" if drops else ""
    elif workload.precision is Precision.FP32:
        why = "needs bf16 or bf16_mixed: FlashAttention takes 16 bits only"
    elif gpu.capability < (8, 0):
        why = "needs a GPU of compute capability 8.0 or more: FlashAttention 2 has no older ones"
    return why and f"{why}; take position_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to be answered. Its ``identity`` is the study's."""

    workload: Workload  # what is trained
    cluster: Cluster  # where
    framework: Framework  # with which stack, in which versions
    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    """Knobs restricted to some values, such as ``{"micro_batch_size": (1, 2)}``."""
    script: Script | None = None
    """The user's own script, which is run in the place of the probe program's step."""

    def __post_init__(self) -> None:
        for name, values in self.knobs.items():
            if name not in KNOBS:
                raise UsageError("knob", name, no_knob(name))
            if not values:
                raise UsageError(name, "nothing", "at least one value must be allowed")
        checked = {
            name: tuple(sorted({knob_value(name, value) for value in self.knobs[name]}))
            for name in sorted(self.knobs)
        }
        object.__setattr__(self, "knobs", checked)
        unsaid = self.workload.tensor_parallel is TensorParallel.SEQUENCE_PARALLEL
        if unsaid and (usual := usual_tensor_parallel(self.framework.name)) != "sequence_parallel":
            own = replace(self.workload, tensor_parallel=usual)
            object.__setattr__(self, "workload", own)
        if self.script is None and not self.workload.model.is_named:
            name = self.workload.model.name
            raise UsageError("model", name, "must be named; only a --script is probed without")
        task = self.workload.model.task
        name = self.framework.name
        if name in NOT_PROBED and not self.workload.model.is_causal_lm:
            raise UsageError("task", str(task), f"must be causal_lm: of {name} no more is known")
        # the attention of a user's script is its own
        packing = self.workload.packing if self.script is None else None
        if packing and (why := _not_packed(self.workload, self.cluster, self.framework)):
            raise UsageError("packing", str(packing.variant), why)
        if self.in_eight_bits and self.workload.precision is not Precision.BF16_MIXED:
            allowed = "must be bf16_mixed beside int8, where peft keeps adapters in fp32"
            raise UsageError("precision", str(self.workload.precision), allowed)
        if self.script is None and (why := no_optimizer(self.workload, self.framework)):
            raise UsageError("optimizer", str(self.workload.optimizer), why)
        if self.script is not None:
            check_script(self.script, self.cluster, self.framework, checked)

    @property
    def job(self) -> tuple[Workload, Cluster, Framework]:
        """What is trained, where, and with which stack: what a prediction is of."""
        return self.workload, self.cluster, self.framework

    @property
    def unprobed(self) -> str:
        """What it asks for that no probe runs but a user's script; empty where all is probed."""
        if self.script is not None:
            return ""
        if self.framework.name in NOT_PROBED:
            return f"settings of {self.framework.name}"
        if any(size > 1 for size in self.knobs.get("cp_size", ())):
            return "settings of context parallelism"
        return "settings of a model in eight bits" if self.in_eight_bits else ""

    @property
    def in_eight_bits(self) -> bool:
        """Whether a frozen model is, in the probe program's step."""
        adapter = self.workload.adapter
        return self.script is None and adapter is not None and adapter.eight_bits

    def as_dict(self) -> dict[str, Any]:
        workload = self.workload.as_dict()
        if self.workload.tensor_parallel is usual_tensor_parallel(self.framework.name):
            workload.pop("tensor_parallel", None)  # identities stay
        return {
            "workload": workload,
            "cluster": self.cluster.as_dict(),
            "framework": self.framework.as_dict(),
            "knobs": plain(self.knobs),
            **({"script": self.script.as_dict()} if self.script is not None else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Question":
        return cls(
            workload=Workload.from_dict(values["workload"]),
            cluster=Cluster.from_dict(values["cluster"]),
            framework=Framework.from_dict(values["framework"]),
            knobs={name: tuple(v) for name, v in values["knobs"].items()},
            script=Script.from_dict(values["script"]) if "script" in values else None,
        )

    @property
    def trained(self) -> str:
        """Names what is trained, for people: the model; of a user's script its file, with the model
        where that is named."""
        model = self.workload.model
        if self.script is None:
            return model.name
        file = PurePath(self.script.path).name
        return f"{file} ({model.name})" if model.is_named else file

    @property
    def identity(self) -> str:
        """SHA-256 of the question, in hex; the model's name is not part of it."""
        values = self.as_dict()
        del values["workload"]["model_name"]
        return _hash(values)

    @property
    def program(self) -> str:
        """Identifies the program of a probe: SHA-256, in hex, of the user's script; empty for the
        probe program."""
        return "" if self.script is None else _hash(self.script.as_dict())

    @property
    def kind(self) -> str:
        """SHA-256 of what must be equal for a measurement to say something of another question:
        the stack in its versions but that of adapters, GPU, node and links, and the number format;
        and the script."""
        values = self.as_dict()
        cluster = {name: value for name, value in values["cluster"].items() if name != "nodes"}
        precision = values["workload"]["precision"]
        own = {"script": values["script"]} if self.script is not None else {}
        framework = values["framework"]
        stack = {p: v for p, v in framework["versions"].items() if p not in OF_WORKLOADS}
        same = {
            "framework": {**framework, "versions": stack},
            "cluster": cluster,
            "precision": precision,
        }
        return _hash({**same, **own})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Plain):
    """Within which limits the question is answered; asking again may change them."""

    later = ("sampler",)

    fidelity: Fidelity = Fidelity.MEASURED  # how probes are run
    headroom: Headroom = HEADROOM
    """Share of a GPU's usable memory to leave free; not applied to ``memory_limit_bytes``."""
    memory_limit_bytes: int | None = None  # memory that one GPU may use, taken as it is
    tolerance: Tolerance = 0.01
    """Gain in speed that is not worth another probe, and a tie (relative)."""
    max_probes: ProbeCount = 20  # probes that this request may spend
    max_dry_runs: int | None = None
    """Dry runs that this request may spend; a predicted probe is one to four of them."""
    wall_s: Seconds | None = None  # seconds that this request may take
    device_s: Seconds | None = None  # device-seconds that this request may take
    pool: Pool = ""  # label of the workers that may be at it; empty for any
    sampler: SamplerName = SamplerName.COST_MODEL  # proposes the next configuration

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("memory_limit_bytes", "max_dry_runs"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(name, value, "must be positive")

    def apart(self, kept: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Compares with limits as :meth:`as_dict` writes them: the fields that differ, theirs and
        these."""
        # A default that was added later is left out of what is kept.
        kept = {"sampler": str(SamplerName.COST_MODEL), **kept}
        mine = {**self.as_dict(), "sampler": str(self.sampler)}
        pairs = {name: (kept.get(name), value) for name, value in mine.items()}
        return {name: (there, mine) for name, (there, mine) in pairs.items() if there != mine}

    def limit_bytes(self, cluster: Cluster) -> int:
        """Bytes that a probe may need on one GPU of ``cluster``."""
        if self.memory_limit_bytes is not None:
            return self.memory_limit_bytes
        return int(cluster.gpu.memory_bytes * (1 - self.headroom))

    @property
    def id(self) -> str:
        """12 hexadecimal digits that other limits do not have."""
        values = self.as_dict().items()
        return _hash({name: float(v) if isinstance(v, int) else v for name, v in values})[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Settings that the planner wants tried. Unique in a study by all fields but the counts."""

    settings: Settings  # what to try
    fidelity: Fidelity  # how to run it
    repetition: int = 0  # 0 for the first time; repeats and verifications count up
    accumulation_counts: tuple[int, ...] = ()
    """Micro-batches per optimizer step that are really run; empty means the settings' own.

    Two small counts stand for a long accumulation: the step's time is linear in the count.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A probe of a study as the store knows it."""

    id: int
    """Its number within its study, as people know it: 1, 2, ... of probes, and -1, -2, ... of dry
    runs, which :func:`tuner.core.words.number_text` writes as ``d1``."""
    request: ProbeRequest  # what is tried
    state: ProbeState  # where it stands
    memory_limit_bytes: int | None = None
    """The limit it was run under, for it decides whether ``oom`` still holds."""
    measurement: Measurement | None = None  # what it found, when it is done
    finished_at: str | None = None  # when it was done, UTC in ISO 8601
    row_id: int = 0  # its row in the database, which no other study's probe has

    @property
    def place(self) -> int:
        """Its place among the probes, or the dry runs, of its study, from 1, as they were asked."""
        return abs(self.id)

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.id,
            "settings": self.request.settings.as_dict(),
            "fidelity": str(self.request.fidelity),
            "repetition": self.request.repetition,
            "accumulation_counts": list(self.request.accumulation_counts),
            "state": str(self.state),
            "memory_limit_bytes": self.memory_limit_bytes,
            "finished_at": self.finished_at,
            "measurement": self.measurement and self.measurement.as_dict(),
        }


def by_settings(probes: Iterable[Probe]) -> dict[Settings, list[Probe]]:
    """The probes of each configuration, in the order of its first one."""
    found: dict[Settings, list[Probe]] = {}
    for probe in probes:
        found.setdefault(probe.request.settings, []).append(probe)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study as the store knows it."""

    id: str  # ``st-`` and the first 12 digits of the question's identity
    question: Question  # what is asked
    limits: Limits  # its limits, as asked last
    state: StudyState  # where it stands
    reason: str = ""  # why it stands there
    revision: int = 0
    """Counts what the planner must know of; a plan made at an older one is not entered."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What those who asked say of it, such as the job that it is for; no part of the question."""
    seed: int = 0  # of the search and of the probes' weights and tokens
    probes_before: int = 0  # probes that earlier requests had already spent
    probes: tuple[Probe, ...] = ()  # all probes, oldest first
    dry_runs: "Mapping[str, DryRun]" = field(default_factory=dict)
    """The dry runs that its predicted probes name, by key."""
    guards: "Mapping[str, GuardCheck]" = field(default_factory=dict)
    """What the guard has found of its model's structure in its versions, by the replica's key."""
    wasted_s: float = 0.0
    """Seconds of this request's attempts that left no result: lost, given back, or tried again."""
    wasted_before_s: float = 0.0
    """The same of earlier requests, at the fidelity that is asked for now."""
    guard_s: float = 0.0
    """Seconds in which small replicas of its finalists were trained for this request."""
    guard_before_s: float = 0.0  # the same for earlier requests
    calibration: "Calibration | None" = None
    """Rates that were measured on devices like the cluster's, where there are any."""
    past: "tuple[Study, ...]" = ()
    """Earlier studies that may teach something of it: of the same stack and kind of cluster, those
    asked last first, with their finished probes that ran steps; they have no past themselves."""
    created_at: str = ""  # when it was first asked, UTC in ISO 8601
    asked_at: str = ""  # when it was asked last, UTC in ISO 8601

    @property
    def in_order(self) -> tuple[Probe, ...]:
        """Its probes as they were done, whichever was asked for first; then those that are not."""

        def when_done(probe: Probe) -> tuple[bool, str, int]:
            return probe.state is not ProbeState.DONE, probe.finished_at or "", probe.place

        return tuple(sorted(self.probes, key=when_done))

    def at(self, fidelity: Fidelity) -> "Study":
        """The study as if it had only the probes of one fidelity.

        The same question may be asked at several, and what is found at one says nothing at
        another.
        """
        same = [probe for probe in self.probes if probe.request.fidelity is fidelity]
        if len(same) == len(self.probes):
            return self
        before = self.in_order[: self.probes_before]
        return replace(
            self,
            probes=tuple(sorted(same, key=lambda probe: probe.place)),
            probes_before=sum(probe.request.fidelity is fidelity for probe in before),
        )


def _hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
