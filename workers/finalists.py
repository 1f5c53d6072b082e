"""The twins of a study's finalists: which still want a verdict, and training them."""

import logging
from collections.abc import Generator, Sequence

from tuner.errors import ProbeError
from tuner.framework import installed_versions
from tuner.guard.ruling import Ruling
from tuner.guard.twin import family_of, stack_of
from tuner.guard.verdict import Verdict
from tuner.measurement import PROBED, Outcome
from tuner.planner import to_guard
from tuner.planner.knowledge import learned
from tuner.planner.verdicts import twins_of
from tuner.study import Study
from workers.guard import Asked, Guard, verdict_on

log = logging.getLogger(__name__)


class Finalists:
    """Trains the twins of finalists, each once, whatever comes of it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._tried: set[str] = set()

    def wanted(self, study: Study) -> list[Asked]:
        """The twins of the answer, and of what ties with it, without a verdict.

        None for predicted answers; none where other versions are asked about than those that are
        installed: what trains here says nothing of them.
        """
        question = study.question
        if study.terms.fidelity not in PROBED:
            return []
        if stack_of(question.framework.versions) != stack_of(installed_versions()):
            return []
        asked = {
            twin.key(question.framework.versions): Asked(twin=twin, family=family_of(question))
            for settings in to_guard(learned(study, study.terms.fidelity))
            for twin in twins_of(question, settings)
        }
        decided = {k for k, v in study.guards.items() if v.ruling is not Ruling.NOT_CHECKED}
        return [one for key, one in asked.items() if key not in decided | self._tried]

    def train(self, asked: Sequence[Asked], deadline_s: float) -> Generator[Verdict, None, None]:
        """The verdicts on twins, each as soon as it is reached; none is asked for again.

        Where ranks of twins cannot be run here, the answer stands without a check: those that are
        left are ``not_checked``, with the reason.
        """
        log.info("training %d small twins of the finalists", len(asked))
        left = {one.key: one for one in asked}
        self._tried |= left.keys()
        try:
            for verdict in self._guard.check(asked, deadline_s=deadline_s):
                left.pop(verdict.key, None)
                log.info("twin: %s %s [%s]", verdict.ruling, verdict.detail, verdict.structure)
                yield verdict
        except ProbeError as error:
            log.warning("small twins could not be trained: %s", error)
            why = f"its small twin could not be trained: {error}"
            versions = stack_of(installed_versions())
            for one in left.values():
                yield verdict_on(one, Outcome.CRASHED, why, versions)
