"""Decides what a request leaves open, by the live workers or by this machine: versions, fidelity.

For an answer here everything is checked before any database is opened: after a usage error nothing
has been written anywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tuner.catalog.versions import version_table
from tuner.client.capabilities import (
    best_fidelity,
    why_not_emulated,
    why_not_measured,
    why_not_rehearsed,
    why_unpriced,
)
from tuner.client.request import RequestHere, TuneRequest
from tuner.client.worker_process import probing_arguments
from tuner.core.cluster import Cluster, Device
from tuner.core.framework import (
    FLASH_PACKAGE,
    FOUR_BIT_PACKAGE,
    NOT_PROBED,
    OF_ADAPTERS,
    installed_versions,
    not_installed,
)
from tuner.core.launcher import LauncherName, default_launcher
from tuner.core.measurement import PROBED, Fidelity
from tuner.core.study import Limits, Question, Study, StudyState, missing_beside
from tuner.core.words import listed
from tuner.cost.calibration import Calibration
from tuner.cost.memory.tensors import counts
from tuner.cost.prediction import uncovered
from tuner.errors import UsageError
from tuner.explain.ways_out import least_need
from tuner.machine import Machine
from tuner.space import Space, enumerate_space
from tuner.store import Store, default_url, open_store
from tuner.store.engine import is_sqlite, parse_url
from tuner.store.workers import RegisteredWorker, Workers
from tuner.text import duration_text, show_all, size_text

STRONGEST = tuple(Fidelity)

# Rate at which a core is taken to compute training's products: some 45 GFLOP/s were measured in
# fp32, and cores with matrix units do more in bf16.
CORE_FLOPS_PER_S = 5e10
# Seconds of a micro-batch of CPU ranks, beyond which a probe, of some ten, is not worth its time.
MOST_MICRO_BATCH_S = 60.0

# Finds the calibration of a question's devices.
Rates = Callable[[Question], Calibration | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A question as it will be answered."""

    question: Question
    """What is asked, in all versions."""
    limits: Limits
    versions: Mapping[str, str]
    """Of the worker by which it was decided, or of this machine: what dry runs are made with."""
    notes: tuple[str, ...]
    """What was decided and not asked for, and why."""
    probing: Sequence[str] = ()
    """Arguments of a worker for how probes are run; none for its own choice."""

    @property
    def space(self) -> Space:
        return enumerate_space(self.question)


def place(request: TuneRequest, workers: Sequence[RegisteredWorker], rates: Rates) -> Placed:
    """Decide what was left open: versions that were not stated, and the fidelity.

    Versions are those of the workers. Where none lives they are those installed here, and of
    packages that are not, the newest that are known; a note says which it was.
    """
    # The first of each kind of machine in each versions: there may be hundreds alike.
    kinds: dict[str, tuple[RegisteredWorker, Machine]] = {}
    for worker in workers:
        there = Machine.from_dict(worker.machine)
        gpus = [(gpu.name, gpu.memory_mib) for gpu in there.gpus]
        cpu = there.processor, there.cores, there.memory_bytes
        kind = (sorted(worker.versions.items()), gpus, cpu, there.trouble, len(there.nodes))
        kinds.setdefault(repr(kind), (worker, there))
    candidates: list[tuple[Question, Fidelity, Mapping[str, str], list[str]]] = []
    for worker, there in kinds.values():
        whose = f"of worker {worker.name}"
        question, notes = _in_versions(request, there, worker.versions, whose)
        fidelity = request.fidelity
        if fidelity is None:
            known = partial(rates, question)
            fidelity, why = best_fidelity(question, known, there, worker.versions)
            notes.append(f"fidelity {fidelity}: {why}")
        candidates.append((question, fidelity, worker.versions, notes))
    if not candidates:
        here = installed_versions()
        question, notes = _in_versions(request, None, here, "installed where the service runs")
        fidelity = request.fidelity
        if fidelity is None:
            whose = f"pool {request.pool}" if request.pool else "this service"
            none = f"no worker of {whose} lives (tuner worker, beside the devices, is one)"
            fidelity, why = Fidelity.PREDICTED, f"{none}; asked again at its end, it is chosen anew"
            of_cpus = question.cluster.gpu.device is Device.CPU and not question.unprobed
            if of_cpus and rates(question) is None:
                fidelity = Fidelity.MEASURED
                why = f"{none}, and only probes tell the speed of CPU ranks"
            notes.append(f"fidelity {fidelity}: {why}")
        candidates.append((question, fidelity, here, notes))
    question, fidelity, versions, notes = min(candidates, key=lambda one: STRONGEST.index(one[1]))
    if fidelity not in PROBED and (why := uncovered(question.workload, question.framework)):
        raise UsageError("workload", question.workload.model.name, f"not predicted: {why}")
    limits, told = request.limits_at(fidelity), (*request.notes, *notes)
    return Placed(question=question, limits=limits, versions=versions, notes=told)


def _in_versions(
    request: TuneRequest, there: Machine | None, found: Mapping[str, str], whose: str
) -> tuple[Question, list[str]]:
    """The question in versions that are found, and a sentence for what was not stated."""
    stated, table = request.framework.versions, version_table()
    # The newest versions of packages that must be known and are not.
    assumed = {
        one: table.packages[one].newest
        for one in table.frameworks[request.framework.name].required
        if one not in stated and one not in found
    }
    question = request.question({**found, **assumed}, request.cluster_on(there))
    taken = {
        name: version
        for name, version in question.framework.versions.items()
        if name not in stated and name not in assumed
    }
    told = {
        f"versions that are not stated are those {whose}": taken,
        f"taken as the newest that is known, neither stated nor {whose}": assumed,
    }
    return question, [
        f"{what}: {', '.join(f'{name} {version}' for name, version in versions.items())}"
        for what, versions in told.items()
        if versions
    ]


def with_reason(store: Store, study: Study) -> Study:
    """The study, as others see it: of a queued one the reason says what it waits for, too."""
    if study.state is not StudyState.QUEUED or study.question.script is not None:
        return study
    pool = study.limits.pool
    registered = Workers(store.transactions)
    workers = registered.living(pool)
    lacking = [_lacks(study, worker) for worker in workers]
    if not workers and (silent := registered.silent_here(pool)):
        named = listed({f"{one.name} (process {one.identity.pid})": 0 for one in silent})
        since = silent[0].seen_at[11:19]
        why = f"no sign of {named} on this machine since {since} UTC: see its log"
    elif not workers:
        why = f"no worker runs: start one with tuner worker{f' --pool {pool}' if pool else ''}"
    elif all(lacking):
        needed = listed(dict.fromkeys(lacking))
        why = f"waiting for a worker that has {needed}: none of those alive has"
    elif at := [one.id for one in store.open_studies({pool}) if one.state is StudyState.RUNNING]:
        why = f"waiting for a worker, which is at {listed(at[:3])}"
    else:
        why = "a worker is about to take it"
    return replace(study, reason="; ".join(filter(None, (study.reason, why))))


def _lacks(study: Study, worker: RegisteredWorker) -> str:
    """Names what a worker lacks to run a study's probes; empty if it can."""
    question, fidelity = study.question, study.limits.fidelity
    if fidelity is Fidelity.PREDICTED:
        return ""
    for package, version, _ in not_installed(question.framework, worker.versions):
        return f"{package} {version}"
    cluster = question.cluster
    has, why_not = {
        Fidelity.MEASURED: (cluster.name, why_not_measured),
        Fidelity.EMULATED: (f"a device of {cluster.name}", why_not_emulated),
    }.get(fidelity, ("", lambda cluster, there: ""))
    try:
        lacks = has if why_not(cluster, Machine.from_dict(worker.machine)) else ""
    except UsageError:  # its driver does not answer
        lacks = has
    return lacks or missing_beside(question, worker.versions)


# -- on this machine ------------------------------------------------------------------------------


def place_here(request: RequestHere, db: str | None = None) -> Placed:
    """The same for an answer on this machine; measured unless the request says otherwise."""
    here = installed_versions()
    question = request.question(here)
    is_open = "fidelity" in request.model_fields_set and request.fidelity is None
    fidelity, chosen_for = request.fidelity or Fidelity.MEASURED, ""
    if question.script is not None:
        if fidelity not in (Fidelity.MEASURED, Fidelity.REHEARSED):
            allowed = "a script is run: it is measured, or its memory rehearsed"
            raise UsageError("fidelity", fidelity, allowed)
    elif is_open:
        fidelity, chosen_for = best_fidelity(question, partial(kept_rates, db, question))
    limits = request.limits_at(fidelity)
    if why := limits.sampler.why_not_here:
        raise UsageError("sampler", limits.sampler, why)
    deadline_s = request.probe_deadline_s
    if deadline_s is not None and fidelity is Fidelity.PREDICTED:
        raise UsageError("probe_deadline", deadline_s, "is for probes; dry runs have their own")
    if request.ray and request.launcher is not LauncherName.RAY:
        raise UsageError("ray", request.ray, "is for --launcher ray")
    no_gpu = _no_gpu(request, question)
    if fidelity is Fidelity.MEASURED:
        _check_software(question)
        # other machines are looked at by the worker, which is on one of them
        if (request.launcher or default_launcher()) is LauncherName.LOCAL:
            check_here(question.cluster)
    elif fidelity is not Fidelity.PREDICTED:
        _check_software(question)
        _check_alone(question, fidelity, db)
    enumerate_space(question)
    if no_gpu and (hindered := _too_much_for(question, limits)):
        name, ways = question.cluster.name, no_gpu.partition(": ")[2]
        raise UsageError("cluster", "local", f"no GPU is here, so it is {name}, {hindered}; {ways}")
    chosen = f"fidelity {fidelity}: {chosen_for}" if chosen_for else ""
    return Placed(
        question=question,
        limits=limits,
        versions=here,
        notes=tuple(filter(None, (no_gpu, *request.notes, chosen))),
        probing=probing_arguments(deadline_s, request.launcher, request.ray),
    )


def _no_gpu(request: RequestHere, question: Question) -> str:
    """Says that this machine has no GPU where it was taken for the cluster, and what to do."""
    spelled, cluster = request.cluster, question.cluster
    is_local = isinstance(spelled, str) and spelled.lower() == "local"
    if not is_local or cluster.gpu.device is not Device.CPU or question.script is not None:
        return ""
    return (
        f"no GPU is here, so local is {cluster.name}: name the cluster and ask for predictions, as"
        " with --cluster 8xh100-80gb --fidelity predicted, or try a small model on these CPUs, as"
        f" with --model stories15m --cluster {cluster.name}"
    )


def _too_much_for(question: Question, limits: Limits) -> str:
    """Why nobody who expected a GPU asks this of CPU ranks; empty if it may be meant."""
    need = least_need(question, limits)
    if need is not None and need.needed_bytes > need.limit_bytes:
        sizes = f"{size_text(need.needed_bytes)} of {size_text(need.limit_bytes)}"
        return f"where {question.trained} needs {sizes}"
    cluster, work = question.cluster, question.workload
    if work.is_traced or not cluster.gpu.cores:
        return ""
    tokens = work.sequence_length * cluster.world_size
    each = (4 if work.adapter else 6) * counts(work.model).active_parameters
    seconds = each * tokens / cluster.gpu.cores / CORE_FLOPS_PER_S
    if seconds <= MOST_MICRO_BATCH_S:
        return ""
    return (
        f"where a sequence on each rank takes some {duration_text(seconds)}, forward and"
        f" backward: --cluster {cluster.name} says that this is meant"
    )


def check_here(cluster: Cluster) -> None:
    """Refuse a cluster that this machine is not."""
    if why := why_not_measured(cluster):
        if cluster.gpu.device is not Device.CPU:
            where = f"{cluster.name} itself" if cluster.nodes == 1 else "a single node of that kind"
            why = f"probes run here, and {why}: run tuner on {where}, take --cluster local, or ask"
            why += " for predictions with --fidelity predicted"
        raise UsageError("cluster", cluster.name, why)


def _check_alone(question: Question, fidelity: Fidelity, db: str | None) -> None:
    """Refuse a cluster of which this machine cannot play one rank."""
    cluster = question.cluster
    if fidelity is Fidelity.REHEARSED:
        if why := why_not_rehearsed(cluster):
            raise UsageError("fidelity", fidelity, f"is not possible here: {why}")
        return
    if why := why_not_emulated(cluster):
        raise UsageError("cluster", cluster.name, why)
    if why := why_unpriced(question, partial(kept_rates, db, question)):
        why += ", and communication is not measured where one device plays them all: state it"
        is_whole = not why_not_measured(cluster)
        other = f", or run tuner calibrate --cluster {cluster.name}" if is_whole else ""
        raise UsageError("cluster", cluster.name, f"{why} in a .toml file{other}")


def kept_rates(db: str | None, question: Question) -> Calibration | None:
    """Finds the calibration of the question's devices; no database is made for it."""
    if not is_kept(db):
        return None
    with open_store(db, create=False) as store:
        return store.calibration(question.cluster, question.framework.versions)


def is_kept(db: str | None) -> bool:
    """Says if a database is there: one in SQLite may not be made yet."""
    url = parse_url(default_url() if db is None else db)
    return not is_sqlite(url) or Path(str(url.database)).exists()


# torch's ring attention knows the kernels of GPUs alone (``call_maps`` in torch/distributed/tensor/
# experimental/_context_parallel/_attention.py, 2.13), so no probe of it could be tried here.
NO_RING_PROBE = (
    "above 1 is not probed here: have a script that is told {cp_size} run on GPUs with --script, or"
    " ask for predictions with --fidelity predicted"
)


# Their products on CPUs are others (``MatMul8bitFp`` in autograd/_functions.py, 0.50.2).
NO_EIGHT_BIT_PROBE = (
    "is not probed here: have a script that loads the model so run with --script, or ask for"
    " predictions with --fidelity predicted"
)


def _check_software(question: Question) -> None:
    """Refuse a framework that is not probed, other versions, an optimizer without its library."""
    asked = question.framework
    if asked.name in NOT_PROBED and question.script is None:
        raise UsageError(
            "framework",
            str(asked.name),
            "is not probed here: use torch, accelerate or trainer, have your own script of it run"
            " with --script, or ask for predictions with --fidelity predicted",
        )
    if question.in_eight_bits:
        raise UsageError("adapter.quantize", "int8", NO_EIGHT_BIT_PROBE)
    if question.unprobed:
        raise UsageError("cp_size", show_all(question.knobs["cp_size"]), NO_RING_PROBE)
    for package, version, found in not_installed(asked):
        state = f"{package} {found} is installed here" if found else "it is not installed here"
        raise UsageError(
            "framework_version",
            f"{package}={version}",
            f"{state}, and probes run with what is installed: install {package}=={version},"
            " or leave it out",
        )
    if missing := missing_beside(question):
        work = question.workload
        adapter = work.adapter if missing in OF_ADAPTERS else None
        if missing == FOUR_BIT_PACKAGE and adapter and not adapter.quantizes:
            adapter = None
        field, given = "optimizer", str(work.optimizer)
        field, given = ("adapter", str(adapter.method)) if adapter else (field, given)
        field, given = ("packing", "varlen") if missing == FLASH_PACKAGE else (field, given)
        allowed = f"needs {missing}, which is not installed: pip install {missing}"
        raise UsageError(field, str(given), allowed)
