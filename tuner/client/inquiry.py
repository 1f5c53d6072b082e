"""A checked question on its terms, as it is answered on this machine.

Everything is checked here, before any database is opened: after a usage error nothing has been
written anywhere.
"""

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tuner.client.capabilities import (
    best_fidelity,
    why_not_emulated,
    why_not_measured,
    why_unpriced,
)
from tuner.client.request import Wanted, question_of, read_fidelity, seconds_of, terms_of
from tuner.client.values import model_note
from tuner.core.cluster import Cluster, Device
from tuner.core.framework import FrameworkName, not_installed
from tuner.core.measurement import Fidelity
from tuner.core.study import Question, Terms
from tuner.core.workload import Optimizer
from tuner.cost.calibration import Calibration
from tuner.cost.prediction import uncovered
from tuner.errors import TunerError, UsageError
from tuner.space import Space, enumerate_space
from tuner.store import default_url, open_store
from tuner.store.engine import is_sqlite, parse_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """A checked question with its terms."""

    question: Question
    """What is asked."""
    space: Space
    """Its legal settings."""
    terms: Terms
    """On what terms."""
    probe_deadline_s: float | None = None
    """Seconds that one probe may take; ``None`` for the worker's own limit."""
    notes: tuple[str, ...] = ()
    """What was left to this machine, left out and matters, or given and is not used."""


def inquiry_of(wanted: Wanted, db: str | None = None) -> Inquiry:
    """The inquiry.

    Args:
        wanted: what is asked for.
        db: address of the database, where calibrations are; by default the user's own.

    Raises:
        UsageError: some of it is wrong, contradictory, or cannot be measured here.
    """
    question = question_of(wanted)
    fidelity, chosen_for = _fidelity(wanted, question, db)
    terms = terms_of(wanted, fidelity)
    if why := terms.sampler.why_not_here:
        raise UsageError("sampler", terms.sampler, why)
    deadline_s = seconds_of("probe_deadline_s", wanted.probe_deadline_s)
    if deadline_s is not None and fidelity is Fidelity.PREDICTED:
        raise UsageError("probe_deadline", deadline_s, "is for probes; dry runs have their own")
    if fidelity is Fidelity.MEASURED:
        check_measurable(question)
    elif fidelity is Fidelity.EMULATED:
        check_emulatable(question, db)
    notes = (
        "" if wanted.model is None else model_note(wanted.model),
        f"fidelity {fidelity}: {chosen_for}" if chosen_for else "",
        limits_note(wanted),
    )
    return Inquiry(
        question=question,
        space=enumerate_space(question),
        terms=terms,
        probe_deadline_s=deadline_s,
        notes=tuple(filter(None, notes)),
    )


def limits_note(wanted: Wanted) -> str:
    """Says that of two limits of memory one is not applied; empty where there is one at most."""
    if None in (wanted.headroom, wanted.memory_limit_bytes):
        return ""
    return "the headroom is not applied: the memory limit is taken as it is"


def _fidelity(wanted: Wanted, question: Question, db: str | None) -> tuple[Fidelity, str]:
    """How probes are to be run, and why so where that was left to this machine."""
    found = read_fidelity(wanted, Fidelity.MEASURED)
    if question.script is not None:
        if found not in (None, Fidelity.MEASURED):
            raise UsageError("fidelity", found, "a script is run: it is measured, or not at all")
        return Fidelity.MEASURED, ""
    if found is None:
        return best_fidelity(question, partial(kept_rates, db, question))
    return found, ""


def check_covered(question: Question) -> None:
    """Refuse to predict what nothing is known of.

    Raises:
        TunerError: so it is; with what is not covered.
    """
    if reason := uncovered(question.workload, question.framework):
        raise TunerError(f"nothing is predicted: {reason}")


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
    _check_framework(question)
    if question.workload.optimizer is Optimizer.ADAMW_8BIT and find_spec("torchao") is None:
        raise UsageError(
            "optimizer", "adamw_8bit", "needs torchao, which is not installed: pip install torchao"
        )


def kept_rates(db: str | None, question: Question) -> Calibration | None:
    """Finds the calibration of the question's devices; no database is made for it.

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


def _check_framework(question: Question) -> None:
    asked = question.framework
    if asked.name is FrameworkName.NANOTRON and question.script is None:
        raise UsageError(
            "framework",
            "nanotron",
            "is not probed here: use torch, accelerate or trainer, have your own script of it run"
            " with --script, or ask for predictions with --fidelity predicted",
        )
    for package, version, found in not_installed(asked):
        state = f"{package} {found} is installed here" if found else "it is not installed here"
        raise UsageError(
            "framework_version",
            f"{package}={version}",
            f"{state}, and probes run with what is installed: install {package}=={version},"
            " or leave it out",
        )
