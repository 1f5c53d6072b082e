"""A request as it is written, read strictly into a question and its limits.

The command line, Python, REST, the form and files of cases all come through here: one model says
what may be written (of its parts :mod:`tuner.client.parts`), and all that is wrong is told at once.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as replaced
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    StrictBool,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    model_validator,
)

from tuner.catalog import models
from tuner.client.parts import (
    TORCH,
    BudgetGiven,
    ClusterGiven,
    FrameworkField,
    FrameworkGiven,
    Kept,
    KnobsGiven,
    MemoryLimit,
    NamedPlace,
    Part,
    Short,
    WorkloadGiven,
    cluster_of,
    not_local,
    read_place,
)
from tuner.client.values import (
    ClusterLike,
    errors_of,
)
from tuner.core.adapter import Adapter
from tuner.core.bounds import Number
from tuner.core.cluster import (
    Cluster,
    Gpu,
    Link,
    Price,
    on_machine,
    parse_cluster,
)
from tuner.core.configuration import KNOBS, no_knob
from tuner.core.framework import (
    NOT_PROBED,
    FrameworkName,
    framework,
    packages_beside,
)
from tuner.core.launcher import LauncherName
from tuner.core.measurement import Fidelity
from tuner.core.packing import Packing
from tuner.core.script import Script
from tuner.core.study import (
    HEADROOM,
    MOST_DRY_RUNS,
    MOST_LABELS,
    MOST_LAYOUTS,
    MOST_PROBES,
    MOST_TRACED,
    Headroom,
    Limits,
    Pool,
    Question,
    SamplerName,
    Seconds,
    Tolerance,
    read_labels,
)
from tuner.core.workload import ReduceDtype
from tuner.errors import UnknownNameError, UsageError, all_of
from tuner.machine import Machine
from tuner.model import published_model
from tuner.model.checks import check_json
from tuner.model.shape import unnamed_model
from tuner.space import count_settings, divisors, enumerate_space
from tuner.space.rules import check_possible

# The word for the strongest fidelity that there is for a question.
AUTO = "auto"
# Legal settings of a question that may be asked over a network. Each takes up to a millisecond of
# the service's time; batches with the usual divisors leave a few hundred, those with the most that
# were thought of 2,300.
MOST_SETTINGS = 2500
# Micro-batch sizes, the smallest ones, that are proposed where there are too many settings.
FEW = 8

T = TypeVar("T", bound=BaseModel)


def _read_fidelity(value: Any) -> Fidelity | None:
    if value == AUTO:
        return None
    if value not in list(Fidelity):
        raise UsageError("fidelity", value, f"must be one of {', '.join((AUTO, *Fidelity))}")
    return Fidelity(value)


# Frameworks, and what is taken where none is named, that choose no format of reductions themselves.
REDUCES_AS_TOLD = (None, FrameworkName.TORCH, *NOT_PROBED)


# What schedulers send so that they are told: another's address, which nothing here goes to.
CALLBACKS = ("callback", "callback_url", "notify_url", "webhook", "webhook_url")


class Common(Part):
    """Parts that a question and a case of one configuration have in common."""

    workload: Annotated[WorkloadGiven, WrapValidator(Kept())]
    framework: Annotated[FrameworkField, WrapValidator(Kept())] = Field(
        default_factory=lambda: TORCH, json_schema_extra={"default": str(FrameworkName.TORCH)}
    )
    headroom: Headroom = HEADROOM
    """Share of a GPU's memory to leave free."""
    memory_limit_gib: MemoryLimit | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_whole(cls, value: Any) -> Any:
        """Refuses callbacks, and reductions as a framework does them that chooses none."""
        for callback in CALLBACKS:
            if isinstance(value, Mapping) and value.get(callback) is not None:
                allowed = (
                    "no address is called: whoever may ask could have this service open connections"
                    " in its own network; wait with GET /tune/{id}?wait=30, or follow"
                    " /tune/{id}/events"
                )
                raise UsageError(callback, value[callback], allowed)
        work = value.get("workload") if isinstance(value, Mapping) else None
        if not isinstance(work, Mapping):
            return value
        stack = value.get("framework")
        name = stack.get("name") if isinstance(stack, Mapping) else stack
        reduced = work.get("reduce_dtype")
        if reduced == ReduceDtype.FRAMEWORK and name in REDUCES_AS_TOLD:
            allowed = "must be bf16 or fp32: only accelerate and the Trainer choose by the sharding"
            raise UsageError("workload.reduce_dtype", reduced, allowed)
        return value

    @property
    def limit_bytes(self) -> int | None:
        return None if self.memory_limit_gib is None else round(self.memory_limit_gib * 2**30)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was written and is not used, or was left out and matters."""
        both = {"headroom", "memory_limit_gib"} <= self.model_fields_set
        why = "the headroom is not applied: the memory limit is taken as it is" if both else ""
        return tuple(filter(None, (why, self.workload.note)))


class BaseRequest(Common):
    """A question, but where it is asked of."""

    knobs: KnobsGiven = Field(default=KnobsGiven(), examples=[{"micro_batch_size": [1, 2]}])

    def question_on(self, cluster: Cluster, installed: Mapping[str, str]) -> Question:
        """The question on a cluster, with ``installed`` versions where none are stated.

        Raises:
            UsageError: a version that there is not, or no legal settings, or too many of them.
        """
        allowed = {name: values for name in KNOBS if (values := getattr(self.knobs, name))}
        try:
            workload = self.workload.trained_by(self.framework.name, cluster.gpu.device)
            stack = framework(
                self.framework.name,
                self.framework.versions,
                installed,
                beside=packages_beside(workload, cluster.gpu.device),
            )
            question = Question(
                workload=workload,
                cluster=cluster,
                framework=stack,
                knobs=allowed,
                script=getattr(self, "script", None),
            )
            self._check_space(question)
        except UsageError as error:
            raise error.at(self._path(error.field)) from error
        return question

    def _path(self, field: str) -> str:
        """The path in a request of what a rule names."""
        first = field.partition(" x ")[0]  # of a product of sizes
        if first in KNOBS:
            return f"knobs.{first}"
        versions = "framework.versions" if self.framework.versions else "framework_version"
        return {
            "knob": "knobs",
            "model": "workload.model",
            "global_batch_size": "workload.global_batch_size",
            "framework_version": versions,
        }.get(field, field)

    def _check_space(self, question: Question) -> None:
        """Refuses a question without legal settings, or of too many; with what would help."""
        if count_settings(question, MOST_SETTINGS) <= MOST_SETTINGS:
            enumerate_space(question)
            return
        batch = question.workload.global_batch_size
        sizes = question.knobs.get("micro_batch_size", divisors(batch))[:FEW]
        fewer = replaced(question, knobs={**question.knobs, "micro_batch_size": sizes})
        less = f"allow some values only of {', '.join(list(KNOBS)[:-1])} or {list(KNOBS)[-1]}"
        if count_settings(fewer, MOST_SETTINGS) <= MOST_SETTINGS:
            less = f'allow some values only, such as {{"micro_batch_size": {list(sizes)}}}'
        how = f"must leave at most {MOST_SETTINGS} legal settings, and leaves more: {less}"
        raise UsageError("knobs", question.as_dict()["knobs"], how)


class TuneRequest(BaseRequest):
    """A question: which settings are the fastest that fit?"""

    cluster: NamedPlace = Field(examples=["8xh100-80gb"])
    """8xa100-80gb, 4x8xh100-80gb (nodes x GPUs x kind), cpu:2, or its fields."""
    fidelity: Annotated[
        Fidelity | None,
        PlainValidator(
            _read_fidelity,
            json_schema_input_type=Literal[
                "auto", "measured", "emulated", "rehearsed", "predicted"
            ],
        ),
    ] = Field(default=None, json_schema_extra={"default": AUTO})
    """How probes are run; auto is the strongest that the living workers have."""
    budget: BudgetGiven = BudgetGiven()
    tolerance: Tolerance = 0.01
    """Gain that is not worth another probe."""
    pool: Pool = ""
    """Workers that may be at it."""
    labels: Annotated[
        tuple[tuple[str, str], ...],
        PlainValidator(  # as pairs, which can be hashed
            lambda value: tuple(read_labels("labels", value).items()),
            json_schema_input_type=dict[str, str],
        ),
    ] = Field(
        default=(),
        json_schema_extra={"maxProperties": MOST_LABELS, "default": {}},
        examples=[{"job": "1234", "user": "ada"}],
    )
    """Short texts by name, such as job and user: lists of studies are filtered by them. They change
    no answer. A study that was asked before keeps its others."""
    sampler: SamplerName = SamplerName.COST_MODEL
    """Proposes the next configuration: ours, or one of Optuna's."""
    replace: StrictBool = False
    """Whether a study of this question, open with other limits, is given these: whoever waits for
    it gets no answer within their own limits then. Otherwise this is 409."""

    def cluster_on(self, there: Machine | None) -> Cluster:
        """The cluster; CPU ranks are of a machine, by default this one, unless it names another."""
        if isinstance(self.cluster, str):
            return parse_cluster(self.cluster, there)
        return on_machine(self.cluster, there)

    def question(
        self,
        installed: Mapping[str, str],
        cluster: Cluster | None = None,
    ) -> Question:
        """The question, with ``installed`` versions where none are stated."""
        if cluster is None:
            here = self.cluster
            cluster = parse_cluster(here) if isinstance(here, str) else here
        return self.question_on(cluster, installed)

    def limits_at(self, fidelity: Fidelity) -> Limits:
        """The limits, with a fidelity's defaults."""
        budget = self.budget
        few = fidelity is Fidelity.PREDICTED and budget.max_probes is None
        most = MOST_TRACED if self.workload.is_traced else MOST_LAYOUTS
        return Limits(
            fidelity=fidelity,
            headroom=self.headroom,
            memory_limit_bytes=self.limit_bytes,
            tolerance=self.tolerance,
            max_probes=budget.max_probes or (most if few else MOST_PROBES[fidelity]),
            max_dry_runs=MOST_DRY_RUNS if few and most == MOST_LAYOUTS else None,
            wall_s=budget.wall_s,
            device_s=budget.gpu_s,
            pool=self.pool,
            sampler=self.sampler,
        )


MOST_CLUSTERS = 8
Amount = Annotated[float, Number(0, 1e18, "must be a number above 0", above=True)]


def _read_places(value: Any, info: ValidationInfo) -> tuple[str | Cluster, ...]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    places = value if is_list else [value]
    if not 0 < len(places) <= MOST_CLUSTERS:
        raise UsageError("cluster", value, f"must be one cluster, or a list of {MOST_CLUSTERS}")
    return tuple(read_place(not_local(one, info), info) for one in places)


class SizeRequest(BaseRequest):
    """How many GPUs does a job need, and how large may it be on those that there are?"""

    cluster: Annotated[
        tuple[str | Cluster, ...],
        PlainValidator(
            _read_places,
            json_schema_input_type=Short | ClusterGiven | list[Short | ClusterGiven],
        ),
    ] = Field(examples=[["64x8xh100-80gb", "64x8xa100-80gb"]])
    """The GPUs that there are, of which the fewest are looked for: some of a node, or whole nodes.
    One cluster, or a list of up to 8, each answered by a row."""
    family: Short | None = None
    """Name of a family of the catalogue, such as llama-3.1: its largest model that fits is looked
    for. Where no workload.model is given, all is asked of that one."""
    tokens_per_s: Amount | None = None
    """Tokens per second that all GPUs together must reach."""
    tokens: Amount | None = None
    """Tokens to be trained on: how long that takes is told."""
    within_s: Seconds | None = None
    """Seconds in which the tokens must be trained on."""
    price_per_gpu_hour: Price | None = None
    """In any currency; of clusters that have no price of their own."""

    _takes_largest: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _of_a_family(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        work = value.get("workload") if isinstance(value, Mapping) else None
        unnamed = isinstance(work, Mapping) and work.get("model") is None
        family = value.get("family") if isinstance(value, Mapping) else None
        if isinstance(work, Mapping) and unnamed and isinstance(family, str):
            # a stand-in that takes the longest sequences of all
            model = max(family_of(family), key=lambda one: published_model(one).max_sequence_length)
            value = {**value, "workload": {**work, "model": model}}
        made = handler(value)
        made._takes_largest = unnamed
        if made.family is not None:
            family_of(made.family)
        if made.within_s is not None and made.tokens is None:
            raise UsageError("within_s", made.within_s, "needs tokens that are to be trained on")
        if made.within_s is not None and made.tokens_per_s is not None:
            allowed = "is not applied with within_s, from which it follows: give one"
            raise UsageError("tokens_per_s", made.tokens_per_s, allowed)
        return made

    @property
    def takes_largest(self) -> bool:
        """True where all is asked of the family's largest model that fits."""
        return self._takes_largest

    def _check_space(self, question: Question) -> None:
        """Refuses values that no configuration has. The whole cluster need not divide the batch:
        its parts are looked at."""
        for knob, values in question.knobs.items():
            for value in values:
                check_possible(question, knob, value)

    def check_part(self, part: Question) -> None:
        """Refuses a part of a cluster on which there are so many legal settings that it takes
        long."""
        super()._check_space(part)


def family_of(name: str) -> tuple[str, ...]:
    """Names of the catalogue's models of a family: ``qwen3`` is of qwen3-8b and others."""
    wanted = name.strip().lower()
    known = models.names()
    found = tuple(one for one in known if one == wanted or one.startswith(f"{wanted}-"))
    if not found:
        families = sorted({one.rpartition("-")[0] or one for one in known})
        also = "(or a whole name of the catalogue)"
        raise UnknownNameError("family", name[:100], families, also)
    return found


def _read_script(value: Any) -> Script:
    if not isinstance(value, Script):
        raise UsageError("script", value, "must be what tuner.read_script returns")
    return value


class RequestHere(TuneRequest):
    """A request that this machine answers, or sends on: files and a script may be named."""

    script: Annotated[Script, PlainValidator(_read_script)] | None = None
    """The user's own, which is run in the place of the probe program's step."""
    probe_deadline_s: Seconds | None = None
    """Seconds that one probe may take; by default the worker's own limit."""
    launcher: LauncherName | None = None
    """What starts ranks; by default Slurm's in an allocation of several nodes."""
    ray: str = ""
    """Address of a Ray cluster; by default that of RAY_ADDRESS, or one is started."""

    @model_validator(mode="before")
    @classmethod
    def _unnamed(cls, value: Any) -> Any:
        workload = value["workload"]
        if value.get("script") is None or workload.get("model") is not None:
            return value
        return {**value, "workload": {**workload, "model": unnamed_model()}}

    def _check_space(self, question: Question) -> None:
        """Here first the machine is looked at, and a large space takes nobody else's time."""

    def _path(self, field: str) -> str:
        return field


# Arguments of Python, and options, that are parts of an object of the request.
WITHIN: Mapping[str, tuple[str, str]] = {
    **{name: ("workload", name) for name in WorkloadGiven.model_fields},
    **{name: ("budget", name) for name in BudgetGiven.model_fields},
    "framework": ("framework", "name"),
    "framework_versions": ("framework", "versions"),
}


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, in the form of a request; ``None`` is left out."""
    stack = {"name": given.get("framework") or str(FrameworkName.TORCH)}
    values: dict[str, Any] = {"workload": {}, "framework": stack}
    for name, value in given.items():
        if value is not None and name in WITHIN:
            table, inner = WITHIN[name]
            values.setdefault(table, {})[inner] = value
        elif value is not None:
            values[name] = value
    return values


def as_field(error: UsageError) -> UsageError:
    """An error that is named as an argument is, named as the request's field."""
    table, _, _ = error.field.partition(".")
    return error.at(".".join(WITHIN[table])) if table in WITHIN else error


def as_argument(error: UsageError) -> UsageError:
    """The same error, named as arguments and options are."""
    table, _, name = error.field.partition(".")
    if table == "knobs" and name and name not in KNOBS:
        return UsageError("knob", name, no_knob(name))
    if table == "labels":
        return error.at("label")
    if table == "framework":
        return error.at("framework_version" if name == "versions" else "framework")
    if name.startswith(("adapter.", "packing.")):
        return error.at(name)
    return error if table == "cluster" else error.at(error.field.rpartition(".")[2])


# -- reading, and what is wrong -------------------------------------------------------------------


def read_request(values: Any, beside: Iterable[UsageError] = ()) -> TuneRequest:
    """The request in a JSON value, as ``POST /tune`` takes it.

    Errors ``beside``, of texts that could not be made values, are told in the place of what is said
    of the fields.

    Raises:
        UsageError: a field is wrong, missing or not covered; with all others that are.
    """
    check_plain(values)
    return read(TuneRequest, values, beside=beside)


def read_here(given: Mapping[str, Any], beside: Iterable[UsageError] = ()) -> RequestHere:
    return read_arguments(RequestHere, given, beside)


def read_arguments(kind: type[T], given: Mapping[str, Any], beside: Iterable[UsageError] = ()) -> T:
    """The request of arguments or options, with errors that are named as these are.

    Raises:
        UsageError: one is wrong or missing; with all others that are.
    """
    return read(kind, nested(given), here=True, beside=beside, named=as_argument)


def read_cluster(value: ClusterLike) -> Cluster:
    """The cluster of a spelling, a file's path, or its fields.

    Raises:
        UsageError: it is none; with its path.
    """
    return read(_Placed, {"cluster": value}, here=True).cluster


class _Placed(Part):
    cluster: Annotated[Cluster, PlainValidator(cluster_of)]


def read(
    kind: type[T],
    values: Any,
    *,
    here: bool = False,
    beside: Iterable[UsageError] = (),
    named: Callable[[UsageError], UsageError] = lambda error: error,
) -> T:
    """The same for any model of this module; ``named`` puts other names to the fields."""
    errors, made = [*beside], None
    try:
        made = kind.model_validate(values, context=here)
    except ValidationError as error:
        errors += map(named, errors_of(error.errors(include_url=False), {**_MODELS, "": kind}))
    if errors:
        raise all_of(errors)
    assert made is not None
    return made


def check_plain(values: Any) -> None:
    """Refuses what is no shallow JSON of finite numbers and whole characters."""
    if not isinstance(values, Mapping):
        raise UsageError("body", values, "must be an object of fields")
    check_json(values, depth=-2)
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError("body", "half a character", "must be of Unicode characters") from error


# Objects by their paths, for those who name a field that there is not.
_MODELS: Mapping[str, type[Any]] = {
    "workload": WorkloadGiven,
    "workload.adapter": Adapter,
    "workload.packing": Packing,
    "cluster": ClusterGiven,
    "cluster.gpu": Gpu,
    "cluster.intra_node": Link,
    "cluster.inter_node": Link,
    "framework": FrameworkGiven,
    "budget": BudgetGiven,
    "knobs": KnobsGiven,
}
