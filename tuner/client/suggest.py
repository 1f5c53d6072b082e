"""``tuner.suggest``: what ``tuner suggest`` does, from Python."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.client.answered import Answer, Answered, answered_of, read_targets
from tuner.client.local import Caller, PythonCaller, answer_here
from tuner.client.place import place_here
from tuner.client.request import RequestHere, read_here
from tuner.client.values import (
    ClusterLike,
    ModelLike,
    Say,
    naming_arguments,
    plain_arguments,
    silent,
)
from tuner.core.measurement import Fidelity
from tuner.cost.prediction import uncovered
from tuner.errors import TunerError, UsageError
from tuner.script import Script
from tuner.store import open_store


@naming_arguments()
def suggest(
    *,
    model: ModelLike | None = None,
    global_batch_size: int,
    sequence_length: int,
    cluster: ClusterLike = "local",
    optimizer: str = "adamw",
    precision: str = "bf16",
    reduce_dtype: str | None = None,
    framework: str = "torch",
    framework_versions: Mapping[str, str] | None = None,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    headroom: float | None = None,
    memory_limit_gib: float | None = None,
    fidelity: str | None = None,
    max_probes: int | None = None,
    wall_s: float | None = None,
    gpu_s: float | None = None,
    probe_deadline_s: float | None = None,
    tolerance: float = 0.01,
    pool: str = "",
    sampler: str = "cost-model",
    script: Script | None = None,
    server: str | None = None,
    key: str | None = None,
    replace: bool = False,
    write: Mapping[str, str | os.PathLike[str]] | None = None,
    db: str | None = None,
    progress: Say | None = None,
) -> Answer:
    """The fastest settings that fit, found as ``tuner suggest`` finds them.

    A worker process is started for the probes and ended with this call. Ctrl-C ends it too, as a
    ``KeyboardInterrupt``; the study is kept, and the same call goes on from there. No signal
    handler is touched, so it may be called in any thread.

    Args:
        model: a name of the catalogue, the path of a ``config.json``, or its fields. It may be
            left out with a ``script`` only.
        global_batch_size: sequences of one optimizer step, over all GPUs. No answer changes it.
        sequence_length: tokens of one sequence.
        cluster: ``local``, ``cpu:2``, ``8xa100-80gb``, a .toml file, or its fields.
        optimizer: ``adamw``, ``adamw_8bit`` or ``sgd``.
        precision: ``bf16``, ``bf16_mixed`` or ``fp32``.
        reduce_dtype: ``bf16`` or ``fp32``; by default the precision's own.
        framework: ``torch``, ``accelerate``, ``trainer`` or ``nanotron``.
        framework_versions: versions by package; by default those installed.
        knobs: values that are allowed, by knob, such as ``{"micro_batch_size": [1, 2]}``.
        headroom: share of each GPU's usable memory to leave free; by default 0.05.
        memory_limit_gib: GiB that a step may use of one GPU, instead of a headroom.
        fidelity: ``measured``, ``emulated``, ``predicted``, or ``auto`` for the first of these
            that can be had; by default ``measured``, and of a service ``auto``.
        max_probes: probes to run at most; by default 20, and 3 with ``predicted``.
        wall_s: seconds to look at most; by default without limit.
        gpu_s: GPU-seconds to spend at most; by default without limit.
        probe_deadline_s: seconds that one probe may take; by default 600. A setting whose time is
            up is taken to be slow.
        tolerance: gain in speed that is not worth another probe (relative).
        pool: label of the service workers that may be at it; any unless given.
        sampler: proposes the next configuration: ``cost-model``, or Optuna's ``tpe``, ``gp`` (which
            needs ``pip install 'tuner[gp]'`` where planning runs) or ``random``.
        script: training script of yours to probe in the place of the built-in step; see
            :func:`tuner.read_script`.
        server: URL of a service that is to answer; by default this machine does.
        key: to the service; by default that of ``$TUNER_KEY``.
        replace: whether a study that is open at the service with other limits is given these.
        write: files to write the answer to, by format, such as
            ``{"accelerate": "accelerate.yaml"}``.
        db: address of the database; by default ``$TUNER_DB``, or SQLite in the user's data folder.
        progress: is called with each line of what ``tuner suggest`` shows on the way, such as
            ``print``.

    Returns:
        The suggestion; its ``best`` is never ``None``, and is of the fidelity that was asked for.

    Raises:
        UsageError: an argument is wrong; nothing was written then.
        NothingFitsError: no settings fit. ``error.suggestion`` is what is known nevertheless.
        TrainsWronglyError: some fit, and all of them train something else; the same.
        SpeedUnknownError: some fit, and nothing says which is the fastest; the same.
        ProbeError: no probe had a result (the same), or none could be run.
        ServiceError: the service cannot be reached, or refused.
        StoreError: the database cannot be used.
    """
    beside = []
    if headroom is not None and memory_limit_gib is not None:  # nobody may see a note here
        allowed = "is not applied with memory_limit_gib: give one"
        beside.append(UsageError("headroom", headroom, allowed))
    request = read_here(
        plain_arguments(
            model=model,
            global_batch_size=global_batch_size,
            sequence_length=sequence_length,
            cluster=cluster,
            optimizer=optimizer,
            precision=precision,
            reduce_dtype=reduce_dtype,
            framework=framework,
            framework_versions=framework_versions,
            knobs=knobs,
            headroom=headroom,
            memory_limit_gib=memory_limit_gib,
            fidelity=fidelity,
            max_probes=max_probes,
            wall_s=wall_s,
            gpu_s=gpu_s,
            probe_deadline_s=probe_deadline_s,
            tolerance=tolerance,
            pool=pool,
            sampler=sampler,
            script=script,
        ),
        beside,
    )
    if not isinstance(write or {}, Mapping):
        raise UsageError("write", write, "must be a mapping, of values by name")
    for path in (write or {}).values():
        if not isinstance(path, str | os.PathLike):
            raise UsageError("write", path, "must be the path of a file")
    files = [f"{name}={os.fspath(path)}" for name, path in (write or {}).items()]
    place = AnswerPlace(server=server, key=key, replaces=replace, db=db)
    answered = answer_at(place, request, PythonCaller(progress or silent), files)
    found = answered.require()
    answered.write()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlace:
    """AnswerPlace where a question is answered: here, or by a service."""

    server: str | None = None
    """URL of the service; ``None`` for here."""
    key: str | None = None
    """To the service; by default that of ``$TUNER_KEY``."""
    replaces: bool = False
    """Whether a study that is open at the service with other limits is given these."""
    db: str | None = None
    """Address of the database here; by default the user's own."""

    def __post_init__(self) -> None:
        if self.server is not None and self.db is not None:
            raise UsageError("db", self.db, "is not applied with a server, which has its own")
        if self.server is None and self.replaces:
            allowed = "needs a server: here, asking again replaces the limits"
            raise UsageError("replace", True, allowed)
        if self.server is None and self.key is not None:
            raise UsageError("key", "one", "needs a server that it is for")


def answer_at(
    place: AnswerPlace, request: RequestHere, caller: Caller, write: Sequence[str]
) -> Answered:
    """The answer, wherever it is to be found.

    Raises:
        UsageError: something about the question is wrong; nothing was written then.
        TunerError: it could not be answered.
    """
    if place.server is not None:
        from tuner.client.remote import answer_there  # it needs an HTTP client, and no probe does

        return answer_there(
            place.server, request, caller, write=write, replaces=place.replaces, key=place.key
        )
    placed = place_here(request, place.db)
    for note in placed.notes:
        caller.note(note)
    question = placed.question
    if placed.limits.fidelity is Fidelity.PREDICTED and (
        reason := uncovered(question.workload, question.framework)
    ):
        raise TunerError(f"nothing is predicted: {reason}")
    targets = read_targets(write, placed.question, placed.space)
    with open_store(place.db) as store:
        study = answer_here(store, placed, caller)
    return answered_of(study, targets)
