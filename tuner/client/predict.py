"""``tuner.predict``: memory and speed of given settings, on any cluster, without a device."""

import os
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, Required, TypedDict, Unpack, overload

from tuner.client.cases import (
    Case,
    DryRuns,
    NotCoveredError,
    Policy,
    Prediction,
    answer_of,
    read_case,
)
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
from tuner.errors import UsageError, all_of
from tuner.store import open_store

# Settings: as ``sharding=ddp,micro_batch_size=2``, as knobs by name, or as they were read.
SettingsLike = str | Mapping[str, Any] | Settings


class Making(TypedDict, total=False):
    """Keyword arguments that say how dry runs are made and kept."""

    dry_runs: str
    db: str | None
    progress: Say | None


class SingleCase(SharedArguments, Making):
    """Keyword arguments of a case."""

    model: Required[ModelLike]
    cluster: Required[ClusterLike]
    global_batch_size: Required[int]
    sequence_length: Required[int]
    settings: Required[SettingsLike]


@overload
def predict(case: Mapping[str, Any], /, **making: Unpack[Making]) -> Prediction: ...


@overload
def predict(
    cases: Iterable[Mapping[str, Any]], /, **making: Unpack[Making]
) -> list[Prediction]: ...


@overload
def predict(**single: Unpack[SingleCase]) -> Prediction: ...


@overload
def predict(*, from_file: str | os.PathLike[str], **beside: Any) -> Prediction: ...


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
    policy, watch = choice("dry_runs", Policy, dry_runs), Watch(progress or silent)
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


def predictions(
    read: Sequence[Case | NotCoveredError], policy: Policy, db: str | None, watch: Watch
) -> list[Prediction]:
    """The predictions of cases, with the dry runs that the policy asks for."""
    with open_store(db) as store, DryRuns(store, policy, watch) as dry_runs:
        dry_runs.prepare([case for case in read if isinstance(case, Case)])
        return [
            Prediction(reason=one.allowed)
            if isinstance(one, NotCoveredError)
            else answer_of(one, dry_runs.of(one))
            for one in read
        ]


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
