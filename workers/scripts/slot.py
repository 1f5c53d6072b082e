"""A place for the probes of a user's own script."""

from dataclasses import dataclass

from tuner.measurement import Measurement, Outcome
from workers.launchers.local import LocalLauncher
from workers.scripts.check import check_script_probe
from workers.scripts.probe import ScriptRun
from workers.slot import DeviceSlot, Order


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptSlot(DeviceSlot):
    """Devices of this machine, on which the script is started anew for every probe."""

    def measured(self, order: Order) -> Measurement:
        """As of :class:`workers.slot.DeviceSlot`; the ranks are the script's own.

        Other processes look at its devices before, on the same GPUs.
        """
        study, probe = order.study, order.held.claim.probe
        if not self.ranks.check(self.kind, order.held.pause):
            return Measurement(outcome=Outcome.CANCELLED)
        run = ScriptRun(
            launcher=LocalLauncher(),
            folder=self.ranks.folder,
            visible=self.kind.visible,
            deadline_s=self.deadline_s,
        )
        found = run.measure(study.question, probe.request.settings, order.held.pause)
        return check_script_probe(study, probe.request.settings, found)
