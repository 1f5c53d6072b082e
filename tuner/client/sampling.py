"""``tuner.cost_model_sampler``: our sampler, for an Optuna study of the user's own."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuner.client.request import read_here
from tuner.client.values import ClusterLike, ModelLike, naming_arguments, plain_arguments
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity

if TYPE_CHECKING:
    from tuner.search.sampler import CostModelSampler


@naming_arguments()
def cost_model_sampler(
    *,
    model: ModelLike,
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
    seed: int | None = None,
) -> "CostModelSampler":
    """A sampler for a study that minimises the seconds of a training step.

    Its ``suggest(trial)`` gives the configuration to try, with one parameter for each active knob.
    Tell the study what the step needed with
    ``trial.set_constraint("memory_over_limit_bytes", needed - sampler.limit_bytes)``. Other
    parameters of the study are sampled at random.

    Args:
        model: as in :func:`tuner.suggest`, like all that follow but the seed.
        global_batch_size: sequences of one optimizer step, over all GPUs.
        sequence_length: tokens of one sequence.
        cluster: the machines.
        optimizer: ``adamw``, ``adamw_8bit`` or ``sgd``.
        precision: ``bf16``, ``bf16_mixed`` or ``fp32``.
        reduce_dtype: ``bf16`` or ``fp32``; by default the precision's own.
        framework: ``torch``, ``accelerate``, ``trainer`` or ``nanotron``.
        framework_versions: versions by package; by default those installed.
        knobs: values that are allowed, by knob.
        headroom: share of each GPU's usable memory to leave free; by default 0.05.
        memory_limit_gib: GiB that a step may use of one GPU, instead of a headroom.
        seed: of the study's other parameters.

    Raises:
        UsageError: an argument is wrong, or no configuration is legal.
    """
    from tuner.planner.prior import prior_of  # imports NumPy, as the next does Optuna
    from tuner.search.sampler import CostModelSampler

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
        )
    )
    question = request.question(installed_versions())
    limit_bytes = request.limits_at(Fidelity.MEASURED).limit_bytes(question.cluster)
    return CostModelSampler(prior_of(question, None, limit_bytes), seed=seed)
