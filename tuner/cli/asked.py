"""From what was written on the command line to a checked question and its terms.

Everything is checked here, before any database is opened: after a usage error nothing has been
written anywhere.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import typer

from tuner.cases.defaults import default_note
from tuner.catalog import models
from tuner.cli.options import Asked, SuggestAsked
from tuner.cli.units import read_duration, read_seconds, read_share, read_size, read_whole
from tuner.cluster import Cluster, Device, parse_cluster
from tuner.cost.calibration import Calibration
from tuner.cost.coverage import uncovered
from tuner.errors import TunerError, UsageError
from tuner.framework import (
    Framework,
    FrameworkName,
    framework,
    not_installed,
    parse_stated_versions,
)
from tuner.here import best_fidelity, why_not_emulated, why_not_measured, why_unpriced
from tuner.measurement import Fidelity
from tuner.model import ModelConfig, load_model
from tuner.planner.dry_runs import MOST_DRY_RUNS
from tuner.request import AUTO, MOST_PROBES
from tuner.settings import KNOBS
from tuner.space import Space, enumerate_space
from tuner.store import default_url, open_store
from tuner.store.engine import is_sqlite, parse_url
from tuner.study import HEADROOM, Question, Terms
from tuner.workload import Optimizer, Precision, ReduceDtype, Workload, choice

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """A checked question with its terms."""

    question: Question
    """What is asked."""
    space: Space
    """Its legal settings."""
    terms: Terms
    """On what terms."""


def read_inquiry(asked: Asked, **budget: Any) -> Inquiry:
    """The inquiry that was written.

    Args:
        asked: the options.
        budget: further fields of the terms, already read.

    Raises:
        UsageError: some of it cannot be read, is contradictory, or cannot be measured here.
    """
    question = read_question(asked)
    fidelity, chosen_for = read_fidelity(asked, question)
    if fidelity is Fidelity.PREDICTED and "max_probes" not in budget:
        budget["max_dry_runs"] = MOST_DRY_RUNS
    terms = Terms(
        fidelity=fidelity,
        headroom=HEADROOM if asked.headroom is None else read_share("headroom", asked.headroom),
        memory_limit_bytes=if_given(read_size, "memory_limit", asked.memory_limit),
        **{"max_probes": MOST_PROBES[fidelity], **budget},
    )
    if fidelity is Fidelity.MEASURED:
        check_measurable(question)
    elif fidelity is Fidelity.EMULATED:
        check_emulatable(question, asked.db)
    if chosen_for:
        typer.echo(f"fidelity {fidelity}: {chosen_for}", err=True)
    if None not in (asked.headroom, asked.memory_limit):
        typer.echo("tuner: --headroom is not applied: --memory-limit is taken as it is", err=True)
    return Inquiry(question=question, space=enumerate_space(question), terms=terms)


def read_budget(asked: SuggestAsked) -> dict[str, Any]:
    """The fields of :class:`Terms` that say how long to look.

    Raises:
        UsageError: one cannot be read.
    """
    given = if_given(read_whole, "max_probes", asked.max_probes)
    return {
        **({"max_probes": given} if given is not None else {}),
        "wall_s": if_given(read_duration, "budget", asked.budget),
        "device_s": if_given(read_seconds, "max_gpu_seconds", asked.max_gpu_seconds),
        "tolerance": read_share("tolerance", asked.tolerance),
        "pool": asked.pool,
    }


def read_fidelity(asked: Asked, question: Question) -> tuple[Fidelity, str]:
    """How probes are to be run, and why so where that was left to this machine.

    Raises:
        UsageError: in no way that there is.
    """
    wanted = str(Fidelity.MEASURED) if asked.fidelity is None else asked.fidelity
    if wanted == AUTO:
        return best_fidelity(question, partial(kept_rates, asked.db, question))
    if wanted not in list(Fidelity):
        known = ", ".join((AUTO, *Fidelity))
        raise UsageError("fidelity", wanted, f"must be one of {known}")
    return Fidelity(wanted), ""


def check_covered(question: Question) -> None:
    """Refuse to predict what nothing is known of.

    Raises:
        TunerError: so it is; with what is not covered.
    """
    if reason := uncovered(question.workload, question.framework):
        raise TunerError(f"nothing is predicted: {reason}")


def if_given(read: Callable[[str, str], T], field: str, text: str | None) -> T | None:
    """``None`` for an option that was left out, else what ``read`` makes of it."""
    return None if text is None else read(field, text)


def check_measurable(question: Question) -> None:
    """Refuse what a probe on this machine would not measure.

    Raises:
        UsageError: the framework is not probed, other versions are installed, the optimizer's
            library is missing, or this machine is not the cluster.
    """
    _check_software(question)
    check_here(question.cluster)


def check_here(cluster: Cluster) -> None:
    """Refuse a cluster that this machine is not.

    Raises:
        UsageError: so it is.
    """
    if why := why_not_measured(cluster):
        if cluster.gpu.device is not Device.CPU:
            where = "that machine" if cluster.nodes == 1 else "a single node of that kind"
            why = f"probes run here, and {why}: use --cluster local, or run tuner on {where}"
        raise UsageError("cluster", cluster.name, why)


def _check_software(question: Question) -> None:
    _check_framework(question.framework)
    if question.workload.optimizer is Optimizer.ADAMW_8BIT and find_spec("torchao") is None:
        raise UsageError(
            "optimizer", "adamw_8bit", "needs torchao, which is not installed: pip install torchao"
        )


def kept_rates(db: str | None, question: Question) -> Calibration | None:
    """What a calibration has found of the question's devices; no database is made for it.

    Raises:
        UsageError: the address is wrong, or what is there is not ours.
        StoreError: it cannot be reached, or is of a newer version.
    """
    url = parse_url(default_url() if db is None else db)
    if is_sqlite(url) and not Path(str(url.database)).exists():
        return None
    with open_store(db, create=False) as store:
        return store.calibration(question.cluster, question.framework.versions)


def check_emulatable(question: Question, db: str | None = None) -> None:
    """Refuse what one device of this machine cannot play.

    Args:
        question: what is asked.
        db: address of the database, where calibrations are; by default the user's own.

    Raises:
        UsageError: the framework is not probed, other versions are installed, the optimizer's
            library is missing, no device here is large enough, or a link's rate is not known.
    """
    _check_software(question)
    if why := why_not_emulated(question.cluster):
        raise UsageError("cluster", question.cluster.name, why)
    if why := why_unpriced(question, partial(kept_rates, db, question)):
        raise UsageError(
            "cluster",
            question.cluster.name,
            f"{why}, and communication is not measured where one device plays them all: state it"
            f" in a .toml file{_or_calibrate(question.cluster)}",
        )


def _or_calibrate(cluster: Cluster) -> str:
    """The other way to have rates of links; empty where this machine is not the cluster."""
    return "" if why_not_measured(cluster) else f", or run tuner calibrate --cluster {cluster.name}"


def read_question(asked: Asked, installed: Mapping[str, str] | None = None) -> Question:
    """The question that was written.

    Args:
        asked: the options.
        installed: versions of packages for which none is stated; by default those here.

    Raises:
        UsageError: some of it cannot be read.
    """
    stated = parse_stated_versions(asked.framework_version or ())
    return Question(
        workload=_workload(asked),
        cluster=parse_cluster(asked.cluster),
        framework=framework(asked.framework, stated, installed),
        knobs=_knobs(asked.knob or ()),
    )


def _workload(asked: Asked) -> Workload:
    return Workload(
        model=read_model(asked.model),
        sequence_length=read_whole("sequence_length", asked.sequence_length),
        global_batch_size=read_whole("global_batch_size", asked.global_batch_size),
        optimizer=choice("optimizer", Optimizer, asked.optimizer),
        precision=choice("precision", Precision, asked.precision),
        reduce_dtype=if_given(
            lambda field, text: choice(field, ReduceDtype, text), "reduce_dtype", asked.reduce_dtype
        ),
    )


def read_model(spec: str) -> ModelConfig:
    """The model of a name or file; sizes that a file leaves out are told on stderr.

    Raises:
        UsageError: as :func:`tuner.model.load_model`.
    """
    model = load_model(spec)
    if models.find(spec) is None:  # a file, which load_model has found to be small and readable
        values = json.loads(Path(os.path.expanduser(spec)).read_bytes())  # noqa: PTH111
        if note := default_note(values):
            typer.echo(f"tuner: {model.name}: {note}", err=True)
    return model


def _knobs(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Allowed values by knob; the question checks them."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name:
            known = ", ".join(KNOBS)
            raise UsageError("knob", text, f"must look like tp_size=1,2; the knobs are {known}")
        if name in found:
            raise UsageError("knob", text, f"{name} is given twice; write all its values in one")
        found[name] = tuple(filter(None, (value.strip() for value in values.split(","))))
    return found


def _check_framework(asked: Framework) -> None:
    if asked.name is FrameworkName.NANOTRON:
        raise UsageError(
            "framework",
            "nanotron",
            "is not probed here: use torch, accelerate or trainer, or ask for predictions with"
            " --fidelity predicted",
        )
    for package, version, found in not_installed(asked):
        state = f"{package} {found} is installed here" if found else "it is not installed here"
        raise UsageError(
            "framework_version",
            f"{package}={version}",
            f"{state}, and probes run with what is installed: install {package}=={version},"
            " or leave it out",
        )
