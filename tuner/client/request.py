"""Values of a request, read into workload, cluster, framework and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.client.cases.reading import check_whole, is_number, read_share
from tuner.client.tune_request import AUTO, LONGEST_S, MOST_PROBES
from tuner.client.values import ClusterLike, ModelLike, check_mapping, read_cluster, read_model
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity
from tuner.core.study import HEADROOM, POOL_SPELLING, Question, SamplerName, Terms
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload, choice
from tuner.errors import UsageError
from tuner.model import ModelConfig
from tuner.model.shape import unnamed_model
from tuner.planner.dry_runs import MOST_DRY_RUNS
from tuner.script import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Values of a request. They are checked where they are used, by the functions below."""

    model: ModelLike | None
    """What is trained; ``None`` for that of a script of the user's own, which is not named."""
    global_batch_size: int
    """Sequences of one optimizer step, over all GPUs."""
    sequence_length: int
    """Tokens of one sequence."""
    cluster: ClusterLike = "local"
    """Where."""
    optimizer: str = "adamw"
    """One of :class:`tuner.core.workload.Optimizer`."""
    precision: str = "bf16"
    """One of :class:`tuner.core.workload.Precision`."""
    reduce_dtype: str | None = None
    """One of :class:`tuner.core.workload.ReduceDtype`; ``None`` for the precision's own."""
    framework: str = "torch"
    """One of :class:`tuner.core.framework.FrameworkName`."""
    framework_versions: Mapping[str, str] = field(default_factory=dict)
    """Versions that are stated, by package; the others are those installed."""
    knobs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Knobs restricted to some values."""
    headroom: float | None = None
    """Share of each GPU's usable memory to leave free."""
    memory_limit_bytes: int | None = None
    """Memory that a step may use of one GPU, taken as it is."""
    fidelity: str | None = None
    """One of :class:`tuner.core.measurement.Fidelity`, or ``auto``; ``None`` for the usual."""
    max_probes: int | None = None
    """Probes to run at most."""
    wall_s: float | None = None
    """Seconds to look at most."""
    gpu_s: float | None = None
    """GPU-seconds to spend at most."""
    probe_deadline_s: float | None = None
    """Seconds that one probe may take; ``None`` for the worker's own limit."""
    tolerance: float = 0.01
    """Gain in speed that is not worth another probe."""
    pool: str = ""
    """Label of the service workers that may be at it; empty for any."""
    sampler: str = SamplerName.COST_MODEL
    """One of :class:`tuner.core.study.SamplerName`."""
    script: Script | None = None
    """The user's own script, which is run in the place of the probe program's step."""


def question_of(wanted: Wanted, installed: Mapping[str, str] | None = None) -> Question:
    """The question.

    Args:
        wanted: what is asked for.
        installed: versions of packages for which none is stated; by default those here.

    Raises:
        UsageError: some of it is wrong; with the field's name.
    """
    return Question(
        workload=_workload(wanted),
        cluster=read_cluster(wanted.cluster),
        framework=framework(wanted.framework, wanted.framework_versions, installed),
        knobs=_knobs(wanted.knobs),
        script=wanted.script,
    )


def terms_of(wanted: Wanted, fidelity: Fidelity) -> Terms:
    """The terms of an answer at this fidelity.

    Raises:
        UsageError: some of them are impossible.
    """
    given = given_terms(wanted)
    if fidelity is Fidelity.PREDICTED and "max_probes" not in given:
        given["max_dry_runs"] = MOST_DRY_RUNS
    return Terms(fidelity=fidelity, **{"max_probes": MOST_PROBES[fidelity], **given})


def given_terms(wanted: Wanted) -> dict[str, Any]:
    """The fields of :class:`tuner.core.study.Terms` that were given, but for the fidelity.

    Raises:
        UsageError: one is no such value.
    """
    given: dict[str, Any] = {
        "headroom": HEADROOM if wanted.headroom is None else _share("headroom", wanted.headroom),
        "memory_limit_bytes": wanted.memory_limit_bytes,
        "tolerance": _share("tolerance", wanted.tolerance),
        "wall_s": seconds_of("wall_s", wanted.wall_s),
        "device_s": seconds_of("gpu_s", wanted.gpu_s),
        "pool": _pool(wanted.pool),
        "sampler": choice("sampler", SamplerName, wanted.sampler),
    }
    if wanted.max_probes is not None:
        check_whole("max_probes", wanted.max_probes, 1, 10_000)
        given["max_probes"] = wanted.max_probes
    return given


def read_fidelity(wanted: Wanted, usual: str) -> Fidelity | None:
    """How probes are to be run; ``None`` for the strongest way that there is.

    Args:
        wanted: what is asked for.
        usual: what is meant where nothing is said.

    Raises:
        UsageError: there is no such fidelity.
    """
    word = usual if wanted.fidelity is None else wanted.fidelity
    if word == AUTO:
        return None
    if word not in list(Fidelity):
        raise UsageError("fidelity", word, f"must be one of {', '.join((AUTO, *Fidelity))}")
    return Fidelity(word)


def _workload(wanted: Wanted) -> Workload:
    reduced = wanted.reduce_dtype
    return Workload(
        model=_model(wanted),
        sequence_length=wanted.sequence_length,
        global_batch_size=wanted.global_batch_size,
        optimizer=choice("optimizer", Optimizer, wanted.optimizer),
        precision=choice("precision", Precision, wanted.precision),
        reduce_dtype=None if reduced is None else choice("reduce_dtype", ReduceDtype, reduced),
    )


def _model(wanted: Wanted) -> ModelConfig:
    if wanted.model is not None:
        return read_model(wanted.model)
    if wanted.script is None:
        raise UsageError("model", None, "must be named; only a --script is probed without")
    return unnamed_model()


def _knobs(values: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Allowed values by knob; the question checks them."""
    for name, allowed in check_mapping("knobs", values).items():
        if isinstance(allowed, str) or not isinstance(allowed, Sequence):
            raise UsageError(name, allowed, "must be a list of the values that are allowed")
    return {name: tuple(allowed) for name, allowed in values.items()}


def _share(field: str, value: object) -> float:
    return read_share(field, value, 0.05)


def seconds_of(field: str, value: object) -> float | None:
    """A duration, if one is given.

    Raises:
        UsageError: it is no number of seconds that anybody waits.
    """
    if value is None:
        return None
    if not is_number(value) or not 0 < value <= LONGEST_S:
        allowed = f"must be a number of seconds above 0 and up to {LONGEST_S}"
        raise UsageError(field, value, allowed)
    return float(value)


def _pool(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError("pool", value, POOL_SPELLING)
    return value
