"""A question as it comes over a network: one JSON object, read strictly.

Nothing in it names a file, an address, a class or a command. What is wrong is named with its path,
such as ``workload.sequence_length``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.client.cases.reading import (
    NotCoveredError,
    as_mapping,
    check_knob,
    check_names,
    check_whole,
    default_note,
    is_number,
    read_cluster,
    read_framework,
    read_headroom,
    read_limit_gib,
    read_share,
    read_workload,
    renamed,
    short,
)
from tuner.core.cluster import SPELLINGS, Cluster, Device, on_machine, parse_cluster
from tuner.core.configuration import KNOBS
from tuner.core.framework import FrameworkName
from tuner.core.measurement import Fidelity
from tuner.core.study import Question, SamplerName, Terms
from tuner.core.workload import Workload, choice
from tuner.errors import UsageError
from tuner.machine import Machine
from tuner.model.checks import check_json
from tuner.planner.dry_runs import MOST_CLASSES, MOST_DRY_RUNS
from tuner.space import count_settings, divisors, enumerate_space

# The word for the strongest fidelity that there is for a question.
AUTO = "auto"
REQUIRED = ("workload", "cluster")
OPTIONAL = (
    "framework", "knobs", "fidelity", "budget", "tolerance", "headroom", "memory_limit_gib", "pool",
    "sampler", "replace",
)  # fmt: skip
BUDGET = ("max_probes", "wall_s", "gpu_s")
# How a cluster may be written that is not here.
NETWORK_SPELLINGS = SPELLINGS.partition(", local")[0] + ", or be an object of its fields"
# Seconds of a budget: a year.
LONGEST_S = 366 * 86_400
# Values of a knob that may be allowed.
MOST_VALUES = 100
# Legal settings of a question that may be asked over a network. Each takes up to a millisecond of
# the service's time; batches with the usual divisors leave a few hundred, those with the most that
# were thought of 2,300.
MOST_SETTINGS = 2500

# Micro-batch sizes, the smallest ones, that are proposed where there are too many settings.
FEW = 8

# Probes to run at most, unless a number is given.
MOST_PROBES: Mapping[Fidelity, int] = {
    Fidelity.MEASURED: 20,
    Fidelity.EMULATED: 20,
    Fidelity.PREDICTED: MOST_CLASSES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """A request before it is known who answers it."""

    workload: Workload
    """What is trained."""
    cluster: Cluster
    """Where; CPU ranks are of the machine on which it was read."""
    spelled: str = ""
    """The cluster's short spelling, where it was given by one."""
    framework: object = str(FrameworkName.TORCH)
    """With which stack, as it was written: versions that it leaves out are those of the workers."""
    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Knobs restricted to some values."""
    fidelity: Fidelity | None = None
    """How probes are to be run; ``None`` for the strongest that there is."""
    terms: Mapping[str, Any] = field(default_factory=dict)
    """The further fields of :class:`tuner.core.study.Terms` that were given."""
    replace: bool = False
    """Whether a study that is open on other terms is put on these."""
    notes: tuple[str, ...] = ()
    """What was written and is not used, or was left out and matters."""

    @property
    def pool(self) -> str:
        """Label of the workers that may be at it; empty for any."""
        return str(self.terms.get("pool", ""))

    def on(self, there: Machine | None) -> "TuneRequest":
        """The request with CPU ranks of a machine, by default this one, unless it names another."""
        if self.cluster.gpu.device is not Device.CPU:
            return self
        if self.spelled:
            found = parse_cluster(self.spelled, allow_files=False, there=there)
            return replace(self, cluster=found)
        return replace(self, cluster=on_machine(self.cluster, there))

    def question(self, installed: Mapping[str, str]) -> Question:
        """The question, with ``installed`` versions where none are stated.

        Raises:
            UsageError: a framework or version that there is not, or no settings are legal, or more
                than :data:`MOST_SETTINGS`.
        """
        stack = read_framework(self.framework, installed)
        try:
            question = Question(
                workload=self.workload, cluster=self.cluster, framework=stack, knobs=self.knobs
            )
            _check_size(question)
            enumerate_space(question)
        except UsageError as error:
            raise renamed(error, _path(error.field)) from error
        return question

    def terms_at(self, fidelity: Fidelity) -> Terms:
        """The terms, with a fidelity's defaults."""
        defaults: dict[str, Any] = {"max_probes": MOST_PROBES[fidelity]}
        if fidelity is Fidelity.PREDICTED and "max_probes" not in self.terms:
            defaults["max_dry_runs"] = MOST_DRY_RUNS
        return Terms(fidelity=fidelity, **{**defaults, **self.terms})


def read_request(value: object) -> TuneRequest:
    """The request in a JSON value.

    Raises:
        UsageError: a field is wrong, missing or not covered; with its path.
    """
    values = as_mapping("body", value)
    check_json(values, depth=-2)
    _check_text(values)
    check_names("", values, REQUIRED, OPTIONAL)
    values = {name: item for name, item in values.items() if item is not None}
    return TuneRequest(
        workload=_workload(values["workload"]),
        cluster=_cluster(values["cluster"]),
        spelled=values["cluster"] if isinstance(values["cluster"], str) else "",
        framework=values.get("framework", str(FrameworkName.TORCH)),
        knobs=_knobs(values.get("knobs", {})),
        fidelity=_fidelity(values.get("fidelity", AUTO)),
        terms=_terms(values),
        replace=_replace(values.get("replace", False)),
        notes=_notes(values),
    )


def _check_text(values: Mapping[str, Any]) -> None:
    """Refuse text that cannot be written down: halves of characters, which JSON can escape."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError("body", "half a character", "must be of Unicode characters") from error


def _workload(value: object) -> Workload:
    found = read_workload(value)
    if isinstance(found, NotCoveredError):
        model_type = as_mapping("workload", value)["model"]["model_type"]
        raise UsageError("workload.model.model_type", model_type, str(found)) from found
    return found


def _cluster(value: object) -> Cluster:
    if isinstance(value, str) and value.strip().lower() == "local":
        allowed = "is the machine that asks: name what it has, such as 8xa100-80gb"
        raise UsageError("cluster", value, allowed)
    try:
        found = read_cluster(value)
    except UsageError as error:
        if error.allowed == SPELLINGS:
            raise UsageError(error.field, error.given, NETWORK_SPELLINGS) from error
        raise
    if isinstance(found, NotCoveredError):
        gpu = value if isinstance(value, str) else as_mapping("cluster", value)["gpu"]
        raise UsageError("cluster", gpu, str(found)) from found
    return found


def _fidelity(value: object) -> Fidelity | None:
    if value == AUTO:
        return None
    try:
        return choice("fidelity", Fidelity, value)
    except UsageError as error:
        raise UsageError("fidelity", value, f"{error.allowed}, {AUTO}") from error


def _knobs(value: object) -> dict[str, tuple[Any, ...]]:
    knobs = as_mapping("knobs", value)
    check_names("knobs.", knobs, (), KNOBS)
    return {name: _values(name, knobs[name]) for name in knobs}


def _values(name: str, value: object) -> tuple[Any, ...]:
    path = f"knobs.{name}"
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_VALUES:
        allowed = f"must be a list of 1 to {MOST_VALUES} values that are allowed"
        raise UsageError(path, value, allowed)
    for one in value:
        try:
            check_knob(name, one)
        except UsageError as error:
            raise renamed(error, path) from error
        if KNOBS[name].kind not in (bool, int) and not isinstance(one, str):
            raise UsageError(path, one, "must be the name of a value")
    return tuple(value)


def _terms(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the terms that are given, but for the fidelity."""
    terms = _budget(as_mapping("budget", values.get("budget", {})))
    if "tolerance" in values:
        terms["tolerance"] = read_share("tolerance", values["tolerance"], 0.01)
    if "headroom" in values:
        terms["headroom"] = read_headroom(values["headroom"])
    if limit_gib := read_limit_gib(values.get("memory_limit_gib")):
        terms["memory_limit_bytes"] = round(limit_gib * 2**30)
    if "pool" in values:
        terms["pool"] = _pool(values["pool"])
    if "sampler" in values:
        terms["sampler"] = choice("sampler", SamplerName, values["sampler"])
    return terms


def _budget(budget: Mapping[str, Any]) -> dict[str, Any]:
    check_names("budget.", budget, (), BUDGET)
    terms: dict[str, Any] = {}
    if (most := budget.get("max_probes")) is not None:
        check_whole("budget.max_probes", most, 1, 10_000)
        terms["max_probes"] = most
    for name, term in (("wall_s", "wall_s"), ("gpu_s", "device_s")):
        if (seconds := budget.get(name)) is not None:
            if not is_number(seconds) or not 0 < seconds <= LONGEST_S:
                allowed = f"must be a number of seconds above 0 and up to {LONGEST_S}"
                raise UsageError(f"budget.{name}", seconds, allowed)
            terms[term] = float(seconds)
    return terms


def _pool(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError("pool", value, "must be the label of a pool of workers")
    Terms(pool=short("pool", value))
    return value


def _replace(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError("replace", value, "must be true or false")
    return value


def _notes(values: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if "headroom" in values and "memory_limit_gib" in values:
        notes.append("headroom is not applied: memory_limit_gib is taken as it is")
    if note := default_note(values["workload"]["model"]):
        notes.append(note)
    return tuple(notes)


def _check_size(question: Question) -> None:
    """Refuse a question of too many settings, with a restriction that would help."""
    if count_settings(question, MOST_SETTINGS) <= MOST_SETTINGS:
        return
    how = f"must leave at most {MOST_SETTINGS} legal settings, and leaves more: {_less(question)}"
    raise UsageError("knobs", question.as_dict()["knobs"], how)


def _less(question: Question) -> str:
    batch = question.workload.global_batch_size
    sizes = question.knobs.get("micro_batch_size", divisors(batch))[:FEW]
    fewer = replace(question, knobs={**question.knobs, "micro_batch_size": sizes})
    if count_settings(fewer, MOST_SETTINGS) <= MOST_SETTINGS:
        return f'allow some values only, such as {{"micro_batch_size": {list(sizes)}}}'
    return f"allow some values only of {', '.join(list(KNOBS)[:-1])} or {list(KNOBS)[-1]}"


def _path(name: str) -> str:
    """The path in a request of what a rule of the space names."""
    first = name.partition(" x ")[0]  # of a product of sizes
    if first in KNOBS:
        return f"knobs.{first}"
    return {"knob": "knobs", "global_batch_size": "workload.global_batch_size"}.get(name, name)
