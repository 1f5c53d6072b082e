"""``tuner.suggest``: what ``tuner suggest`` does, from Python; and our sampler of Optuna's own."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tuner.client.answered import Answer, Answered, answered_of, keep_line, read_targets
from tuner.client.local import Caller, answer_here
from tuner.client.place import place_here
from tuner.client.request import RequestHere, read_here
from tuner.client.values import (
    ClusterLike,
    ModelLike,
    Say,
    SharedArguments,
    naming_arguments,
    plain_arguments,
    silent,
)
from tuner.core.framework import installed_versions
from tuner.core.measurement import PROBED, Fidelity
from tuner.core.script import Script
from tuner.cost.prediction import uncovered
from tuner.errors import TunerError, UsageError
from tuner.results.summary import summary_of
from tuner.store import open_store

if TYPE_CHECKING:
    from tuner.client.predict import SettingsLike
    from tuner.search.sampler import CostModelSampler


@naming_arguments()
def suggest(
    *,
    model: ModelLike | None = None,
    global_batch_size: int | None = None,
    sequence_length: int | None = None,
    from_file: str | os.PathLike[str] | None = None,
    settings: "SettingsLike | None" = None,
    cluster: ClusterLike | None = None,
    optimizer: str | None = None,
    precision: str | None = None,
    reduce_dtype: str | None = None,
    loss: str | None = None,
    tensor_parallel: str | None = None,
    adapter: str | Mapping[str, Any] | None = None,
    frozen: Sequence[str] | None = None,
    packing: str | Mapping[str, Any] | None = None,
    task: str | None = None,
    image_tokens: int | None = None,
    framework: str | None = None,
    framework_versions: Mapping[str, str] | None = None,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    headroom: float | None = None,
    memory_limit_gib: float | None = None,
    fidelity: str | None = None,
    max_probes: int | None = None,
    wall_s: float | None = None,
    gpu_s: float | None = None,
    probe_deadline_s: float | None = None,
    launcher: str | None = None,
    ray: str = "",
    tolerance: float = 0.01,
    pool: str = "",
    sampler: str = "cost-model",
    script: Script | None = None,
    labels: Mapping[str, str] | None = None,
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
        from_file: a configuration that is launched today, by its path or as its text, which says
            the question, as ``tuner suggest --from`` reads it. Other arguments say what it does
            not, and none says otherwise what it says.
        settings: knobs that are used with ``from_file`` today and that it does not say, such as
            ``"micro_batch_size=2"``.
        cluster: ``local``, ``cpu:2``, ``8xa100-80gb``, a .toml file, or its fields; by default
            ``local``, and with ``predicted`` that of a file which says one.
        optimizer: one of :class:`~tuner.core.workload.Optimizer`, such as ``adamw_8bit``; by
            default ``adamw``.
        precision: ``bf16``, ``bf16_mixed`` or ``fp32``; by default ``fp32`` on CPU ranks, and on
            GPUs ``bf16_mixed`` with accelerate, the Trainer and DeepSpeed, else ``bf16``.
        reduce_dtype: ``bf16`` or ``fp32``; by default the precision's own, and with accelerate and
            the Trainer in ``bf16_mixed`` what these do: fp32 under DDP, bf16 under FSDP.
        loss: ``hf`` (by default), ``fp32`` or ``own_dtype``: what is done with whole logits.
        tensor_parallel: ``sequence_parallel`` (by default), ``sharded_logits`` or
            ``gathered_logits``: how layers are split under tensor parallelism.
        adapter: ``lora`` or ``qlora``, or its fields, such as ``{"method": "lora", "rank": 8}``:
            what is trained in the place of the model; by default all of it is trained.
        frozen: parts of the model that are not trained, such as ``embeddings``, ``head`` and
            ``layers.0-15``.
        packing: ``varlen``, ``position_ids``, ``block_diagonal`` or ``padded``, or with documents,
            such as ``{"variant": "varlen", "documents": {"mean": 512}}``: how documents lie in a
            sequence; by default a sequence is one text.
        task: ``causal_lm`` (by default), ``masked_lm``, ``sequence_classification`` or
            ``image_text_to_text``: what the model is trained for.
        image_tokens: tokens of each sequence that stand for images, with ``image_text_to_text``.
        framework: ``torch`` (by default), ``accelerate``, ``trainer`` or ``nanotron``.
        framework_versions: versions by package; by default those installed.
        knobs: values that are allowed, by knob, such as ``{"micro_batch_size": [1, 2]}``.
        headroom: share of each GPU's usable memory to leave free; by default 0.05.
        memory_limit_gib: GiB that a step may use of one GPU, instead of a headroom.
        fidelity: ``measured``, ``emulated``, ``rehearsed``, ``predicted``, or ``auto`` for the
            first of these that can be had but ``rehearsed``; by default ``measured``, and of a
            service ``auto``.
        max_probes: probes to run at most; by default 20, 12 with ``rehearsed``, and 3 with
            ``predicted``.
        wall_s: seconds to look at most; by default without limit.
        gpu_s: GPU-seconds to spend at most; by default without limit.
        probe_deadline_s: seconds that one probe may take; by default 600. A setting whose time is
            up is taken to be slow.
        launcher: what starts ranks: ``local``, ``slurm`` in an allocation, or ``ray``; by default
            ``slurm`` in an allocation of several nodes.
        ray: address of the Ray cluster of the launcher ``ray``; by default that of ``RAY_ADDRESS``,
            or a new one on this machine.
        tolerance: gain in speed that is not worth another probe (relative).
        pool: label of the service workers that may be at it; any unless given.
        sampler: proposes the next configuration: ``cost-model``, or Optuna's ``tpe``, ``gp`` (which
            needs ``pip install 'tuner[gp]'`` where planning runs) or ``random``.
        script: training script of yours to probe in the place of the built-in step; see
            :func:`tuner.read_script`.
        labels: short texts by name that are kept with the study, such as ``{"job": "1234"}``.
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
    asked = dict(locals())
    for name in ("from_file", "settings", "server", "key", "write", "db", "progress"):
        del asked[name]
    beside = []
    if headroom is not None and memory_limit_gib is not None:  # nobody may see a note here
        allowed = "is not applied with memory_limit_gib: give one"
        beside.append(UsageError("headroom", headroom, allowed))
    if from_file is None:
        if settings is not None:
            allowed = "is for from_file, of what it does not say; knobs allows values of the answer"
            beside.append(UsageError("settings", str(settings), allowed))
        asked["cluster"] = "local" if cluster is None else cluster
        request = read_here(plain_arguments(**asked), beside)
    elif beside:
        raise beside[0]
    else:
        from tuner.client.cases.reading import said_knobs  # with all that reads files
        from tuner.client.from_file import read_question

        given = plain_arguments(**asked)
        if settings is not None:
            given["settings"] = said_knobs(settings)
        request = read_question(os.fspath(from_file), None, given, db).request
    if not isinstance(write or {}, Mapping):
        raise UsageError("write", write, "must be a mapping, of values by name")
    for path in (write or {}).values():
        if not isinstance(path, str | os.PathLike):
            raise UsageError("write", path, "must be the path of a file")
    files = [f"{name}={os.fspath(path)}" for name, path in (write or {}).items()]
    caller = Caller(note=progress or silent)
    answered = answer_at(request, caller, files, server=server, key=key, db=db)
    found = answered.require()
    answered.write()
    return found


def answer_at(
    request: RequestHere,
    caller: Caller,
    write: Sequence[str],
    *,
    server: str | None = None,
    key: str | None = None,
    db: str | None = None,
) -> Answered:
    """The answer: here, with the database ``db``, or by the service at ``server``."""
    if server is not None:
        if db is not None:
            raise UsageError("db", db, "is not applied with a server, which has its own")
        from tuner.client.remote import answer_there  # it needs an HTTP client, and no probe does

        return answer_there(server, request, caller, write=write, key=key)
    if request.replace:
        raise UsageError("replace", True, "needs a server: here, asking again replaces the limits")
    if key is not None:
        raise UsageError("key", "one", "needs a server that it is for")
    placed = place_here(request, db)
    for note in placed.notes:
        caller.note(note)
    question = placed.question
    is_predicted = placed.limits.fidelity not in PROBED and question.script is None
    if is_predicted and (reason := uncovered(question.workload, question.framework)):
        raise TunerError(f"nothing is predicted: {reason}")
    targets = read_targets(write, placed.question, placed.space)
    with open_store(db) as store:
        study = answer_here(store, placed, caller, dict(request.labels))
        found = answered_of(study, targets)
        # For the list of studies. What came in meanwhile is not in this answer.
        status = store.status(study.id)
        if status and (status.revision, status.state) == (study.revision, study.state):
            keep_line(store, summary_of(study, found.suggestion), status.newest_event)
    return found


@naming_arguments()
def cost_model_sampler(
    *,
    model: ModelLike,
    global_batch_size: int,
    sequence_length: int,
    cluster: ClusterLike = "local",
    knobs: Mapping[str, Sequence[Any]] | None = None,
    seed: int | None = None,
    **shared: Unpack[SharedArguments],
) -> "CostModelSampler":
    """A sampler for a study that minimises the seconds of a training step.

    Its ``suggest(trial)`` gives the configuration to try, with one parameter for each active knob.
    Tell the study what the step needed with
    ``trial.set_constraint("memory_over_limit_bytes", needed - sampler.limit_bytes)``. Other
    parameters of the study are sampled at random.

    Args:
        model: as in :func:`tuner.suggest`, like all others but the seed.
        global_batch_size: sequences of one optimizer step, over all GPUs.
        sequence_length: tokens of one sequence.
        cluster: the machines.
        knobs: values that are allowed, by knob.
        seed: of the study's other parameters.
        shared: what is trained, how, and what memory there is: ``optimizer``, ``precision``,
            ``reduce_dtype``, ``loss``, ``tensor_parallel``, ``adapter``, ``frozen``, ``packing``,
            ``task``, ``image_tokens``, ``framework``, ``framework_versions``, ``headroom`` and
            ``memory_limit_gib``.

    Raises:
        UsageError: an argument is wrong, or no configuration is legal.
    """
    from tuner.planner.prior import prior_of  # imports NumPy, as the next does Optuna
    from tuner.search.sampler import CostModelSampler

    request = read_here(
        plain_arguments(
            shared,
            model=model,
            global_batch_size=global_batch_size,
            sequence_length=sequence_length,
            cluster=cluster,
            knobs=knobs,
        )
    )
    question = request.question(installed_versions())
    limit_bytes = request.limits_at(Fidelity.MEASURED).limit_bytes(question.cluster)
    return CostModelSampler(prior_of(question, None, limit_bytes), seed=seed)
