"""What every rank does around its work: it opens its device, and has a record however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from workers.probe.device import Device, open_device
from workers.probe.record import Record, versions
from workers.probe.tracker import Phase


@dataclass(slots=True, kw_only=True)
class Recording:
    """A rank at work."""

    rank: int
    """Which one this process is."""
    record: Record
    """What it finds."""
    phase: Phase = field(default_factory=Phase)
    """What it is doing, for the record of a failure."""
    device: Device | None = None
    """Its device; ``None`` until it is opened."""

    def open_device(
        self, device_type: str, *, limit_bytes: int | None = None, alone: bool = False
    ) -> Device:
        """Open this rank's device, and note what it is; arguments as of ``open_device``."""
        self.device = open_device(
            device_type,
            self.phase,
            local_rank=int(os.environ.get("LOCAL_RANK", self.rank)),
            limit_bytes=limit_bytes,
            alone=alone,
        )
        self.record.hardware = dict(self.device.hardware())
        return self.device


@contextmanager
def recording() -> Iterator[Recording]:
    """Under this, any error becomes the record's outcome; nothing is written yet."""
    rank = int(os.environ["RANK"])
    own = Recording(rank=rank, record=Record(rank=rank, versions=versions()))
    try:
        yield own
    except Exception as error:  # noqa: BLE001  (whatever it is becomes the record's outcome)
        own.record.fail(error, own.phase.name, own.device)
