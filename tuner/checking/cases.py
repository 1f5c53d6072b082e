"""A case of what a file says, and of what is said beside it.

Neither overrides the other, but for where it is to run and in which versions.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.asking.predicting import case_values, read_single_case
from tuner.asking.values import ClusterLike, ModelLike, read_cluster, read_model
from tuner.cases import Case
from tuner.checking.found import Found
from tuner.cluster import Cluster, Device
from tuner.errors import UsageError
from tuner.export.fsdp import LAYER_CLASSES
from tuner.model import read_model_config
from tuner.settings import KNOBS, knob_value

NO_OPTION = "the file does not say it, and it is not said here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is said beside a file; ``None`` where nothing is."""

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
    values = case_values(
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
    case = read_single_case(values)
    return replace(case, notes=(*found.notes, *case.notes))


def _open(found: Found, name: str, given: Any) -> Any:
    """What holds of a field; ``None`` where nobody says.

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
    """What is said beside the file, or else in it: where it was to run may have changed since."""
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
