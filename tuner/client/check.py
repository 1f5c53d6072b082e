"""Tells whether a case fits: as it was measured or emulated, where it was, or else as predicted."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.client.cases import Case, Finding, answer_of
from tuner.client.predict import Prediction, read_single_case
from tuner.client.request import read_cluster
from tuner.client.values import ClusterLike, ModelLike, read_model
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import KNOBS, knob_value
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance, Quantity
from tuner.core.study import Limits, Question, Study
from tuner.errors import UsageError
from tuner.launchfiles.fields import Found
from tuner.launchfiles.fsdp import LAYER_CLASSES
from tuner.model import read_model_config
from tuner.results import Evidence
from tuner.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Results of a study's probes of this very configuration."""

    study_id: str
    """Whose probes."""
    figures: Evaluation
    """What they found, within the limits of the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A case, with what is known of it."""

    format_name: str
    """Whose file it is from."""
    case: Case
    """The whole case."""
    prediction: Prediction
    """What is predicted."""
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

    @property
    def allocated_gib(self) -> Quantity:
        """Peak of allocated tensors."""
        known = self.seen and self.seen.figures.allocated_gib
        return known if known and known.value is not None else self.prediction.allocated_gib

    @property
    def step_time_s(self) -> Quantity:
        """Seconds of one optimizer step."""
        known = self.seen and self.seen.figures.step_time_s
        return known if known and known.value is not None else self.prediction.step_time_s

    @property
    def tokens_per_s_per_gpu(self) -> Quantity:
        """Tokens of the global batch per second of its step and GPU."""
        known = self.seen and self.seen.figures.tokens_per_s_per_gpu
        return known if known and known.value is not None else self.prediction.tokens_per_s_per_gpu

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
        """Notes for a reader."""
        return (*self.prediction.notes, *_close(self))

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
    """Checks a case by probes and predictions.

    Args:
        store: where probes are looked for.
        format_name: whose file it is from.
        case: the case.
        finding: what dry runs say of it.

    Raises:
        StoreError: the database fails.
    """
    prediction = Prediction.from_answer(answer_of(case, finding))
    telling = [one for one in _seen(store, case) if one.figures.fits is not None]
    measured_first = sorted(telling, key=lambda one: one.figures.fidelity is not Fidelity.MEASURED)
    seen = next(iter(measured_first), None)
    return Checked(format_name=format_name, case=case, prediction=prediction, seen=seen)


def _seen(store: Store, case: Case) -> Iterator[Seen]:
    """Finds what probes of the same question found, whatever knobs their studies allowed."""
    limits = Limits(headroom=case.headroom, memory_limit_bytes=case.limit_bytes)
    own = store.find(case.question)
    for study in filter(None, (own, *store.similar(case.question))):
        if _asks_the_same(study.question, case.question):
            yield from _of_study(replace(study, limits=limits), case)


def _of_study(study: Study, case: Case) -> Iterator[Seen]:
    for figures in Evidence(study).seen(case.settings):
        yield Seen(study_id=study.id, figures=figures)


def _asks_the_same(one: Question, other: Question) -> bool:
    return replace(one, knobs={}).identity == replace(other, knobs={}).identity


def _close(checked: Checked) -> Iterator[str]:
    """Says that a prediction's upper end lies above the limit."""
    found = checked.prediction
    beside = found.plain["memory"]
    if checked.seen is not None or not checked.fits or found.allocated_gib.high is None:
        return
    outside = beside["context_gib"] + beside["communicator_gib"]
    most = found.allocated_gib.high + outside
    if found.limit_gib is not None and most > found.limit_gib:
        yield (
            f"it may need up to {most:.2f} GiB, which is more than the limit of"
            f" {found.limit_gib:.2f} GiB: measure it before a long run"
        )


NO_OPTION = "the file does not say it, and it is not said here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Values given beside a file; ``None`` where nothing is."""

    cluster: ClusterLike | None = None
    """Where it is to run."""
    model: ModelLike | None = None
    """What is trained."""
    sequence_length: int | None = None
    """Tokens of one sequence."""
    global_batch_size: int | None = None
    """Sequences of one optimizer step, over all GPUs."""
    optimizer: str | None = None
    """The optimizer."""
    precision: str | None = None
    """Of weights and computing."""
    reduce_dtype: str | None = None
    """In which gradients are summed."""
    framework: str | None = None
    """The stack that reads the file."""
    framework_versions: Mapping[str, str] = field(default_factory=dict)
    """Its versions, by package."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Knobs that the file does not decide."""
    headroom: float | None = None
    """Share of each GPU's usable memory to leave free."""
    memory_limit_gib: float | None = None
    """GiB that a step may use of one GPU, taken as it is."""


def case_of(found: Found, beside: Beside) -> Case:
    """The whole case.

    Raises:
        UsageError: something is missing, said twice in two ways, or not legal.
        NotCoveredError: nothing is known of the model, the GPU, or the stack.
    """
    cluster = read_cluster(_either(found, "cluster", beside.cluster))
    _check_cluster(found, cluster)
    knobs = _knobs(found, beside.settings)
    ranks = cluster.world_size // (knobs.get("tp_size", 1) * knobs.get("pp_size", 1))
    batch = _batch(found, beside, knobs, ranks)
    _check_decided(found, knobs, batch, ranks)
    model = read_model(_model(found, beside))
    _check_layers(found, model.model_type)
    case = read_single_case(
        model=model,
        cluster=cluster,
        global_batch_size=batch,
        sequence_length=_chosen(found, "sequence_length", beside.sequence_length),
        settings=knobs,
        optimizer=_chosen(found, "optimizer", beside.optimizer, "adamw"),
        precision=_chosen(found, "precision", beside.precision, "bf16"),
        reduce_dtype=_open(found, "reduce_dtype", beside.reduce_dtype),
        framework=_chosen(found, "framework", beside.framework),
        framework_versions=_either(found, "framework_versions", beside.framework_versions, {}),
        headroom=beside.headroom,
        memory_limit_gib=beside.memory_limit_gib,
    )
    return replace(case, notes=(*found.notes, *case.notes))


def _open(found: Found, name: str, given: Any) -> Any:
    """Finds the value of a field; ``None`` where nobody gives one.

    Raises:
        UsageError: the file says something else.
    """
    values = found.may.get(name, ())
    if given is None:
        return values[0] if values else None
    if values and given not in values:
        said = " or ".join(str(value) for value in values)
        raise UsageError(name, given, f"the file says {said}")
    return given


def _chosen(found: Found, name: str, given: Any, usual: Any = None) -> Any:
    """The same, where it is needed."""
    value = _open(found, name, given)
    value = usual if value is None else value
    if value is None:
        raise UsageError(name, None, NO_OPTION)
    return value


def _either(found: Found, name: str, given: Any, usual: Any = None) -> Any:
    """Prefers the value beside the file to the one in it: where it was to run may have changed
    since.
    """
    return _chosen(found, name, None, usual) if given in (None, {}) else given


def _model(found: Found, beside: Beside) -> Any:
    """The model, whose name may be said in the file beside its fields."""
    said = found.may.get("model")
    if said and beside.model is not None:
        raise UsageError("model", _shown(beside.model), "the file says which: leave it out")
    name = found.may.get("model_name", ("",))[0]
    if said and name:
        return read_model_config(said[0], name=name)
    return _chosen(found, "model", beside.model)


def _shown(model: ModelLike) -> object:
    return model if isinstance(model, str) else "a model"


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
    """All knobs that are decided."""
    for name, value in given.items():
        if name in found.knobs and knob_value(name, value) != knob_value(name, found.knobs[name]):
            said = f"{name}={str(found.knobs[name]).lower()}"
            allowed = f"the file says {said}"
            if name in found.unsaid:
                allowed = f"the file says nothing of it, which means {said}: say it there"
            raise UsageError("settings", f"{name}={value}", allowed)
    knobs = {**given, **found.knobs}
    if "micro_batch_size" not in knobs:
        allowed = f"{NO_OPTION}: --settings micro_batch_size=N"
        raise UsageError("micro_batch_size", None, allowed)
    return {name: _plain(name, knobs[name]) for name in KNOBS if name in knobs}


def _plain(name: str, value: object) -> Any:
    """A knob's value as JSON has it."""
    found = knob_value(name, value)
    return found if isinstance(found, bool | int) else str(found)


def _batch(found: Found, beside: Beside, knobs: Mapping[str, Any], ranks: int) -> int:
    """The global batch: as it is said, and as the settings make it."""
    said: int | None = _open(found, "global_batch_size", beside.global_batch_size)
    steps = knobs.get("gradient_accumulation_steps")
    if steps is None:
        if said is None:
            raise UsageError("global_batch_size", None, NO_OPTION)
        return said
    made: int = knobs["micro_batch_size"] * steps * ranks
    if said is not None and said != made:
        parts = f"{knobs['micro_batch_size']} x {steps} x {ranks} data-parallel ranks"
        raise UsageError("global_batch_size", said, f"the file makes {made} on it: {parts}")
    return made


def _check_decided(found: Found, knobs: Mapping[str, Any], batch: int, ranks: int) -> None:
    """Refuse to guess what decides how much memory is needed."""
    is_accumulating = batch > knobs["micro_batch_size"] * ranks and ranks > 1
    for name, whose in _undecided(found.needs, knobs):
        if is_accumulating:
            allowed = f"{whose} decides it, and it is not said: --settings {name}=true or false"
            raise UsageError(name, None, allowed)


def _undecided(needs: Mapping[str, str], knobs: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, whose) for name, whose in needs.items() if name not in knobs)


def _check_layers(found: Found, model_type: str) -> None:
    """Refuse files that shard other layers than the model's blocks."""
    own = LAYER_CLASSES.get(model_type, "")
    if found.layer_classes and own and found.layer_classes != (own,):
        allowed = f"the blocks of this model are of the class {own}, which the file does not shard"
        raise UsageError("transformer_layer_cls_to_wrap", ",".join(found.layer_classes), allowed)
