"""Refused callers in the audit, without letting them fill the disk."""

import logging
from collections.abc import Mapping

import anyio

from api.limits import Buckets
from tuner.errors import TunerError
from tuner.store.audit import Action, Audit

log = logging.getLogger(__name__)

EACH_PER_S = 1 / 60
"""Notes of one caller and action: one a minute, which says how many there were since."""
ALL_PER_S, ALL_BURST = 1.0, 60
"""Notes of all callers together, should refusals come from everywhere."""
MOST_COUNTED = 10_000
"""Callers of whom refusals are counted."""


class Refusals:
    """Notes refusals: the first of a caller at once, later ones counted, once a minute."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.each = Buckets(EACH_PER_S, 1)
        self.all = Buckets(ALL_PER_S, ALL_BURST)
        self.times: dict[tuple[str, Action], int] = {}
        self._thread = anyio.CapacityLimiter(1)  # its own, so that slow requests hold nothing up

    async def note(self, who: str, actor: str, action: Action, data: Mapping[str, str]) -> None:
        """Note one, or count it.

        Args:
            who: whose refusals are counted together.
            actor: as the audit names them.
            action: what was refused.
            data: what is noted beside ``times``.
        """
        times = self.times.pop((who, action), 0) + 1
        if self.each.take(f"{action} {who}") or self.all.take(""):
            self._count(who, action, times)
            return
        try:
            await anyio.to_thread.run_sync(
                lambda: self.audit.note(actor, action, **data, times=times), limiter=self._thread
            )
        except TunerError as error:  # they are refused all the same
            log.warning("%s of %s could not be noted: %s", action, actor, error)

    def _count(self, who: str, action: Action, times: int) -> None:
        self.times[who, action] = times
        if len(self.times) > MOST_COUNTED:
            del self.times[next(iter(self.times))]
