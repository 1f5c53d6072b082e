"""``tuner.predict``: memory and speed of given settings, on any cluster, without a device."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Unpack, overload

from tuner.client.cases import Case, DryRuns, NotCoveredError, Policy, answer_of, read_case
from tuner.client.cases.answers import unknown
from tuner.client.cases.dry_runs import Watch
from tuner.client.request import as_argument, nested
from tuner.client.values import (
    ClusterLike,
    ModelLike,
    Say,
    SharedArguments,
    naming_arguments,
    plain,
    plain_arguments,
    silent,
)
from tuner.core.bounds import choice
from tuner.core.configuration import Settings
from tuner.core.measurement import Basis
from tuner.core.quantity import Provenance, Quantity
from tuner.errors import UsageError, all_of
from tuner.store import open_store

# Settings: as ``sharding=ddp,micro_batch_size=2``, as knobs by name, or as they were read.
SettingsLike = str | Mapping[str, Any] | Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of one configuration, on the rank that needs most."""

    settings: Settings | None
    """The settings with dead knobs collapsed; ``None`` of what is not covered."""
    fits: bool | None
    """Whether they are expected to run; ``None`` where nothing is known."""
    needed_gib: Quantity
    """What must be free of a device."""
    allocated_gib: Quantity
    reserved_gib: Quantity
    """Peak held by the caching allocator, part of it free."""
    device_gib: Quantity
    """What the device's own tool would show."""
    limit_gib: float | None
    breakdown_gib: Mapping[str, float]
    """Memory at the peak by category: parameters, gradients, optimizer, ..."""
    by_phase_gib: Mapping[str, float]
    basis: Basis | None
    tokens_per_s_per_gpu: Quantity
    """Tokens of the global batch per second of its step and GPU."""
    step_time_s: Quantity
    provenance: Provenance
    """The weakest of the memory's and the speed's."""
    precision: str | None
    """Number formats for which it holds, such as ``bf16``; ``None`` of what is not covered."""
    reason: str
    """Why they do not fit, or why a figure is unknown; empty where all is well."""
    trains_wrongly: str = ""
    """Why they train something else, where that was seen in these versions; else empty."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the figures."""
    plain: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The same as plain JSON values, as ``tuner predict --json`` prints them."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values, as ``tuner predict --json`` prints them."""
        return dict(self.plain)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> "Prediction":
        """Makes an object of what :func:`tuner.client.cases.answer_of` answers."""
        memory, knobs, basis = answer["memory"], answer["canonical"], answer["memory"]["basis"]
        return cls(
            settings=None if knobs is None else Settings.from_dict(knobs),
            fits=answer["fits"],
            needed_gib=Quantity.from_dict(memory["needed_gib"]),
            allocated_gib=Quantity.from_dict(memory["allocated_gib"]),
            reserved_gib=Quantity.from_dict(memory["reserved_gib"]),
            device_gib=Quantity.from_dict(memory["device_gib"]),
            limit_gib=memory["limit_gib"],
            breakdown_gib=memory["breakdown"],
            by_phase_gib=memory["by_phase"],
            basis=None if basis is None else Basis(basis),
            tokens_per_s_per_gpu=Quantity.from_dict(answer["tokens_per_s_per_gpu"]),
            step_time_s=Quantity.from_dict(answer["step_time_s"]),
            provenance=Provenance(answer["provenance"]),
            precision=answer["precision"],
            reason=answer["reason"],
            trains_wrongly=answer["trains_wrongly"],
            notes=tuple(answer["notes"]),
            plain=answer,
        )


@overload
def predict(
    case: Mapping[str, Any],
    /,
    *,
    dry_runs: str = ...,
    db: str | None = ...,
    progress: Say | None = ...,
) -> Prediction: ...


@overload
def predict(
    cases: Iterable[Mapping[str, Any]],
    /,
    *,
    dry_runs: str = ...,
    db: str | None = ...,
    progress: Say | None = ...,
) -> list[Prediction]: ...


@overload
def predict(
    *,
    model: ModelLike,
    cluster: ClusterLike,
    global_batch_size: int,
    sequence_length: int,
    settings: SettingsLike,
    dry_runs: str = ...,
    db: str | None = ...,
    progress: Say | None = ...,
    **shared: Unpack[SharedArguments],
) -> Prediction: ...


@overload
def predict(
    *,
    from_file: str | os.PathLike[str],
    dry_runs: str = ...,
    db: str | None = ...,
    progress: Say | None = ...,
    **beside: Any,
) -> Prediction: ...


@naming_arguments()
def predict(
    cases: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    /,
    *,
    from_file: str | os.PathLike[str] | None = None,
    dry_runs: str = Policy.AUTO,
    db: str | None = None,
    progress: Say | None = None,
    **single: Any,
) -> Prediction | list[Prediction]:
    """Memory and speed of given settings, predicted as ``tuner predict`` does.

    One case is a mapping with the fields of a line of ``tuner predict --cases`` (``workload``,
    ``cluster``, ``settings``, and if wanted ``framework``, ``headroom``, ``memory_limit_gib``,
    ``script``), or is given by the arguments below in its place. Several cases are predicted
    together: what they have in common is dry-run once.

    Args:
        cases: one case, or several.
        from_file: a configuration that is launched today, by its path or as its text, whose own
            settings are predicted; ``single`` is what it does not say.
        dry_runs: what is dry-run where no dry run is kept: ``auto``, ``all`` or ``none``.
        db: address of the database; by default ``$TUNER_DB``, or SQLite in the user's data folder.
        progress: is called with each line of what is waited for, such as ``print``.
        single: a single case: ``model``, ``cluster``, ``global_batch_size``, ``sequence_length``
            and ``settings``, and if wanted ``optimizer``, ``precision``, ``reduce_dtype``,
            ``loss``, ``tensor_parallel``, ``adapter``, ``frozen``, ``packing``, ``task``,
            ``image_tokens``, ``framework``, ``framework_versions``, ``headroom`` and
            ``memory_limit_gib``, as :func:`tuner.suggest` has them. ``settings`` is text such as
            ``sharding=ddp,micro_batch_size=2``, a mapping of knobs, or :class:`tuner.Settings`.

    Returns:
        The prediction of one case, or a list in the order of the cases. Settings that do not fit
        are no error; nor is what nothing is known of, whose ``fits`` is ``None``.

    Raises:
        UsageError: a case is wrong; with its number, from 0, where there are several. Nothing was
            predicted then.
        TypeError: neither cases nor all that a single one needs.
        StoreError: the database cannot be used.
    """
    policy, watch = choice("dry_runs", Policy, dry_runs), _Said(progress or silent)
    if from_file is not None and cases is None:
        from tuner.client.check import check  # which shows predictions

        try:
            found = check(from_file, dry_runs=dry_runs, db=db, progress=progress, **single)
        except NotCoveredError as error:
            return predictions([error], policy, db, watch)[0]
        return found.prediction
    if cases is None:
        signature(read_single_case).bind(**single)  # what is missing is said without its name
        try:
            case: Case | NotCoveredError = read_single_case(**single)
        except NotCoveredError as error:
            case = error
        return predictions([case], policy, db, watch)[0]
    if from_file is not None:
        raise UsageError("from_file", from_file, "is a case of its own: give it, or cases")
    if single:
        name = next(iter(single))
        raise UsageError(name, single[name], "goes into each case where cases are given")
    if isinstance(cases, Mapping):
        return predictions([_read(cases, "")], policy, db, watch)[0]
    several: object = cases
    if isinstance(several, str | bytes) or not isinstance(several, Iterable):
        raise UsageError("cases", cases, "must be the fields of a case, or a list of such")
    read = [_read(values, f"cases[{number}].") for number, values in enumerate(several)]
    return predictions(read, policy, db, watch)


class _Said:
    def __init__(self, say: Say) -> None:
        self._say = say

    def waiting(self, text: str) -> None:
        if text:
            self._say(text)

    def note(self, text: str) -> None:
        self._say(text)


def watch_saying(say: Say) -> Watch:
    """Watches for a caller who is told lines."""
    return _Said(say)


def predictions(
    read: Sequence[Case | NotCoveredError], policy: Policy, db: str | None, watch: Watch
) -> list[Prediction]:
    """The predictions of cases, with the dry runs that the policy asks for."""
    with dry_runs_of(db, policy, watch) as dry_runs:
        dry_runs.prepare([case for case in read if isinstance(case, Case)])
        answers = [
            unknown(one.allowed)
            if isinstance(one, NotCoveredError)
            else answer_of(one, dry_runs.of(one))
            for one in read
        ]
    return [Prediction.from_answer(answer) for answer in answers]


def _read(values: Mapping[str, Any], path: str) -> Case | NotCoveredError:
    """A case, or that nothing is known of it; a wrong field is named with ``path`` before it."""
    if not isinstance(values, Mapping):
        raise UsageError(path.rstrip(".") or "cases", values, "must be an object of fields")
    try:
        return read_case(plain(values))
    except NotCoveredError as error:
        return error
    except UsageError as error:
        raise all_of(one.at(f"{path}{one.field}") for one in error.errors) from error


def read_single_case(
    *,
    model: ModelLike,
    cluster: ClusterLike,
    global_batch_size: int,
    sequence_length: int,
    settings: SettingsLike,
    beside: Sequence[UsageError] = (),
    **shared: Unpack[SharedArguments],
) -> Case:
    """The case of arguments or options; what is wrong is named as these are."""
    given = plain_arguments(
        shared,
        model=model,
        cluster=cluster,
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        settings=settings,
    )
    return read_case(nested(given), here=True, beside=beside, named=as_argument)


@contextmanager
def dry_runs_of(db: str | None, policy: Policy, watch: Watch) -> Iterator[DryRuns]:
    """The dry runs that a database keeps, and those that are made."""
    with open_store(db) as store, DryRuns(store, policy, watch) as dry_runs:
        yield dry_runs
