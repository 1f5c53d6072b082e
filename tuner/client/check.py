"""Tells whether a case fits: as it was measured or emulated, where it was, or else as predicted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tuner.catalog.models import Task
from tuner.catalog.versions import meets, version_table
from tuner.client.cases import Case, Finding, answer_of
from tuner.client.predict import Prediction, read_single_case
from tuner.client.request import read_cluster
from tuner.client.values import read_model
from tuner.core.bounds import choice
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import KNOBS, Checkpointing, Sharding, knob_value
from tuner.core.evaluation import Evaluation
from tuner.core.framework import FrameworkName, installed_versions
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance, Quantity
from tuner.core.script import flag_differs, loses_random_state
from tuner.core.study import Limits
from tuner.errors import UsageError
from tuner.launchfiles import trainer
from tuner.launchfiles.fields import Found
from tuner.launchfiles.fsdp import ON_HOST, layer_class
from tuner.model import read_model_config
from tuner.results import Evidence
from tuner.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Results of a study's probes of this very configuration."""

    study_id: str
    figures: Evaluation
    """What they found, within the limits of the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A case, with what is known of it."""

    format_name: str
    case: Case
    prediction: Prediction
    seen: Seen | None = None
    """What was measured, or else emulated; ``None`` where neither was."""

    @property
    def fits(self) -> bool | None:
        """Tells whether it fits; ``None`` where nothing is known."""
        seen = self._seen_to_fit
        return self.prediction.fits if seen is None else seen.fits

    @property
    def _seen_to_fit(self) -> Evaluation | None:
        """Tells if probes saw it fit: nothing where they closed it for what it trains."""
        if self.seen is None or (self.trains_wrongly and not self.seen.figures.too_large):
            return None
        return self.seen.figures

    def _figure(self, name: str) -> Quantity:
        """A quantity as it was seen, or else as it is predicted."""
        known: Quantity | None = getattr(self.seen.figures, name) if self.seen else None
        found: Quantity = getattr(self.prediction, name)
        return known if known and known.value is not None else found

    @property
    def allocated_gib(self) -> Quantity:
        """Peak of allocated tensors."""
        return self._figure("allocated_gib")

    @property
    def step_time_s(self) -> Quantity:
        """Seconds of one optimizer step."""
        return self._figure("step_time_s")

    @property
    def tokens_per_s_per_gpu(self) -> Quantity:
        """Tokens of the global batch per second of its step and GPU."""
        return self._figure("tokens_per_s_per_gpu")

    @property
    def provenance(self) -> Provenance:
        """The weakest of the memory's and the speed's."""
        return self.prediction.provenance if self.seen is None else self.seen.figures.known_from

    @property
    def reason(self) -> str:
        """Why it does not fit, or why nothing is known; empty where it fits."""
        figures = self._seen_to_fit
        if figures is None:
            return self.prediction.reason
        if figures.fits is not False:
            return ""
        return figures.why or f"it needs {figures.needed_gib.value or 0:.2f} GiB of a device"

    @property
    def trains_wrongly(self) -> str:
        """Why it trains something else, where that was seen; else empty."""
        wrong: str = self.prediction.plain["trains_wrongly"]
        return wrong

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader, also that a prediction's upper end lies above the limit."""
        found, limit = self.prediction, self.prediction.limit_gib
        if self.seen is not None or not self.fits or not limit or found.allocated_gib.high is None:
            return found.notes
        beside = found.plain["memory"]
        most = found.allocated_gib.high + beside["context_gib"] + beside["communicator_gib"]
        if most <= limit:
            return found.notes
        close = f"it may need up to {most:.2f} GiB, which is more than the limit of {limit:.2f} GiB"
        return (*found.notes, f"{close}: measure it before a long run")

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``tuner check --json`` prints."""
        question, seen = self.case.question, self.seen
        return {
            "format": self.format_name,
            **{name: value for name, value in question.as_dict().items() if name != "knobs"},
            "settings": self.case.settings.as_dict(),
            "fits": self.fits,
            "memory": {
                "allocated_gib": self.allocated_gib.as_dict(),
                "limit_gib": self.prediction.limit_gib,
            },
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
            "step_time_s": self.step_time_s.as_dict(),
            "provenance": str(self.provenance),
            "reason": self.reason,
            "trains_wrongly": self.trains_wrongly,
            "notes": list(self.notes),
            "seen": seen
            and {
                "study_id": seen.study_id,
                "fidelity": str(seen.figures.fidelity),
                "outcome": str(seen.figures.outcome),
                "probes": list(seen.figures.probe_ids),
            },
            "prediction": self.prediction.as_dict(),
        }


def check(store: Store, format_name: str, case: Case, finding: Finding) -> Checked:
    """Checks a case by probes and predictions; ``finding`` is what dry runs say of it."""
    prediction = Prediction.from_answer(answer_of(case, finding))
    limits = Limits(headroom=case.headroom, memory_limit_bytes=case.limit_bytes)
    asked = replace(case.question, knobs={}).identity
    seen = None
    # Whatever knobs the studies of the question allowed.
    for study in filter(None, (store.find(case.question), *store.similar(case.question))):
        if replace(study.question, knobs={}).identity != asked:
            continue
        for figures in Evidence(replace(study, limits=limits)).seen(case.settings):
            is_measured = figures.fidelity is Fidelity.MEASURED
            if figures.fits is None or (seen and not is_measured):
                continue
            if seen is None or seen.figures.fidelity is not Fidelity.MEASURED:
                seen = Seen(study_id=study.id, figures=figures)
    return Checked(format_name=format_name, case=case, prediction=prediction, seen=seen)


NO_OPTION = "the file does not say it, and it is not said here"


def case_of(found: Found, beside: Mapping[str, Any]) -> Case:
    """The whole case of a file.

    Args:
        found: what the file says.
        beside: what is said beside it, by argument of :func:`read_single_case`.
    """
    own = partial(_own, found, beside)
    # Where it was to run, and in which versions, may have changed since it was written.
    stated = beside.get("framework_versions") or _own(found, {}, "framework_versions")
    cluster = read_cluster(beside.get("cluster") or _needed("cluster", own("cluster")))
    _check_cluster(found, cluster)
    knobs = _knobs(found, beside.get("settings") or {})
    ranks = cluster.world_size // (knobs.get("tp_size", 1) * knobs.get("pp_size", 1))
    batch = own("global_batch_size")
    if (steps := knobs.get("gradient_accumulation_steps")) is not None:
        made = knobs["micro_batch_size"] * steps * ranks
        if batch is not None and batch != made:
            parts = f"{knobs['micro_batch_size']} x {steps} x {ranks} data-parallel ranks"
            raise UsageError("global_batch_size", batch, f"the file makes {made} on it: {parts}")
        batch = made
    batch = _needed("global_batch_size", batch)
    if batch > knobs["micro_batch_size"] * ranks and ranks > 1:
        # It accumulates: what decides how much memory that takes is not guessed.
        for name in [one for one in found.needs if one not in knobs]:
            whose = f"{found.needs[name]} decides it, and it is not said"
            raise UsageError(name, None, f"{whose}: --settings {name}=true or false")
    name, fields = found.may.get("model_name", ("",))[0], found.may.get("model")
    model = beside.get("model")
    if fields and model is not None:
        shown = model if isinstance(model, str) else "a model"
        raise UsageError("model", shown, "the file says which: leave it out")
    if fields and name:
        model = read_model_config(fields[0], name=name)
    else:
        task = choice("task", Task, own("task") or Task.CAUSAL_LM)
        model = read_model(_needed("model", own("model")), task)
    layer = layer_class(model)
    if found.layer_classes and layer and found.layer_classes != (layer,):
        allowed = (
            f"the blocks of this model are of the class {layer}, which the file does not shard"
        )
        raise UsageError("transformer_layer_cls_to_wrap", ",".join(found.layer_classes), allowed)
    stated, notes = _with_liger(found, own("framework"), stated)
    knobs, why = _on_host(found, knobs, {**installed_versions(), **(stated or {})})
    notes += why
    case = read_single_case(
        model=model,
        cluster=cluster,
        global_batch_size=batch,
        sequence_length=_needed("sequence_length", own("sequence_length")),
        settings=knobs,
        optimizer="adamw" if own("optimizer") is None else own("optimizer"),
        precision=own("precision"),
        reduce_dtype=own("reduce_dtype"),
        loss=own("loss"),
        tensor_parallel=own("tensor_parallel"),
        adapter=own("adapter"),
        frozen=own("frozen"),
        packing=own("packing"),
        task=None if fields and name else own("task"),
        framework=_needed("framework", own("framework")),
        framework_versions=stated,
        headroom=beside.get("headroom"),
        memory_limit_gib=beside.get("memory_limit_gib"),
    )
    passed_over = trainer.no_fsdp2(case.question) if found.format_name == trainer.NAME else ""
    if passed_over and knobs.get("sharding") != Sharding.DDP:
        raise UsageError("fsdp_config.version", 2, f"{passed_over}, which is not predicted here")
    notes += case.notes
    if found.fsdp_checkpointing and (differs := flag_differs(case.question)):
        notes.append(f"{differs}; that is counted")
    if found.fsdp_checkpointing and (lost := loses_random_state(case.question)):
        notes.append(f"let the script checkpoint, and not FSDP's option: {lost}")
    script = replace(case.script, fsdp_checkpointing=found.fsdp_checkpointing)
    return replace(case, script=script, notes=tuple(notes))


def _with_liger(
    found: Found, name: Any, stated: Mapping[str, str] | None
) -> tuple[Mapping[str, str] | None, list[str]]:
    """Versions and notes, with liger-kernel's newest where the Trainer needs it and has none."""
    known = {**installed_versions(), **(stated or {})}
    fused = found.knobs.get("fused_loss") and name == FrameworkName.TRAINER
    if not fused or "liger-kernel" in known:
        return stated, [*found.notes]
    newest = version_table().packages["liger-kernel"].newest
    note = f"liger-kernel is neither installed nor stated: it is taken to be {newest}"
    return {**(stated or {}), "liger-kernel": newest}, [*found.notes, note]


def _on_host(
    found: Found, knobs: dict[str, Any], known: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Takes what accelerate's own option keeps on the host as kept on the device where the release
    passes over it, and says so."""
    knob, release = "activation_checkpointing", known.get("accelerate")
    if not found.fsdp_checkpointing or knobs.get(knob) != Checkpointing.OFFLOAD:
        return knobs, []
    first = f"acts from accelerate {ON_HOST.strip('>=')} on; older ones keep"
    said = f"fsdp_activation_checkpointing_offload {first} inputs of layers on the device"
    if release is None:
        return knobs, [said]
    if meets(release, ON_HOST):
        return knobs, []
    taken = f"{knob} is taken as full, for accelerate is {release}"
    return {**knobs, knob: str(Checkpointing.FULL)}, [f"{said}: {taken}"]


def _own(found: Found, beside: Mapping[str, Any], name: str) -> Any:
    """The value of a field; ``None`` where nobody gives one."""
    values, given = found.may.get(name, ()), beside.get(name)
    if given is None:
        return values[0] if values else None
    if values and given not in values:
        said = " or ".join(str(value) for value in values)
        raise UsageError(name, given, f"the file says {said}")
    return given


def _needed(name: str, value: Any) -> Any:
    if value is None:
        raise UsageError(name, None, NO_OPTION)
    return value


def _check_cluster(found: Found, cluster: Cluster) -> None:
    """Refuse a file for another number of nodes or ranks."""
    is_cpu = cluster.gpu.device is Device.CPU  # its groups stand for nodes, on one machine
    if found.ranks is not None and found.ranks != cluster.world_size:
        allowed = f"{cluster.name} has {cluster.world_size} ranks, and the file is not for them"
        raise UsageError(found.ranks_field, found.ranks, allowed)
    if found.nodes is not None and found.nodes != cluster.nodes and not is_cpu:
        allowed = f"{cluster.name} has {cluster.nodes}, and the file is not for it"
        raise UsageError("num_machines", found.nodes, allowed)
    if found.groups is not None and found.groups != (cluster.nodes, cluster.gpus_per_node):
        given = f"{found.groups[0]} groups of {found.groups[1]} ranks"
        allowed = f"groups must be the nodes: {cluster.nodes} of {cluster.gpus_per_node}"
        raise UsageError("parallelism_config", given, allowed)


def _knobs(found: Found, given: Mapping[str, Any]) -> dict[str, Any]:
    """All knobs that are decided, with values as JSON has them."""
    for name, value in given.items():
        if name in found.knobs and knob_value(name, value) != knob_value(name, found.knobs[name]):
            said = f"{name}={str(found.knobs[name]).lower()}"
            allowed = f"the file says {said}"
            if name in found.unsaid:
                allowed = f"the file says nothing of it, which means {said}: say it there"
            raise UsageError("settings", f"{name}={value}", allowed)
    written = {**given, **found.knobs}
    if "micro_batch_size" not in written:
        allowed = f"{NO_OPTION}: --settings micro_batch_size=N"
        raise UsageError("micro_batch_size", None, allowed)
    knobs = {name: knob_value(name, written[name]) for name in KNOBS if name in written}
    return {name: one if isinstance(one, bool | int) else str(one) for name, one in knobs.items()}
