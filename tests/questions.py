"""Questions as tests ask them, each in a line or two."""

from collections.abc import Mapping

from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.model import load_model, read_model_config


def question_about(
    model, cluster, stack="torch", *, tokens, batch, knobs=None, script=None, **workload
):
    """A question.

    Args:
        model: its name or path, a configuration, or one that was read.
        cluster: as it is written, or made.
        stack: a framework, or the name of one, whose versions are those installed here.
        tokens: of a sequence.
        batch: sequences of the global batch.
        knobs: restrictions.
        script: of the user's own.
        workload: its other fields.
    """
    if isinstance(model, str):
        model = load_model(model)
    elif isinstance(model, Mapping):
        model = read_model_config(model, name="tiny")
    return Question(
        workload=Workload(model=model, sequence_length=tokens, global_batch_size=batch, **workload),
        cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        framework=framework(stack) if isinstance(stack, str) else stack,
        knobs=knobs or {},
        script=script,
    )
