"""The slots of a study's probes on this machine."""

from contextlib import ExitStack
from dataclasses import replace

from tuner.cluster import Cluster
from tuner.measurement import Fidelity
from workers.desk import Desk
from workers.launchers.base import Launcher
from workers.measure import kind_of
from workers.options import Options
from workers.places import places
from workers.slot import DeviceSlot, Slot
from workers.turn import Turn
from workers.warm import WarmRanks


def device_slots(
    desk: Desk,
    cluster: Cluster,
    fidelity: Fidelity,
    *,
    options: Options,
    launcher: Launcher,
    stands_in: bool,
) -> tuple[list[Slot], ExitStack]:
    """One slot for each place of this machine where such probes can run at once, and their ranks.

    Args:
        desk: for what is asked of the store.
        cluster: whose ranks run.
        fidelity: of the probes.
        options: how.
        launcher: starts ranks.
        stands_in: as of :func:`workers.measure.measure`.

    Returns:
        The slots, and what ends their ranks when it is closed.
    """
    kind = kind_of(cluster, fidelity)
    found = places(kind, options.devices())
    sharing = max(kind.sharing or kind.ranks, len(found))
    stack = ExitStack()
    slots: list[Slot] = []
    for place in found[:1] if options.queued_only else found:
        ranks = WarmRanks(
            launcher=launcher, argv=options.argv, folder=options.folder, keep=not options.cold
        )
        slots.append(
            DeviceSlot(
                desk=desk,
                ranks=stack.enter_context(ranks),
                kind=replace(kind, visible=place.visible, sharing=sharing),
                own=Turn(options.lock, place.own),
                others=Turn(options.lock, place.rest),
                deadline_s=options.deadline_s,
                stands_in=stands_in,
            )
        )
    return slots, stack
