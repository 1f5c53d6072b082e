"""Finds who could answer a question, in which versions and how strongly, by the live workers."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.catalog.versions import version_table
from tuner.client.capabilities import best_fidelity
from tuner.client.tune_request import TuneRequest
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.core.study import Question, Terms
from tuner.cost.calibration import Calibration
from tuner.cost.prediction import uncovered
from tuner.errors import UsageError
from tuner.machine import Machine

STRONGEST = (Fidelity.MEASURED, Fidelity.EMULATED, Fidelity.PREDICTED)

# Finds the calibration of a question's devices.
Rates = Callable[[Question], Calibration | None]


class Living(Protocol):
    """A worker that lives: :class:`tuner.store.workers.RegisteredWorker` is one."""

    @property
    def name(self) -> str:
        """Name for people."""

    @property
    def machine(self) -> Mapping[str, Any]:
        """``Machine.as_dict()`` of where it runs."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Releases of the packages that probes depend on, by package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A question as it will be answered."""

    question: Question
    """What is asked, in all versions."""
    terms: Terms
    """On what terms, with their fidelity."""
    versions: Mapping[str, str]
    """Of the worker by which it was decided, or of this machine: what dry runs are made with."""
    notes: tuple[str, ...]
    """What was decided and not asked for, and why."""


def place(request: TuneRequest, workers: Sequence[Living], rates: Rates) -> Placed:
    """Decide what was left open: versions that were not stated, and the fidelity.

    Versions are those of the workers. Where none lives they are those installed here, and of
    packages that are not, the newest that are known; a note says which it was.

    Args:
        request: what is asked for.
        workers: those that live and serve its pool.
        rates: finds the calibration of a question's devices.

    Raises:
        UsageError: what is asked for is in no version legal, or nothing is known to predict it by.
    """
    candidates = [_by_worker(request, worker, rates) for worker in _different(workers)]
    placed = min(candidates, key=lambda one: STRONGEST.index(one.terms.fidelity), default=None)
    if placed is None:
        placed = _without_workers(request)
    question, is_predicted = placed.question, placed.terms.fidelity is Fidelity.PREDICTED
    if is_predicted and (why := uncovered(question.workload, question.framework)):
        raise UsageError("workload", question.workload.model.name, f"not predicted: {why}")
    return placed


def _different(workers: Sequence[Living]) -> list[Living]:
    """The first of each kind of machine in each versions: there may be hundreds alike."""
    kinds: dict[str, Living] = {}
    for worker in workers:
        machine = Machine.from_dict(worker.machine)
        gpus = [(gpu.name, gpu.memory_mib) for gpu in machine.gpus]
        cpu = machine.processor, machine.cores, machine.memory_bytes
        kind = (sorted(worker.versions.items()), gpus, cpu, machine.trouble, len(machine.nodes))
        kinds.setdefault(repr(kind), worker)
    return list(kinds.values())


def _by_worker(request: TuneRequest, worker: Living, rates: Rates) -> Placed:
    there = Machine.from_dict(worker.machine)
    asked = request.on(there)
    question, notes = _in_versions(asked, worker.versions, f"of worker {worker.name}")
    fidelity = request.fidelity
    if fidelity is None:
        fidelity, why = best_fidelity(question, lambda: rates(question), there, worker.versions)
        notes.append(f"fidelity {fidelity}: {why}")
    return Placed(
        question=question,
        terms=request.terms_at(fidelity),
        versions=worker.versions,
        notes=(*request.notes, *notes),
    )


def _without_workers(request: TuneRequest) -> Placed:
    here = installed_versions()
    question, notes = _in_versions(request.on(None), here, "installed where the service runs")
    fidelity = request.fidelity
    if fidelity is None:
        fidelity = Fidelity.PREDICTED
        whose = f"pool {request.pool}" if request.pool else "this service"
        notes.append(f"fidelity predicted: no worker of {whose} lives")
    return Placed(
        question=question,
        terms=request.terms_at(fidelity),
        versions=here,
        notes=(*request.notes, *notes),
    )


def _in_versions(
    request: TuneRequest, found: Mapping[str, str], whose: str
) -> tuple[Question, list[str]]:
    """The question in versions that are found, and a sentence for what was not stated."""
    stated = _stated(request.framework)
    assumed = _assumed(request.framework, {*stated, *found})
    question = request.question({**found, **assumed})
    taken = {
        name: version
        for name, version in question.framework.versions.items()
        if name not in stated and name not in assumed
    }
    notes = []
    if taken:
        notes.append(f"versions that are not stated are those {whose}: {_listed(taken)}")
    if assumed:
        notes.append(
            f"taken as the newest that is known, neither stated nor {whose}: {_listed(assumed)}"
        )
    return question, notes


def _assumed(framework: object, known: Set[str]) -> dict[str, str]:
    """The newest versions of packages that must be known and are not."""
    name = framework.get("name") if isinstance(framework, Mapping) else framework
    table = version_table()
    if not isinstance(name, str) or name not in table.frameworks:
        return {}  # which is refused where it is read
    required = table.frameworks[name].required
    return {one: table.packages[one].newest for one in required if one not in known}


def _stated(framework: object) -> Mapping[str, str]:
    versions = framework.get("versions") if isinstance(framework, Mapping) else None
    return versions if isinstance(versions, Mapping) else {}


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
