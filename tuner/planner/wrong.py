"""Looks up what is known to train something else, by configurations of a study.

That is what the verdicts show that a study was read with, and what was counted in its own probes.
"""

from collections.abc import Iterable, Iterator

from tuner.core.configuration import Settings
from tuner.core.measurement import PROBED, RAN, TRAINS_WRONGLY
from tuner.core.study import Question, Study
from tuner.core.workload import Precision
from tuner.guard.check import GuardCheck
from tuner.guard.faults import Faults, PathCheck, Wrong, blamed_by_counts, checks_of, path_of
from tuner.guard.replica import NoReplicaError, Replica, replica_of
from tuner.text import kept

# Why settings of a script are not checked as those of the probe program are.
NO_REPLICA_OF_A_SCRIPT = "a replica shows nothing of a script of one's own"


def replicas_of(question: Question, settings: Settings) -> tuple[Replica, ...]:
    """The replicas whose verdicts settings need: in fp32, and in the workload's number format.

    Raises:
        NoReplicaError: as in :func:`tuner.guard.replica.replica_of`; or of a user's script.
    """
    if question.script is not None:
        raise NoReplicaError(NO_REPLICA_OF_A_SCRIPT)
    precision = question.workload.precision
    formats = dict.fromkeys((Precision.FP32, precision))
    return tuple(replica_of(question, settings, one) for one in formats)


@kept(maxsize=8)
def faults_of(study: Study) -> Faults:
    """Collects what was seen to train something else, in this study's versions."""
    others = (v for v in study.guards.values() if v.study != study.id)
    return Faults((*_probed(study), *checks_of(study.question, others)))


def _probed(study: Study) -> Iterator[PathCheck]:
    """Collects what was counted in the study's own probes."""
    ranks = study.question.cluster.world_size
    for probe in sorted(study.probes, key=lambda p: p.id):
        found, settings = probe.measurement, probe.request.settings
        if found is None or probe.request.fidelity not in PROBED:
            continue
        if found.outcome in RAN | TRAINS_WRONGLY:
            yield PathCheck(
                path=path_of(settings, ranks),
                outcome=found.outcome,
                detail=found.detail,
                knob=blamed_by_counts(settings, ranks, found),
                source=f"probe #{probe.id}",
                is_own=True,
            )


def wrong_of(study: Study, settings: Iterable[Settings]) -> dict[Settings, Wrong]:
    """Selects the configurations that must not be suggested: they train something else, or may
    well.
    """
    faults, ranks = faults_of(study), study.question.cluster.world_size
    if not faults.any:
        return {}
    found = ((one, faults.wrong(path_of(one, ranks))) for one in settings)
    return {one: wrong for one, wrong in found if wrong is not None}


def known_verdicts(study: Study, settings: Settings) -> Iterator[GuardCheck]:
    """The verdicts on the settings' replicas, as far as there are some."""
    versions = study.question.framework.versions
    try:
        replicas = replicas_of(study.question, settings)
    except NoReplicaError:
        return
    for replica in replicas:
        if (verdict := study.guards.get(replica.key(versions))) is not None:
            yield verdict


def is_checked(study: Study, settings: Settings) -> bool:
    """Tells whether each knob's value was seen to train what it should, with some small model."""
    if not study.guards or study.question.script is not None:
        return False
    return faults_of(study).is_checked(path_of(settings, study.question.cluster.world_size))
