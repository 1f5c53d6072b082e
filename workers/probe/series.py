"""One rank of several probes, one after the other: starting a rank takes seconds."""

import sys
from collections.abc import Callable
from pathlib import Path

from workers.probe.check import check
from workers.probe.group import Meeting
from workers.probe.orders import SPEC, SPENT, checked_device, header, orders
from workers.probe.record import Record
from workers.probe.rendezvous import rendezvous

ALLOWED_BYTES = 8 * 2**20
"""Of all probes together, that may stay in use on the device between two: tables that libraries
keep. More may be a leak, which the next probe would pay for."""


def run_series(out: Path, how: str = "file") -> Record:
    """Run this process's rank of every order in ``out``, and write its records.

    All are of the same number of ranks, fidelity and device. Each joins its own process group
    and has its record beside its spec, written when what the probe took has come back. The first
    that fails is the last, since other ranks may hang then; nothing is returned after it. The
    last record is in ``out`` too.

    Args:
        out: the folder, as in :mod:`workers.probe.orders`.
        how: the ranks find each other, as of :func:`workers.probe.rendezvous.rendezvous`.

    Returns:
        The last record.
    """
    record: Record | None = None
    probe: Callable[[Path, Meeting], Record] | None = None
    for place in orders(out):
        sys.stdout.write(header(place.name))
        sys.stdout.flush()
        meeting = rendezvous(place, how)
        if device_type := checked_device(place / SPEC):
            record, _ = check(device_type, place, meeting)
        else:
            probe = probe or _prober(out)
            record = probe(place, meeting)
        record.write(place)
        if not record.is_well:
            break
    assert record is not None, f"no orders in {out}"
    record.write(out)
    return record


def _prober(out: Path) -> Callable[[Path, Meeting], Record]:
    """Runs a probe in this process, and brings it back to what it was before the first."""
    # transformers takes seconds to import, and a look at devices does without
    from workers.probe.between import Between
    from workers.probe.rank import run_probe

    between = Between()

    def probe(place: Path, meeting: Meeting) -> Record:
        record, device = run_probe(place / SPEC, meeting)
        if record.is_well:
            assert device is not None
            try:
                left_bytes = between.clean_up(device)
            except Exception as error:  # noqa: BLE001  (whatever it is becomes the record's outcome)
                # what the device reports only now is the probe's outcome
                record.fail(error, "finish", device)
                return record
            if left_bytes > ALLOWED_BYTES:
                (out / SPENT).touch()
        return record

    return probe
