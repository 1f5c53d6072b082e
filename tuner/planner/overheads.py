"""Device memory outside the allocator, as probes of the same machines found it.

The catalogue's sizes of a context and of a communicator are of other machines. A probe that ran
steps shows both together, for as many communicators as its settings have.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tuner.cluster import Cluster, Device
from tuner.cost.constants import default_costs
from tuner.cost.device_memory import communicator_count
from tuner.measurement import PROBED, Fidelity
from tuner.settings import Settings
from tuner.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What was seen on a cluster."""

    cluster: Cluster
    """Whose devices."""
    by_count: Mapping[int, int] = field(default_factory=dict)
    """The most bytes that a rank had outside its allocator, by its number of communicators."""

    def of(self, settings: Settings) -> int | None:
        """Bytes outside the allocator of settings; ``None`` where nothing was seen.

        Of another number of communicators than was seen, those of the nearest, and for each one
        more or less what the numbers seen differ by, or the catalogue's size where there is one.
        """
        if not self.by_count:
            return None
        count = communicator_count(settings, self.cluster)
        nearest = min(self.by_count, key=lambda known: (abs(known - count), -known))
        apart = count - nearest
        return max(0, int(self.by_count[nearest] + (apart and apart * self._each)))

    @property
    def _each(self) -> float:
        """Bytes of one communicator."""
        least, most = min(self.by_count), max(self.by_count)
        if least == most:
            return default_costs().device.communicator_bytes
        return max(0.0, (self.by_count[most] - self.by_count[least]) / (most - least))


def overheads(study: Study) -> Overheads:
    """What a study's probes saw; those of its past on the same cluster, where it has none.

    Measured probes go before emulated ones, whose communicators are the catalogue's.
    """
    cluster = study.question.cluster
    if cluster.gpu.device is not Device.CUDA:
        return Overheads(cluster=cluster)
    alike = [past for past in study.past if past.question.cluster == cluster]
    for fidelity in PROBED:
        for studies in ([study], alike):
            if seen := _by_count(studies, fidelity):
                return Overheads(cluster=cluster, by_count=seen)
    return Overheads(cluster=cluster)


def _by_count(studies: Iterable[Study], fidelity: Fidelity) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for study in studies:
        for probe in study.probes:
            measurement = probe.measurement
            if probe.request.fidelity is not fidelity or measurement is None:
                continue
            emulation, memory = measurement.emulation, measurement.memory
            if memory is None or not memory.overhead_bytes or (emulation and emulation.stands_in):
                continue
            count = communicator_count(probe.request.settings, study.question.cluster)
            found[count] = max(found[count], memory.overhead_bytes)
    return dict(found)
