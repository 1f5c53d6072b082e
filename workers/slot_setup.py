"""The slots of a study's probes where a worker's probes run."""

from contextlib import ExitStack
from dataclasses import replace

from tuner.cluster import Cluster
from tuner.measurement import Fidelity
from workers.device_locks import DeviceLocks
from workers.measuring.measure import kind_of
from workers.measuring.warm import WarmRanks
from workers.options import Options
from workers.placement import places, whole
from workers.retrying_store import RetryingStore
from workers.slot import DeviceSlot, Slot


def device_slots(
    retrying: RetryingStore,
    cluster: Cluster,
    fidelity: Fidelity,
    *,
    options: Options,
    stands_in: bool,
    place_for: type[DeviceSlot] = DeviceSlot,
) -> tuple[list[Slot], ExitStack]:
    """One slot for each place of the site where such probes can run at once, and their ranks.

    Ranks that somebody else's manager starts have all of its nodes at once.

    Args:
        retrying: for what is asked of the store.
        cluster: whose ranks run.
        fidelity: of the probes.
        options: how.
        stands_in: as of :func:`workers.measuring.measure.measure`.
        place_for: what the slots are.

    Returns:
        The slots, and what ends their ranks when it is closed.
    """
    site = options.site
    kind = kind_of(cluster, fidelity, len(site.machines()))

    def find() -> DeviceLocks:
        return DeviceLocks(None, whole(site.devices()).own)

    found = places(kind, site.devices()) if site.is_here else (whole(site.devices()),)
    lock = options.lock if site.is_here else None
    sharing = max(kind.sharing or kind.ranks, len(found))
    stack = ExitStack()
    slots: list[Slot] = []
    for place in found[:1] if options.queued_only else found:
        ranks = WarmRanks(
            launcher=site.launcher,
            argv=options.argv,
            folder=options.folder,
            keep=not options.cold,
            checked=options.checked,
        )
        slots.append(
            place_for(
                retrying=retrying,
                ranks=stack.enter_context(ranks),
                kind=replace(kind, visible=place.visible, sharing=sharing),
                own=DeviceLocks(lock, place.own),
                others=DeviceLocks(lock, place.rest),
                deadline_s=options.deadline_s,
                stands_in=stands_in,
                find=None if site.is_here else find,
            )
        )
    return slots, stack
