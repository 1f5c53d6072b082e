"""Tells whether a case fits: as it was measured or emulated, where it was, or else as predicted."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, create_model

from tuner.catalog import models
from tuner.client.cases import (
    Case,
    DryRuns,
    Finding,
    NotCoveredError,
    Policy,
    Prediction,
    answer_of,
)
from tuner.client.cases.dry_runs import Watch
from tuner.client.cases.reading import read_settings, said_knobs
from tuner.client.files import case_of, place_of
from tuner.client.parts import (
    ClusterGiven,
    FrameworkField,
    MemoryLimit,
    Part,
    WorkloadGiven,
    cluster_of,
    not_local,
)
from tuner.client.predict import SettingsLike
from tuner.client.request import read
from tuner.client.values import (
    BESIDE_A_FILE,
    ClusterLike,
    Say,
    naming_arguments,
    plain_arguments,
    silent,
)
from tuner.core.bounds import choice
from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance, Quantity
from tuner.core.study import Headroom, Limits
from tuner.errors import UnknownNameError, UsageError, all_of
from tuner.launchfiles import trainer
from tuner.launchfiles.files import LARGEST_BYTES, READERS, Opened, open_file, read_text
from tuner.results.points import Evidence
from tuner.store import Store, open_store

if TYPE_CHECKING:
    WorkloadBeside = Part
else:
    WorkloadBeside = create_model(
        "WorkloadBeside",
        __base__=Part,
        __doc__="What a file does not say of what is trained.",
        **{
            name: (
                info.rebuild_annotation() | None,
                Field(None if info.is_required() else info.default, description=info.description),
            )
            for name, info in WorkloadGiven.model_fields.items()
        },
    )


FileFormat = Annotated[
    str | None,
    Field(description=f"Whose it is: {', '.join(READERS)}. By default told by its content."),
]


class FileSent(Part):
    """A configuration file as its text. No other that it names is read."""

    text: Annotated[
        str,
        BeforeValidator(
            lambda given: json.dumps(given) if isinstance(given, dict) else given,
            json_schema_input_type=str | dict[str, Any],
        ),
    ] = Field(min_length=1, max_length=LARGEST_BYTES)
    """In YAML, JSON or as its name says; or, of JSON, the object itself."""
    name: str = Field(default="", max_length=200, examples=["axolotl.yaml"])
    """Its name, whose ending says how it is written: .toml, .py (torchtitan's) or .sh (a command
    with flags). YAML or JSON by default."""
    format: FileFormat = None

    def opened(self) -> Opened:
        """What is in it.

        Raises:
            UsageError: it cannot be read, is none of the formats, or asks for what is not covered.
        """
        if self.format is not None and self.format not in READERS:
            raise UnknownNameError("from.format", self.format, READERS)
        try:
            return read_text(self.text, self.name or "file", self.format, reads_others=False)
        except UsageError as error:
            raise all_of(
                one.at(f"from.text{one.field.removeprefix('file')}")
                if one.field.partition(".")[0] == "file"
                else one
                for one in error.errors
            ) from error


class CheckRequest(Part):
    """A configuration file, and what it does not say."""

    sent: FileSent = Field(alias="from")
    workload: WorkloadBeside = WorkloadBeside()
    cluster: (
        Annotated[
            Cluster,
            PlainValidator(cluster_of, json_schema_input_type=str | ClusterGiven),
            BeforeValidator(not_local),
        ]
        | None
    ) = None
    """Not needed of a file that tuner export wrote."""
    framework: FrameworkField | None = None
    settings: Annotated[
        tuple[Settings, frozenset[str]],
        PlainValidator(
            lambda value, info: read_settings(value),
            json_schema_input_type=str | dict[str, Any],
        ),
    ] = Field(default=(Settings(), frozenset()), json_schema_extra={"default": {}})
    """Knobs that the file does not say."""
    headroom: Headroom | None = None
    memory_limit_gib: MemoryLimit | None = None


def read_check(values: Any) -> tuple[str, Case | NotCoveredError]:
    """The format and the case of a request that may come from another machine: no file is read.

    Raises:
        UsageError: something is wrong, missing, or said otherwise in the file.
    """
    given = read(CheckRequest, values)
    opened, beside = sent_of(given)
    written, names = given.settings
    beside |= {
        "settings": {name: getattr(written, name) for name in names},
        "headroom": given.headroom,
        "memory_limit_gib": given.memory_limit_gib,
    }
    try:
        return opened.found.format_name, case_of(opened.found, beside)
    except NotCoveredError as error:
        return opened.found.format_name, error


def sent_of(given: Any) -> tuple[Opened, dict[str, Any]]:
    """The file that a request has as its text, and what the request says beside it.

    Its model is out of the catalogue, unless another is said: its name alone could be that of a
    file here.

    Raises:
        UsageError: the file cannot be read, or the catalogue has no model like its own.
    """
    beside = {name: getattr(given.workload, name) for name in given.workload.model_fields_set}
    beside["cluster"] = given.cluster
    if given.framework is not None:
        versions = dict(given.framework.versions) or None
        beside |= {"framework": given.framework.name, "framework_versions": versions}
    opened = given.sent.opened()
    model, *others = opened.found.may.get("model", (None,))
    if not isinstance(model, str):
        return opened, beside
    known = models.find(model) or models.alike(model)
    if known is not None:
        found = replace(opened.found, may={**opened.found.may, "model": (known, *others)})
        return replace(opened, found=found), beside
    if beside.get("model") is None:
        allowed = "is not in the catalogue: give the fields of its config.json as workload.model"
        raise UsageError("from.model", model[:100], allowed)
    return opened, beside


@contextmanager
def with_study(opened: Opened, db: str | None) -> Iterator[Opened]:
    """Completes what a file says with the question of the study that it names, if that is here;
    else what is missing then says so."""
    found = opened.found
    named = trainer.told_by_name(opened.values) if found.format_name == trainer.NAME else None
    if found.told is not None or named is None:
        yield opened
        return
    unknown = ""
    try:
        with open_store(db) as store:
            question = store.study(named[0]).question
    except UsageError:
        unknown = f"study {named[0]}, which the file names, is not in this database"
        found = replace(found, notes=(*found.notes, unknown))
    else:
        knobs: dict[str, Any] = {**found.knobs, **named[1]}
        if "tp_size" in named[1]:
            shards = named[1]["tp_size"] < question.cluster.world_size
            knobs["sharding"] = str(Sharding.FULL_SHARD if shards else Sharding.DDP)
        found = replace(found, told=(question, Settings.from_dict(knobs)))
    try:
        yield replace(opened, found=found)
    except UsageError as error:
        if error.given is not None or not unknown:
            raise
        *others, last = error.errors
        told = UsageError(last.field, None, f"{last.allowed}; {unknown}")
        raise all_of([*others, told]) from error


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
    seen: Seen | None
    """What was measured, or else emulated; ``None`` where neither was."""
    fits: bool | None
    """Whether it fits; ``None`` where nothing is known."""
    allocated_gib: Quantity
    """Peak of allocated tensors."""
    needed_gib: Quantity
    """What must be free of a device: the one figure that the terminal shows of memory."""
    step_time_s: Quantity
    tokens_per_s_per_gpu: Quantity
    """Tokens of the global batch per second of its step and GPU."""
    provenance: Provenance
    """The weakest of the memory's and the speed's."""
    reason: str
    """Why it does not fit, or why nothing is known; empty where it fits."""
    trains_wrongly: str
    """Why it trains something else, where that was seen; else empty."""
    notes: tuple[str, ...]
    """Notes for a reader, also that a prediction's upper end lies above the limit."""

    @property
    def fits_surely(self) -> bool:
        """Whether it fits at the upper end of a prediction's interval too."""
        limit, most = self.prediction.limit_gib, self.needed_gib.high
        may_exceed = bool(limit and most and most > limit)
        return bool(self.fits) and (self.seen is not None or not may_exceed)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``tuner check --json`` prints."""
        question, seen = self.case.question, self.seen
        return {
            "format": self.format_name,
            **{name: value for name, value in question.as_dict().items() if name != "knobs"},
            "settings": self.case.settings.as_dict(),
            "fits": self.fits,
            "fits_surely": self.fits_surely,
            "memory": {
                "needed_gib": self.needed_gib.as_dict(),
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


@naming_arguments()
def check(
    file: str | os.PathLike[str],
    /,
    *,
    cluster: ClusterLike | None = None,
    settings: SettingsLike | None = None,
    format_name: str | None = None,
    dry_runs: str = Policy.AUTO,
    db: str | None = None,
    progress: Say | None = None,
    **beside: Any,
) -> Checked:
    """Tells whether a configuration file still fits, as ``tuner check`` does.

    Args:
        file: its path, or its text.
        cluster: as :func:`tuner.suggest` has it; not needed of a file that ``tuner export`` wrote.
        settings: knobs that the file does not say, as :func:`tuner.predict` has them.
        format_name: whose it is; by default told by its content.
        dry_runs: what is dry-run where no dry run is kept: ``auto``, ``all`` or ``none``.
        db: address of the database; by default ``$TUNER_DB``, or SQLite in the user's data folder.
        progress: is called with each line of what is waited for, such as ``print``.
        beside: ``model``, ``global_batch_size``, ``sequence_length`` and what else the file does
            not say, as :func:`tuner.predict` has them.

    Raises:
        UsageError: it cannot be read, or something is missing, or said otherwise.
        NotCoveredError: nothing is known of such a training step.
        StoreError: the database cannot be used.
    """
    policy, path = choice("dry_runs", Policy, dry_runs), os.fspath(file)
    for name in beside.keys() - BESIDE_A_FILE - {"headroom", "memory_limit_gib"}:
        raise TypeError(f"got an unexpected keyword argument {name!r}")
    opened, given = open_file(path, format_name), plain_arguments(**beside, cluster=cluster)
    if settings is not None:
        given["settings"] = said_knobs(settings)
    return check_file(opened, path, given, db, policy, Watch(progress or silent))


def check_file(
    opened: Opened,
    path: str,
    given: Mapping[str, Any],
    db: str | None,
    policy: Policy,
    watch: Watch,
) -> Checked:
    """The same of a file at ``path`` that was read; ``given`` is what it does not say."""
    with open_store(db) as store, DryRuns(store, policy, watch) as dry_runs:
        with with_study(opened, db) as told:
            case = case_of(told.found, given, place_of(path).parent)
        dry_runs.prepare([case])
        return check_case(store, told.found.format_name, case, dry_runs.of(case))


def check_case(store: Store, format_name: str, case: Case, finding: Finding) -> Checked:
    """Checks a case by probes and predictions; ``finding`` is what dry runs say of it."""
    prediction = answer_of(case, finding)
    limits = Limits(headroom=case.headroom, memory_limit_bytes=case.limit_bytes)
    asked = replace(case.question, knobs={}).identity
    seen = None
    # Whatever knobs the studies of the question allowed.
    for study in filter(None, (store.find(case.question), *store.similar(case.question))):
        if replace(study.question, knobs={}).identity != asked:
            continue
        for one in Evidence(replace(study, limits=limits)).seen(case.settings):
            is_measured = one.fidelity is Fidelity.MEASURED
            if one.fits is None or (seen and not is_measured):
                continue
            if seen is None or seen.figures.fidelity is not Fidelity.MEASURED:
                seen = Seen(study_id=study.id, figures=one)
    figures = seen.figures if seen else None

    def known(name: str) -> Quantity:
        """A quantity as it was seen, or else as it is predicted."""
        found: Quantity | None = getattr(figures, name, None)
        predicted: Quantity = getattr(prediction, name)
        return found if found and found.value is not None else predicted

    fits, reason, notes = prediction.fits, prediction.reason, prediction.notes
    # what probes closed for what it trains was not seen to fit
    if figures and (figures.too_large or not prediction.trains_wrongly):
        fits, reason = figures.fits, ""
        if fits is False:
            needs = f"it needs {figures.needed_gib.value or 0:.2f} GiB of a device"
            reason = figures.why or needs
    return Checked(
        format_name=format_name,
        case=case,
        prediction=prediction,
        seen=seen,
        fits=fits,
        allocated_gib=known("allocated_gib"),
        needed_gib=known("needed_gib"),
        step_time_s=known("step_time_s"),
        tokens_per_s_per_gpu=known("tokens_per_s_per_gpu"),
        provenance=figures.known_from if figures else prediction.provenance,
        reason=reason,
        trains_wrongly=prediction.trains_wrongly,
        notes=notes,
    )
